"""Rotary embedding frequencies, resolved once at load so that the graph holds plain constants.

The scaling rules are those of the ``transformers`` package (``modeling_rope_utils.py``):

- ``linear``: every frequency divided by ``factor`` (position interpolation, arXiv:2306.15595);
- ``llama3``: long wavelengths divided, short ones kept, a smooth passage between (Llama 3.1);
- ``yarn``: interpolation and extrapolation mixed per dimension, with an attention factor (arXiv:2309.00071).

All arithmetic is float64; the graph builder rounds to float32 once.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ekiden.models.architectures.spec import RopeSpec
from ekiden.models.errors import ModelError

SUPPORTED = ("default", "linear", "llama3", "yarn")


def rope_spec(
    source: str,
    *,
    theta: float,
    head_dim: int,
    scaling: Mapping[str, Any],
    max_position_embeddings: int,
    frequency_factors: npt.NDArray[np.float32] | None = None,
) -> RopeSpec:
    """The frequencies for a head of ``head_dim``.

    Args:
        source: the file named in errors.
        theta: the base of the geometric row of frequencies.
        scaling: ``rope_type`` and that type's numbers, as in a Hugging Face configuration; empty for none.
        max_position_embeddings: the original length that yarn falls back to when it names none.
        frequency_factors: ``[head_dim / 2]`` divisors (GGUF's ``rope_freqs.weight``), applied before any scaling.

    Raises:
        ModelError: a type that is not supported, or a number that is missing or out of range.
    """
    if not (math.isfinite(theta) and theta > 0):
        raise ModelError(f"{source}: rope theta is {theta}; it must be a positive number")
    inverse = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if frequency_factors is not None:
        if frequency_factors.shape != inverse.shape or not (frequency_factors > 0).all():
            raise ModelError(f"{source}: rope_freqs.weight must be {len(inverse)} positive numbers; fetch it again")
        inverse = inverse / frequency_factors.astype(np.float64)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    attention_factor = 1.0
    if kind == "linear":
        inverse = inverse / _number(source, scaling, "factor")
    elif kind == "llama3":
        inverse = _llama3(source, inverse, scaling)
    elif kind == "yarn":
        inverse, attention_factor = _yarn(source, inverse, scaling, theta, head_dim, max_position_embeddings)
    elif kind != "default":
        raise ModelError(
            f"{source}: rope scaling {kind!r} is not supported ({', '.join(SUPPORTED)} are); "
            "export the model with Optimum-Intel and give the OpenVINO folder"
        )
    return RopeSpec(inverse_frequencies=tuple(float(value) for value in inverse), attention_factor=attention_factor)


def _number(source: str, scaling: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = scaling.get(key, default)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ModelError(f"{source}: rope scaling needs a positive number {key!r}, and it is {value!r:.40}")
    return float(value)


def _llama3(source: str, inverse: npt.NDArray[np.float64], scaling: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    factor = _number(source, scaling, "factor")
    low = _number(source, scaling, "low_freq_factor")
    high = _number(source, scaling, "high_freq_factor")
    original = _number(source, scaling, "original_max_position_embeddings")
    if high <= low:
        raise ModelError(f"{source}: rope scaling has high_freq_factor {high} not above low_freq_factor {low}")
    wavelength = 2 * math.pi / inverse
    smooth = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
    return (1 - smooth) * inverse / factor + smooth * inverse


def _yarn(
    source: str,
    inverse: npt.NDArray[np.float64],
    scaling: Mapping[str, Any],
    theta: float,
    head_dim: int,
    max_position_embeddings: int,
) -> tuple[npt.NDArray[np.float64], float]:
    factor = _number(source, scaling, "factor")
    original = _number(source, scaling, "original_max_position_embeddings", max_position_embeddings)
    beta_fast = _number(source, scaling, "beta_fast", 32.0)
    beta_slow = _number(source, scaling, "beta_slow", 1.0)

    def dimension_of(rotations: float) -> float:
        """The dimension that turns ``rotations`` times over the original context."""
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension_of(beta_fast), dimension_of(beta_slow)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # keeps the ramp a finite slope
    interpolated = np.clip((np.arange(head_dim // 2, dtype=np.float64) - low) / (high - low), 0.0, 1.0)
    mixed = inverse / factor * interpolated + inverse * (1 - interpolated)
    return mixed, _yarn_attention_factor(source, scaling, factor)


def _yarn_attention_factor(source: str, scaling: Mapping[str, Any], factor: float) -> float:
    def scale(multiplier: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0

    if scaling.get("attention_factor") is not None:
        return _number(source, scaling, "attention_factor")
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return scale(_number(source, scaling, "mscale")) / scale(_number(source, scaling, "mscale_all_dim"))
    return scale(1.0)
