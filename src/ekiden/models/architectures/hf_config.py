"""Converts the ``config.json`` of a Hugging Face folder to a :class:`ModelSpec`.

Defaults are those of the family's configuration class in ``transformers``, so that a key left out of the file means
the same here. Both spellings of rotary settings are read: ``rope_theta`` + ``rope_scaling`` and ``rope_parameters``.
"""

from collections.abc import Mapping
from typing import Any

from ekiden.models.architectures.fields import MAX_LAYERS, Fields, check_shape, unsupported
from ekiden.models.architectures.rope import rope_spec
from ekiden.models.architectures.spec import FAMILIES, ModelSpec
from ekiden.models.errors import ModelError, cut

_DEFAULT_KV_HEADS = {"mistral": 8, "qwen2": 32, "qwen3": 32}
_DEFAULT_HEAD_DIM = {"qwen3": 128}


def spec_from_config(source: str, config: Mapping[str, Any]) -> ModelSpec:
    """Describe the model of a ``config.json``.

    Args:
        source: the file that errors name.
        config: its parsed content.

    Raises:
        ModelError: the architecture or a feature is not supported, a key is missing, or numbers do not fit together.
    """
    fields = Fields(source, config)
    family = config.get("model_type")
    if family not in FAMILIES:
        raise unsupported(source, family)
    _refuse_unsupported(fields)
    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    # An explicit null means "as many as query heads"; an absent key means the family's default.
    kv_heads = num_heads if fields.has("num_key_value_heads") else _DEFAULT_KV_HEADS.get(family, num_heads)
    head_dim = fields.integer("head_dim", _DEFAULT_HEAD_DIM.get(family) or max(hidden_size // num_heads, 1))
    num_layers = fields.integer("num_hidden_layers", limit=MAX_LAYERS)
    max_positions = fields.integer("max_position_embeddings")
    theta, scaling = _rope_settings(fields)
    attention_bias = fields.boolean("attention_bias", False) and family in ("llama", "qwen3")
    spec = ModelSpec(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", kv_heads),
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        max_position_embeddings=max_positions,
        rope=rope_spec(source, theta=theta, head_dim=head_dim, scaling=scaling, max_position_embeddings=max_positions),
        attention_bias=attention_bias or family == "qwen2",
        output_bias=attention_bias,
        mlp_bias=fields.boolean("mlp_bias", False) and family == "llama",
        qk_norm=family == "qwen3",
        tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
        sliding_window=_sliding_window(fields, family, num_layers, max_positions),
    )
    return check_shape(source, spec)


def _refuse_unsupported(fields: Fields) -> None:
    activation = fields.text("hidden_act") or "silu"
    if activation not in ("silu", "swish"):
        raise ModelError(f"{fields.source}: activation {cut(activation)} is not supported (silu is)")
    if fields.get("quantization_config") is not None:
        method = fields.mapping("quantization_config").get("quant_method")
        raise ModelError(
            f"{fields.source}: weights quantised with {cut(method)} are not supported; give the unquantised folder "
            "(Ekiden compresses to int8 itself), a .gguf file, or an OpenVINO folder"
        )


def _rope_settings(fields: Fields) -> tuple[float, Mapping[str, Any]]:
    scaling = dict(fields.mapping("rope_parameters") or fields.mapping("rope_scaling"))
    nested = Fields(f"{fields.source} (rope)", scaling)
    theta = nested.number("rope_theta", fields.number("rope_theta", 10_000.0))
    partial = nested.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise ModelError(f"{fields.source}: a partial rotary embedding ({partial}) is not supported")
    return theta, scaling


def _sliding_window(fields: Fields, family: str, num_layers: int, max_positions: int) -> int | None:
    """The window's length in tokens; None when no layer uses one, or when it is as long as the context."""
    if family == "llama" or (family != "mistral" and not fields.boolean("use_sliding_window", False)):
        return None
    if fields.has("sliding_window") and fields.get("sliding_window") is None:
        return None  # null turns the window off; an absent key means the family's default
    window = fields.integer("sliding_window", 4096)
    layers = _windowed_layers(fields, family, num_layers)
    if window >= max_positions or not layers:
        return None
    if layers != num_layers:
        raise ModelError(
            f"{fields.source}: {layers} of {num_layers} layers use a sliding window, which is not supported; "
            "export the model with Optimum-Intel and give the OpenVINO folder"
        )
    return window


def _windowed_layers(fields: Fields, family: str, num_layers: int) -> int:
    kinds, first = fields.get("layer_types"), fields.get("max_window_layers")
    if isinstance(kinds, list):
        return kinds.count("sliding_attention")
    if family == "mistral":
        first = 0
    return max(num_layers - max(first if isinstance(first, int) else 28, 0), 0)
