"""Rotary embedding frequencies, computed once when a model is loaded, so that the graph holds plain constants.

The scaling rules are those of the ``transformers`` package (``modeling_rope_utils.py``):

- ``linear``: every frequency divided by ``factor`` (position interpolation, arXiv:2306.15595);
- ``llama3``: long wavelengths divided, short ones kept, a smooth transition between them (Llama 3.1);
- ``yarn``: interpolation and extrapolation mixed per dimension, with an attention factor (arXiv:2309.00071).

All arithmetic is float64; the graph builder rounds to float32 once.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ekiden.models.architectures.fields import Fields
from ekiden.models.architectures.spec import RopeSpec
from ekiden.models.errors import ModelError, cut


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
        source: the file that errors name.
        theta: the base of the frequencies, a positive number.
        scaling: ``rope_type`` and that type's numbers, as in a Hugging Face configuration; empty for none.
        max_position_embeddings: the original context length for yarn when ``scaling`` does not give it.
        frequency_factors: ``[head_dim / 2]`` divisors (GGUF's ``rope_freqs.weight``), applied before any scaling.

    Raises:
        ModelError: a type that is not supported, or a number that is missing or out of range.
    """
    inverse = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if frequency_factors is not None:
        if frequency_factors.shape != inverse.shape or not (frequency_factors > 0).all():
            raise ModelError(f"{source}: rope_freqs.weight must be {len(inverse)} positive numbers; fetch it again")
        inverse = inverse / frequency_factors.astype(np.float64)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    fields = Fields(f"{source} (rope scaling)", scaling)
    attention_factor = 1.0
    if kind == "linear":
        inverse = inverse / fields.number("factor")
    elif kind == "llama3":
        inverse = _llama3(fields, inverse)
    elif kind == "yarn":
        inverse, attention_factor = _yarn(fields, inverse, theta, max_position_embeddings)
    elif kind != "default":
        raise ModelError(
            f"{source}: rope scaling {cut(kind)} is not supported (default, linear, llama3, yarn are); "
            "export the model with Optimum-Intel and give the OpenVINO folder"
        )
    return RopeSpec(inverse_frequencies=tuple(float(value) for value in inverse), attention_factor=attention_factor)


def _llama3(fields: Fields, inverse: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    factor, low, high, original = map(fields.number, names)
    if high <= low:
        raise ModelError(f"{fields.source}: high_freq_factor {high} is not above low_freq_factor {low}")
    wavelength = 2 * math.pi / inverse
    smooth = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
    return (1 - smooth) * inverse / factor + smooth * inverse


def _yarn(
    fields: Fields, inverse: npt.NDArray[np.float64], theta: float, max_position_embeddings: int
) -> tuple[npt.NDArray[np.float64], float]:
    head_dim = 2 * len(inverse)
    factor = fields.number("factor")
    original = fields.number("original_max_position_embeddings", max_position_embeddings)

    def dimension_of(rotations: float) -> float:
        """The dimension that turns ``rotations`` times over the original context."""
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension_of(fields.number("beta_fast", 32.0))
    high = dimension_of(fields.number("beta_slow", 1.0))
    if not fields.has("truncate") or fields.get("truncate"):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # keeps the slope of the ramp finite
    interpolated = np.clip((np.arange(len(inverse), dtype=np.float64) - low) / (high - low), 0.0, 1.0)
    mixed = inverse / factor * interpolated + inverse * (1 - interpolated)
    attention_factor = yarn_scale(factor)
    if fields.get("mscale") and fields.get("mscale_all_dim"):
        over, under = (yarn_scale(factor, fields.number(key)) for key in ("mscale", "mscale_all_dim"))
        attention_factor = over / under
    return mixed, fields.number("attention_factor", attention_factor)


def yarn_scale(factor: float, multiplier: float = 1.0) -> float:
    """Yarn's attention factor for a context stretched ``factor`` times."""
    return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0
