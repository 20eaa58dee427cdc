"""Small GGUF files for the tests: a two-layer model of a few kilobytes with a byte-level tokenizer, varied by key."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCABULARY = 64, 96, 2, 4, 2, 264

# The one merged token, "hi", is number 260.
ADDED = ("<s>", "<|im_start|>", "<|im_end|>", "</s>", "hi", "<tool>", "<|spare|>", "<pad>")
ADDED_TYPES = (3, 3, 3, 3, 1, 4, 3, 3)
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_alphabet() -> list[str]:
    """GPT-2's character for each byte, in byte order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [characters[byte] for byte in range(256)]


def metadata(**changes: Any) -> dict[str, Any]:
    """The keys of the small model; a change to ``None`` removes a key. Dots are written as two underscores."""
    keys: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.context_length": 256,
        "llama.embedding_length": HIDDEN,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [*byte_alphabet(), *ADDED],
        "tokenizer.ggml.token_type": [1] * 256 + list(ADDED_TYPES),
        "tokenizer.ggml.merges": ["h i"],
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": 258,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }
    for name, value in changes.items():
        keys[name.replace("__", ".")] = value
    return {key: value for key, value in keys.items() if value is not None}


def tensors(**changes: Any) -> dict[str, np.ndarray]:
    """Random weights under GGUF names; a change to ``None`` removes a tensor."""
    random = np.random.default_rng(0)
    head = HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCABULARY, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        shapes |= {
            prefix + "attn_norm.weight": (HIDDEN,),
            prefix + "attn_q.weight": (HEADS * head, HIDDEN),
            prefix + "attn_k.weight": (KV_HEADS * head, HIDDEN),
            prefix + "attn_v.weight": (KV_HEADS * head, HIDDEN),
            prefix + "attn_output.weight": (HIDDEN, HEADS * head),
            prefix + "ffn_norm.weight": (HIDDEN,),
            prefix + "ffn_gate.weight": (INNER, HIDDEN),
            prefix + "ffn_up.weight": (INNER, HIDDEN),
            prefix + "ffn_down.weight": (HIDDEN, INNER),
        }
    result: dict[str, np.ndarray | None] = {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    for name, value in changes.items():
        result[name.replace("__", ".")] = value
    return {name: value for name, value in result.items() if value is not None}


def write_gguf(
    path: Path,
    keys: Mapping[str, Any] | None = None,
    weights: Mapping[str, np.ndarray] | None = None,
    types: Mapping[str, GGMLQuantizationType] | None = None,
) -> Path:
    """Write a GGUF file with ``gguf``'s own writer; ``types`` quantises the tensors it names."""
    keys = metadata() if keys is None else keys
    writer = GGUFWriter(path, str(keys.get("general.architecture", "")))
    if "general.architecture" not in keys:
        del writer.kv_data[0]["general.architecture"]
    for key, value in keys.items():
        if key == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, values in (tensors() if weights is None else weights).items():
        kind = (types or {}).get(name)
        if kind is None:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
