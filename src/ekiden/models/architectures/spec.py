"""A decoder-only model as numbers: all that a graph builder needs besides the weights.

Weights have their Hugging Face names (``model.layers.0.self_attn.q_proj.weight``) and layout (rotary halves,
``[out_features, in_features]``) and are float32, whatever file they come from.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """A rotary embedding with its scaling applied.

    ``inverse_frequencies`` has ``head_dim / 2`` entries (radians per position). Cosine and sine are multiplied by
    ``attention_factor``, which is 1 except for yarn.
    """

    inverse_frequencies: tuple[float, ...]
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeSpec
    attention_bias: bool = False
    """Biases on q, k and v (Qwen2)."""
    output_bias: bool = False
    """A bias on the attention's output projection as well (Llama with ``attention_bias``)."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMS norm over each head of q and k before the rotary embedding (Qwen3)."""
    tie_word_embeddings: bool = False
    sliding_window: int | None = None

    @property
    def layer_weights(self) -> int:
        """How many numbers the layers' matrices hold, without embedding and head."""
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)


class Checkpoint(Protocol):
    """The weights of a model, read from disk one tensor at a time."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each tensor by its name; no tensor is read for it."""
        ...

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The dequantised tensor ``name``, which must be among :attr:`shapes`.

        Raises :class:`ekiden.models.errors.ModelError` when it is unreadable.
        """
        ...
