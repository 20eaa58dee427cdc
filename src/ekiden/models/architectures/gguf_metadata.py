"""Converts GGUF metadata to a :class:`ModelSpec` and GGUF tensor names to Hugging Face names.

GGUF's ``llama`` architecture also covers Mistral. Optional keys have llama.cpp's defaults. In ``llama`` files the rows
of q and k are interleaved, for a rotary embedding over adjacent pairs; the Qwen files have them in halves already.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ekiden.models.architectures.fields import MAX_LAYERS, Fields, check_shape, unsupported
from ekiden.models.architectures.rope import rope_spec, yarn_scale
from ekiden.models.architectures.spec import ModelSpec
from ekiden.models.errors import ModelError

_Number = TypeVar("_Number", bound=np.generic)

ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPE_FACTORS = "rope_freqs.weight"

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAME = re.compile(r"(?:blk\.(\d+)\.)?([a-z_]+)\.(weight|bias)")


def hf_name(name: str) -> str | None:
    """``blk.0.attn_q.weight`` -> ``model.layers.0.self_attn.q_proj.weight``; None for other tensors."""
    match = _NAME.fullmatch(name)
    layer, part, kind = match.groups() if match else (None, "", "")
    if layer is None:
        return f"{_TOP[part]}.{kind}" if part in _TOP else None
    return f"model.layers.{layer}.{_BLOCK[part]}.{kind}" if part in _BLOCK else None


def rotary_halves(rows: npt.NDArray[_Number], num_heads: int) -> npt.NDArray[_Number]:
    """Reorder ``[num_heads * head_dim, ...]`` from adjacent rotary pairs to halves (undoes llama.cpp's conversion)."""
    pairs = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def spec_from_metadata(
    source: str,
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    frequency_factors: npt.NDArray[np.float32] | None,
) -> ModelSpec:
    """Describe the model of a GGUF file.

    Args:
        source: the file that errors name.
        metadata: its keys.
        shapes: Hugging Face name -> shape of each tensor; it tells the vocabulary's size and which biases exist.
        frequency_factors: the content of ``rope_freqs.weight``, where the file has it.

    Raises:
        ModelError: the architecture or a feature is not supported, or a key or tensor is missing.
    """
    architecture = Fields(source, metadata).text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise unsupported(source, architecture)
    fields = Fields(source, metadata, f"{architecture}.")
    if not fields.is_off("expert_count"):
        raise unsupported(source, f"{architecture} with experts")
    hidden_size = fields.integer("embedding_length")
    num_heads = _heads(fields, "attention.head_count", None)
    head_dim = fields.integer("attention.key_length", max(hidden_size // num_heads, 1))
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise ModelError(f"{source}: keys and values of different head sizes are not supported")
    if fields.integer("rope.dimension_count", head_dim) != head_dim:
        raise ModelError(f"{source}: a partial rotary embedding is not supported")
    embedding = shapes.get("model.embed_tokens.weight")
    if embedding is None or len(embedding) != 2:
        raise ModelError(f"{source}: tensor 'token_embd.weight' is missing; fetch or convert the model again")
    context = fields.integer("context_length")
    window = context if fields.is_off("attention.sliding_window") else fields.integer("attention.sliding_window")
    attention = "model.layers.0.self_attn"
    spec = ModelSpec(
        family=architecture,
        vocab_size=embedding[0],
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=fields.integer("block_count", limit=MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=_heads(fields, "attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=context,
        rope=rope_spec(
            source,
            theta=fields.number("rope.freq_base", 10_000.0),
            head_dim=head_dim,
            scaling=_rope_scaling(fields),
            max_position_embeddings=context,
            frequency_factors=frequency_factors,
        ),
        attention_bias=f"{attention}.q_proj.bias" in shapes,
        output_bias=f"{attention}.o_proj.bias" in shapes,
        mlp_bias="model.layers.0.mlp.gate_proj.bias" in shapes,
        qk_norm=f"{attention}.q_norm.weight" in shapes,
        tie_word_embeddings="lm_head.weight" not in shapes,
        sliding_window=None if window >= context else window,
    )
    return check_shape(source, spec)


def _heads(fields: Fields, key: str, default: int | None) -> int:
    if isinstance(fields.get(key), np.ndarray | list):
        raise ModelError(f"{fields.source}: {fields.prefix + key!r} differs between layers, which is not supported")
    return fields.integer(key, default)


def _rope_scaling(fields: Fields) -> dict[str, Any]:
    """GGUF's rope keys under the names that a Hugging Face configuration gives them."""
    kind = fields.text("rope.scaling.type") or "none"
    key = "rope.scaling.factor"
    if not fields.has(key) and fields.has("rope.scale_linear"):
        kind, key = "linear", "rope.scale_linear"  # older files have this key and no type
    if kind == "none" or fields.is_off(key) or (factor := fields.number(key)) == 1.0:
        return {}
    scaling: dict[str, Any] = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = fields.get("rope.scaling.original_context_length")
        scaling |= {beta: fields.get(f"rope.scaling.yarn_{beta}") for beta in ("beta_fast", "beta_slow")}
        if fields.get("rope.scaling.attn_factor") is not None:
            # llama.cpp multiplies yarn's own factor by this one.
            scaling["attention_factor"] = yarn_scale(factor) * fields.number("rope.scaling.attn_factor")
    return scaling
