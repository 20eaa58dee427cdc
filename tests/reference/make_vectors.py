"""Makes tiny random models of every family with logits from ``transformers``, the tests' independent reference.

    python -m venv refvenv && refvenv/bin/pip install --group reference   (or the packages of that group)
    refvenv/bin/python tests/reference/make_vectors.py

Each folder is a complete Hugging Face model (configuration, safetensors, a byte-level tokenizer and a chat template)
and ``logits.npz``: ``input_ids`` int64 ``[40]`` and ``logits`` float32 ``[40, vocabulary]`` of the float32 model in
PyTorch. The weights are drawn anew on every run from fixed seeds; the folders in the repository are what the tests
read.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

HERE = Path(__file__).parent
NUM_TOKENS = 40
SIZES: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 256,
    "eos_token_id": 258,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}

# folder -> configuration, type of the stored weights
MODELS: dict[str, tuple[Any, torch.dtype]] = {
    "llama": (LlamaConfig(**SIZES, rope_parameters=dict(PLAIN)), torch.float32),
    "llama-tied": (LlamaConfig(**SIZES, rope_parameters=dict(PLAIN), tie_word_embeddings=True), torch.float16),
    "llama-rope-llama3": (LlamaConfig(**SIZES, rope_parameters=dict(LLAMA3)), torch.bfloat16),
    "llama-rope-linear": (LlamaConfig(**SIZES, rope_parameters=dict(LINEAR)), torch.bfloat16),
    "llama-rope-yarn": (LlamaConfig(**SIZES, rope_parameters=dict(YARN)), torch.bfloat16),
    "llama-bias": (
        LlamaConfig(**SIZES, rope_parameters=dict(PLAIN), attention_bias=True, mlp_bias=True),
        torch.bfloat16,
    ),
    "mistral": (
        MistralConfig(**SIZES, rope_parameters=dict(PLAIN), head_dim=32, sliding_window=None),
        torch.bfloat16,
    ),
    "mistral-window": (MistralConfig(**SIZES, rope_parameters=dict(PLAIN), sliding_window=12), torch.bfloat16),
    "qwen2": (Qwen2Config(**SIZES, rope_parameters=dict(PLAIN), tie_word_embeddings=True), torch.bfloat16),
    "qwen3": (Qwen3Config(**SIZES, rope_parameters=dict(PLAIN), head_dim=32), torch.bfloat16),
}

SPECIAL_TOKENS = (
    "<|begin_of_text|>",
    "<|im_start|>",
    "<|im_end|>",
    *(f"<|reserved_{number}|>" for number in range(5)),
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Set weights large enough that every part of the graph affects the logits."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            parameter.data = 1.0 + 0.2 * noise
        elif name.endswith("bias"):
            parameter.data = 0.3 * noise
        else:
            parameter.data = noise / parameter.shape[-1] ** 0.5


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer without merges: byte ``b`` is token ``b``, and eight special tokens follow."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    described = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 256 + i, "content": text, **plain} for i, text in enumerate(SPECIAL_TOKENS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {characters[byte]: byte for byte in range(256)}, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(described))
    config = {"bos_token": "<|begin_of_text|>", "eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))


def main() -> None:
    for seed, (name, (config, dtype)) in enumerate(MODELS.items()):
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        randomise(model, seed)
        for parameter in model.parameters():  # the reference runs on exactly the values that are stored
            parameter.data = parameter.data.to(dtype).float()
        model.tie_weights()
        state = {key: value.to(dtype).contiguous() for key, value in model.state_dict().items()}
        if config.tie_word_embeddings:
            del state["lm_head.weight"]
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        config.architectures = [type(model).__name__]
        config.dtype = dtype
        config.save_pretrained(folder)
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [258], "temperature": 0.7}))
        write_tokenizer(folder)
        ids = np.random.default_rng(100 + seed).integers(0, 256, NUM_TOKENS, dtype=np.int64)
        with torch.no_grad():
            logits = model(torch.from_numpy(ids)[None]).logits[0].float().numpy()
        np.savez_compressed(folder / "logits.npz", input_ids=ids, logits=logits)
        (folder / "model.safetensors").chmod(0o644)
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{name}: {size // 1024} KiB, logits within [{logits.min():.2f}, {logits.max():.2f}]")


if __name__ == "__main__":
    main()
