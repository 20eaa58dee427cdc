"""A model's weights as vLLM reads them: a Hugging Face folder in bfloat16, or in int8 with int8 activations (W8A8).

W8A8 is the format of compressed-tensors: a symmetric int8 weight with a scale for each output channel, rounded to
nearest, and activations that vLLM quantises for each token as it runs. Embedding and head stay as they are.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ekiden.errors import UserError
from ekiden.models.architectures.spec import ModelSpec
from ekiden.models.architectures.weights import EMBEDDING, HEAD, expected_shapes
from ekiden.models.files import read_json
from ekiden.models.load import ModelDescription, open_checkpoint

_WEIGHTS = "model.safetensors"
_WRITER = 1
"""Increase it when the same model would be written in another way."""
_CLASSES: Final = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
_W8A8: Final[dict[str, Any]] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {
                "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True
            },
        }
    },
}  # fmt: skip

Array = npt.NDArray[Any]


def hf_folder(description: ModelDescription, *, int8: bool) -> Path:
    """The folder, written into the model cache once. A safetensors model in its own format is given as it is.

    Raises :class:`UserError` for a model that no configuration file of that kind can be written for.
    """
    files = description.files
    if files.kind == "safetensors" and not int8:
        return files.root
    name = f"{description.digests['weights'][:24]}-{'w8a8' if int8 else 'bf16'}-{_WRITER}"
    folder = files.cache_dir / "peers" / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".partial-"))
        try:
            _write(partial, description, int8=int8)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def _write(folder: Path, description: ModelDescription, *, int8: bool) -> None:
    spec, files = description.spec, description.files
    if spec is None:
        raise UserError("it reads no OpenVINO folders; give the GGUF file or the safetensors folder")
    if files.config is not None:
        config = read_json(files.config)
        for name in _TOKENIZER_FILES:
            if (files.root / name).is_file():
                shutil.copyfile(files.root / name, folder / name)
    else:
        config = _config(spec, description)
        (folder / _TOKENIZER_FILES[0]).write_text(description.tokenizer.backend.to_str())
        words = {"bos_token": description.tokenizer.bos_token, "eos_token": description.tokenizer.eos_token}
        named = {name: text for name, text in words.items() if text}
        own = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
        (folder / _TOKENIZER_FILES[1]).write_text(json.dumps(own))
    config |= {"dtype": "bfloat16", "torch_dtype": "bfloat16"}
    if int8:
        config["quantization_config"] = _W8A8
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_safetensors(folder / _WEIGHTS, dict(_tensors(description, spec, int8=int8)))


def _config(spec: ModelSpec, description: ModelDescription) -> dict[str, Any]:
    """``config.json`` of a model that came without one."""
    tokenizer = description.tokenizer
    theta = _rope_theta(spec)
    return {
        "architectures": [_CLASSES[spec.family]],
        "model_type": spec.family,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": spec.rms_norm_eps,
        "max_position_embeddings": spec.max_position_embeddings,
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "attention_bias": spec.attention_bias,
        "mlp_bias": spec.mlp_bias,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "sliding_window": spec.sliding_window,
        "use_sliding_window": spec.sliding_window is not None,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": sorted(tokenizer.eos_token_ids),
    }


def _rope_theta(spec: ModelSpec) -> float:
    """The base of a rotary embedding without scaling; :class:`UserError` for another."""
    frequencies = np.asarray(spec.rope.inverse_frequencies, np.float64)
    half = len(frequencies)
    theta = float(frequencies[-1] ** (-half / (half - 1)))
    plain = np.allclose(frequencies, theta ** (-np.arange(half) / half), rtol=1e-5)
    if spec.rope.attention_factor != 1.0 or not plain:
        raise UserError("its rotary embedding is scaled, which is written for safetensors folders only")
    return round(theta, 3)


def _tensors(description: ModelDescription, spec: ModelSpec, *, int8: bool) -> Iterator[tuple[str, Array]]:
    checkpoint = open_checkpoint(description.files)
    for name, shape in expected_shapes(spec):
        values = checkpoint.tensor(name)
        if int8 and len(shape) == 2 and name not in (EMBEDDING, HEAD):
            quantised, scale = symmetric_int8(values)
            yield name, quantised
            yield f"{name}_scale", scale
        else:
            yield name, bfloat16_bits(values)


def symmetric_int8(weight: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """``weight`` [out, in] as int8 in [-127, 127] with a scale [out, 1], rounded to nearest."""
    scale = np.maximum(np.abs(weight).max(axis=1, keepdims=True) / 127, np.finfo(np.float32).tiny)
    return np.rint(weight / scale).astype(np.int8), scale.astype(np.float32)


def bfloat16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of ``values`` in bfloat16, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


_TYPES: Final = {np.dtype(np.uint16): "BF16", np.dtype(np.int8): "I8", np.dtype(np.float32): "F32"}


def save_safetensors(path: Path, tensors: dict[str, Array]) -> None:
    """Write the format of ``safetensors``; arrays of uint16 are the bits of bfloat16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in tensors.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": _TYPES[array.dtype], "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())
