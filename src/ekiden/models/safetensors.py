"""Safetensors files as a :class:`Checkpoint`: one file, or shards with an index, read lazily as float32.

A file is a length, a JSON header and the tensors' bytes (https://github.com/huggingface/safetensors#format). This
module reads it without the package, whose numpy interface has no bfloat16, the type of most published models. The
whole header is checked before any tensor is read: its size, each offset against the file's length, each shape against
its bytes.
"""

from math import prod
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ekiden.models.errors import ModelError, cut

MAX_HEADER = 100_000_000
INDEX = "model.safetensors.index.json"

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_COMPARED = 1 << 24
"""Bytes that are compared at once."""
_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]


class _Entry(msgspec.Struct):
    """A tensor as the header describes it. The offsets count from the end of the header."""

    dtype: str
    shape: tuple[_Size, ...]
    data_offsets: tuple[_Size, _Size]


class _Tensor(NamedTuple):
    path: Path
    entry: _Entry
    content: npt.NDArray[np.uint8]


class SafetensorsCheckpoint:
    """The weights of a folder.

    Args:
        paths: the shards, in any order.

    Raises:
        ModelError: a file is missing, cut short or damaged, or two files hold the same tensor.
    """

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self._tensors: dict[str, _Tensor] = {}
        for path in paths:
            found = _tensors(path)
            for name in found.keys() & self._tensors.keys():
                raise ModelError(f"{path}: tensor {cut(name)} is in another file as well; fetch the model again")
            self._tensors |= found
        self.shapes = {name: tensor.entry.shape for name, tensor in self._tensors.items()}

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor ``name``, which must be there, as float32; raises :class:`ModelError` for a type of no weights."""
        path, entry, content = self._tensors[name]
        if entry.dtype not in _DTYPES:
            raise ModelError(
                f"{path}: tensor {cut(name)} is of type {cut(entry.dtype)}; {', '.join(_DTYPES)} are supported"
            )
        stored = content.view(_DTYPES[entry.dtype]).reshape(entry.shape)
        if entry.dtype == "BF16":  # a bfloat16 is the upper half of a float32
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float32)

    def same(self, name: str, other: str) -> bool:
        """Whether two tensors are stored alike, in type, shape and values; False when one is missing."""
        if not {name, other} <= self._tensors.keys():
            return False
        one, two = self._tensors[name], self._tensors[other]
        if (one.entry.dtype, one.entry.shape) != (two.entry.dtype, two.entry.shape):
            return False
        starts = range(0, len(one.content), _COMPARED)
        return all(np.array_equal(one.content[at : at + _COMPARED], two.content[at : at + _COMPARED]) for at in starts)


def shards_of(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a folder: those that its index names; without an index, those that are there.

    Raises:
        ModelError: the index cannot be read, points outside the folder, or names a file that is missing.
    """
    index = folder / INDEX
    if not index.exists():
        single = folder / "model.safetensors"
        if single.exists():
            return (single,)
        return tuple(sorted(folder.glob("*.safetensors")))
    try:
        weight_map = msgspec.json.decode(index.read_bytes())["weight_map"]
        names = sorted({str(name) for name in weight_map.values()})
    except (msgspec.DecodeError, ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise ModelError(f"{index}: not a readable index ({error}); fetch the model again") from error
    for name in names:
        if Path(name).name != name:
            raise ModelError(f"{index}: names a file outside its folder, {cut(name)}; fetch the model again")
        if not (folder / name).is_file():
            raise ModelError(f"{folder / name}: named by {INDEX} but missing; fetch the model again")
    return tuple(folder / name for name in names)


def _tensors(path: Path) -> dict[str, _Tensor]:
    """The tensors of one file, from its checked header."""
    try:
        data = np.asarray(np.memmap(path, np.uint8, "r"))
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise ModelError(f"{path}: cannot be read: {error}; check the path, or fetch the model again") from error
    if len(data) < 8:
        raise _damaged(path, f"only {len(data)} bytes long")
    length = int(data[:8].view("<u8")[0])
    if length > min(MAX_HEADER, len(data) - 8):
        raise _damaged(path, f"its header of {length:,} bytes does not fit the file of {len(data):,}")
    try:
        header = msgspec.json.decode(data[8 : 8 + length].tobytes())
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _damaged(path, "its header is not JSON") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not a JSON object")
    content = data[8 + length :]
    return {name: _tensor(path, name, item, content) for name, item in header.items() if name != "__metadata__"}


def _tensor(path: Path, name: str, item: object, content: npt.NDArray[np.uint8]) -> _Tensor:
    try:
        entry = msgspec.convert(item, _Entry)
    except msgspec.ValidationError as error:
        raise _damaged(path, f"the entry of tensor {cut(name)} is not understood") from error
    start, end = entry.data_offsets
    if start > end or end > len(content):
        raise _damaged(path, f"tensor {cut(name)} ends at byte {end:,} of {len(content):,}, past the end")
    if entry.dtype in _DTYPES and prod(entry.shape) * np.dtype(_DTYPES[entry.dtype]).itemsize != end - start:
        raise _damaged(path, f"tensor {cut(name)} of shape {list(entry.shape)} does not fill its {end - start:,} bytes")
    return _Tensor(path, entry, content[start:end])


def _damaged(path: Path, what: str) -> ModelError:
    return ModelError(f"{path}: {what}; the file is damaged or incomplete, fetch it again")
