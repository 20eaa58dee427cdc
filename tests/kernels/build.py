"""The kernels through ctypes: builds a library of them, and gives numpy arrays to its C functions."""

import ctypes
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Int8s = npt.NDArray[np.int8]

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
COMPILER = shutil.which("g++") or "g++"
BLOCK = 16
FLAGS = ("-std=c++17", "-O2", "-ffp-contract=off", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{KERNELS / 'src'}")
OF_ISA = {
    "avx2": ("-mavx2", "-mfma"),
    "avx2_vnni": ("-mavx2", "-mfma", "-mavxvnni"),
    "avx512_vnni": ("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni"),
}


class Isa(IntEnum):
    """The numbers of `ekiden::Isa`."""

    PORTABLE = 0
    AVX2 = 1
    AVX2_VNNI = 2
    AVX512_VNNI = 3


def compiled(folder: Path, sources: dict[Path, tuple[str, ...]]) -> dict[str, Path]:
    """Compiles `sources`, each with flags of its own, all at once. Gives the object files by their names."""
    objects = {source.stem: folder / f"{source.stem}.o" for source in sources}
    running = [
        subprocess.Popen([COMPILER, *FLAGS, *flags, "-c", str(source), "-o", str(objects[source.stem])])
        for source, flags in sources.items()
    ]
    assert [process.wait() for process in running] == [0] * len(running)
    return objects


def linked(library: Path, objects: Iterable[Path]) -> "Library":
    subprocess.run([COMPILER, "-shared", *map(str, objects), "-o", str(library)], check=True)
    return Library(ctypes.CDLL(str(library)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A linear layer's weights, int8 [n, k], and float32 [n] scales, as `ekiden::Weights` has them."""

    weights: Int8s
    scales: Floats
    group: int

    @property
    def n(self) -> int:
        return len(self.weights)

    @property
    def k(self) -> int:
        return self.weights.size // self.n

    @property
    def blocks(self) -> int:
        return -(-self.n // BLOCK)

    def padded(self) -> Int8s:
        """int8 [blocks, 16, k]."""
        padded = np.zeros((self.blocks * BLOCK, self.k), np.int8)
        padded[: self.n] = self.weights
        return padded.reshape(self.blocks, BLOCK, self.k)

    def packed(self) -> tuple[Int8s, Floats, npt.NDArray[np.int32]]:
        """Values, scales and sums."""
        padded = self.padded()
        values = np.ascontiguousarray(padded.reshape(self.blocks, BLOCK, self.k // 4, 4).transpose(0, 2, 1, 3))
        scales = np.zeros(self.blocks * BLOCK, np.float32)
        scales[: self.n] = self.scales
        groups = padded.reshape(self.blocks, BLOCK, self.k // self.group, self.group)
        sums = np.ascontiguousarray(groups.sum(-1, dtype=np.int32).transpose(0, 2, 1))
        return values, scales, sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What lies between two attentions, as `ekiden::block` has it; without `projections` after the last layer."""

    output: Linear
    gate_up: Linear
    down: Linear
    projections: tuple[Linear, ...]
    epsilon: float

    @property
    def sizes(self) -> list[int]:
        """Those of `ekiden::BlockSizes`."""
        widths = [each.n for each in self.projections[:2]] or [0, 0]
        groups = [self.gate_up.group, self.output.group, self.down.group]
        return [self.output.n, self.output.k, self.down.k, *widths, *groups]

    def packed(self) -> Int8s:
        parts = [part for each in (self.output, self.gate_up, self.down, *self.projections) for part in each.packed()]
        return np.concatenate([part.reshape(-1).view(np.int8) for part in parts])


@dataclass(frozen=True, slots=True)
class Library:
    """The C functions of one built library."""

    functions: ctypes.CDLL

    def usable(self, isa: Isa) -> bool:
        return bool(self.functions.ekiden_usable(int(isa)))

    def agrees(self, isa: Isa) -> bool:
        return bool(self.functions.ekiden_agrees(int(isa)))

    def prefer(self, isa: Isa) -> bool:
        return bool(self.functions.ekiden_prefer(int(isa)))

    @property
    def best(self) -> Isa:
        return Isa(self.functions.ekiden_best())

    def linear(
        self,
        isa: Isa,
        x: Floats,
        layer: Linear,
        *,
        rows: tuple[int, int] | None = None,
        blocks: tuple[int, int] | None = None,
    ) -> Floats:
        """float32 [rows, k] to [rows, n]; -1 where rows and blocks of channels were not asked for."""
        values, scales, sums = layer.packed()
        first_row, last_row = rows or (0, len(x))
        first_block, last_block = blocks or (0, layer.blocks)
        y = np.full((len(x), layer.n), -1, np.float32)
        self.functions.ekiden_linear(
            int(isa),
            _pointer(x),
            *map(ctypes.c_int64, (len(x), first_row, last_row)),
            _pointer(values),
            _pointer(scales),
            _pointer(sums),
            *map(ctypes.c_int64, (layer.n, layer.k, layer.group, first_block, last_block)),
            _pointer(y),
        )
        return y

    def block(self, isa: Isa, residual: Floats, attended: Floats, block: Block, *, parts: int = 1) -> list[Floats]:
        """The residual stream, and query, key and value unless the layer is the last; -1 where nothing was written."""
        widths = [block.output.n, *(each.n for each in block.projections)]
        outputs = [np.full((len(residual), width), -1, np.float32) for width in widths]
        sizes, packed = np.array(block.sizes, np.int64), block.packed()
        self.functions.ekiden_block(
            int(isa),
            _pointer(residual),
            _pointer(attended),
            ctypes.c_int64(len(residual)),
            _pointer(sizes),
            ctypes.c_float(block.epsilon),
            _pointer(packed),
            ctypes.c_int64(parts),
            *(_pointer(each) for each in outputs),
            *[None] * (4 - len(outputs)),
        )
        return outputs

    def gate(self, isa: Isa, gate: Floats, up: Floats) -> Floats:
        out = np.empty_like(gate)
        self.functions.ekiden_gate(int(isa), _pointer(gate), _pointer(up), ctypes.c_int64(gate.size), _pointer(out))
        return out

    def rms_norm(self, isa: Isa, x: Floats, epsilon: float, weight: Floats | None) -> Floats:
        out = np.empty_like(x)
        self.functions.ekiden_rms_norm(
            int(isa),
            _pointer(x),
            ctypes.c_int64(x.size),
            ctypes.c_float(epsilon),
            None if weight is None else _pointer(weight),
            _pointer(out),
        )
        return out


def equal_bits(a: Floats, b: Floats) -> bool:
    """Signs of zeros included; any NaN equals any other."""
    return bool(
        np.array_equal(np.isnan(a), np.isnan(b)) and (np.isnan(a) | (a.view(np.int32) == b.view(np.int32))).all()
    )


def _pointer(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return array.ctypes.data_as(ctypes.c_void_p)
