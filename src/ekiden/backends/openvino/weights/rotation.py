"""Rotates a model's residual stream, so that no channel of its hidden states sticks out.

The idea is QuaRot's (Ashkboos et al. 2024, arXiv 2404.00456) and, for the folding, SliceGPT's (2024, arXiv 2401.15024):
an RMS norm without weights commutes with an orthogonal matrix ``R``. The norms' weights are folded into the products
that follow, what writes to the residual stream (embedding, output projection, down) is multiplied by ``R`` and what
reads it (q, k, v, gate, up, head) by its transpose. Values and the output projection's columns are rotated within each
head. The model computes the same function; nothing of it is estimated from data.

``R`` is a product of Kronecker factors of at most 64 channels, as far as the width's prime factors allow: Hadamard
matrices for its twos and cosine transforms (DCT-II) for the rest, after a random sign for each channel. No entry of a
factor of size ``k`` is over ``sqrt(2 / k)``, and applying ``R`` to a row of ``n`` costs ``n`` times the sum of ``k``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ekiden.models.architectures.spec import Checkpoint, ModelSpec
from ekiden.models.architectures.weights import EMBEDDING, FINAL_NORM, HEAD

FloatArray = npt.NDArray[np.float32]

SEED = 0
"""Seed of the signs. Any does: they only keep a model's channels from lying along a row of a factor."""

_LARGEST_FACTOR = 64
_ROWS_AT_ONCE = 4096

_READ_AFTER_NORM = {
    "self_attn.q_proj": "input_layernorm",
    "self_attn.k_proj": "input_layernorm",
    "self_attn.v_proj": "input_layernorm",
    "mlp.gate_proj": "post_attention_layernorm",
    "mlp.up_proj": "post_attention_layernorm",
}
_WRITTEN_TO_THE_STREAM = ("self_attn.o_proj", "mlp.down_proj")


class Rotation:
    """An orthogonal matrix of size ``width``, kept as signs and Kronecker factors."""

    def __init__(self, width: int, seed: int = SEED) -> None:
        self.width = width
        self._signs = np.random.default_rng(seed).choice(np.array([-1, 1], np.float32), width)
        self._factors = [_factor(size) for size in factor_sizes(width)]

    def rows(self, x: FloatArray) -> FloatArray:
        """Each row of ``x [..., width]`` times the matrix."""
        turned = np.empty(x.shape, np.float32)
        flat, out = x.reshape(-1, self.width), turned.reshape(-1, self.width)
        for at in range(0, len(flat), _ROWS_AT_ONCE):
            part = flat[at : at + _ROWS_AT_ONCE] * self._signs
            for factor in self._factors:
                size = len(factor)
                # The last factor's axis goes to the front, so that after all of them the axes are in order again.
                product = part.reshape(-1, self.width // size, size) @ factor
                part = np.ascontiguousarray(product.swapaxes(1, 2))
            out[at : at + _ROWS_AT_ONCE] = part.reshape(-1, self.width)
        return turned

    def back(self, x: FloatArray) -> FloatArray:
        """Undo :meth:`rows`. A row's result has the same bits whatever rows are beside it."""
        part: FloatArray = x.reshape(-1, self.width)
        for factor in reversed(self._factors):
            size = len(factor)
            product = part.reshape(-1, size, self.width // size).swapaxes(1, 2) @ factor.T
            part = np.ascontiguousarray(product).reshape(-1, self.width)
        restored: FloatArray = part * self._signs
        return restored.reshape(x.shape)

    def columns(self, x: FloatArray) -> FloatArray:
        """The transposed matrix times ``x [width, n]``: what is written then comes out rotated."""
        return np.ascontiguousarray(self.rows(np.ascontiguousarray(x.T)).T)


@dataclass(frozen=True, slots=True)
class RotatedCheckpoint:
    """The tensors of the rotated model, each made when it is asked for. Its head is a tensor of its own."""

    spec: ModelSpec
    """The given model, not the rotated one."""
    inner: Checkpoint
    stream: Rotation
    head: Rotation

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {**self.inner.shapes, HEAD: self.inner.shapes[EMBEDDING]}

    def tensor(self, name: str) -> FloatArray:
        """See :class:`ekiden.models.architectures.spec.Checkpoint`."""
        read = self.inner.tensor
        if name == EMBEDDING:
            return self.stream.rows(read(name))
        if name == HEAD:
            weight = read(EMBEDDING if self.spec.tie_word_embeddings else HEAD)
            return self.stream.rows(weight * read(FINAL_NORM))
        if name == FINAL_NORM or name.endswith("layernorm.weight"):
            return np.ones_like(read(name))
        _, _, layer, *part, kind = name.split(".")
        return self._of_a_layer(f"model.layers.{layer}.", ".".join(part), kind, read(name))

    def _of_a_layer(self, prefix: str, part: str, kind: str, given: FloatArray) -> FloatArray:
        """A weight ``[out, in]`` or a bias ``[out]``."""
        if part == "self_attn.v_proj":
            given = self._heads_turned(given.T).T
        if kind == "bias":
            return self.stream.rows(given) if part in _WRITTEN_TO_THE_STREAM else np.ascontiguousarray(given)
        if norm := _READ_AFTER_NORM.get(part):
            return self.stream.rows(given * self.inner.tensor(f"{prefix}{norm}.weight"))
        if part == "self_attn.o_proj":
            given = self._heads_turned(given)
        return self.stream.columns(given) if part in _WRITTEN_TO_THE_STREAM else given

    def _heads_turned(self, x: FloatArray) -> FloatArray:
        """``x [..., heads * head_dim]`` with each head rotated."""
        return self.head.rows(x.reshape(*x.shape[:-1], -1, self.spec.head_dim)).reshape(x.shape)


def rotated(spec: ModelSpec, checkpoint: Checkpoint) -> tuple[ModelSpec, Checkpoint]:
    """The same model with its residual stream and its values rotated; its head is no longer its embedding."""
    turned = RotatedCheckpoint(spec, checkpoint, Rotation(spec.hidden_size), Rotation(spec.head_dim))
    return replace(spec, tie_word_embeddings=False), turned


def factor_sizes(width: int) -> list[int]:
    """Sizes whose product is ``width``: powers of two, then odd ones; over 64 only where a prime factor is."""
    twos = width & -width
    sizes: list[int] = []
    for primes in (_prime_factors(twos), _prime_factors(width // twos)):
        begun = len(sizes)
        for prime in primes:
            if len(sizes) > begun and sizes[-1] * prime <= _LARGEST_FACTOR:
                sizes[-1] *= prime
            else:
                sizes.append(prime)
    return sizes


def _prime_factors(number: int) -> list[int]:
    found: list[int] = []
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return [*found, number] if number > 1 else found


def _factor(size: int) -> FloatArray:
    """A Hadamard matrix for a power of two, else the orthonormal cosine transform DCT-II."""
    matrix: npt.NDArray[np.float64] = np.ones((1, 1))
    if size & (size - 1) == 0:
        while len(matrix) < size:
            matrix = np.block([[matrix, matrix], [matrix, -matrix]])
        matrix = matrix / np.sqrt(size)
    else:
        place = np.arange(size)
        matrix = np.sqrt(2 / size) * np.cos(np.pi * (place[:, None] + 0.5) * place / size)
        matrix[:, 0] = np.sqrt(1 / size)
    return matrix.astype(np.float32)
