"""Safetensors files as a :class:`Checkpoint`: one file, or shards with an index, read lazily as float32.

A file is a length, a JSON header and the tensors' bytes (https://github.com/huggingface/safetensors#format). This
module reads it without the package, whose numpy interface has no bfloat16, the type of most published models. The
whole header is checked before any tensor is read: its size, each offset against the file's length, each shape against
its bytes.
"""

import json
import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ekiden.models.errors import ModelError

MAX_HEADER = 100_000_000
INDEX = "model.safetensors.index.json"

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    data: mmap.mmap
    dtype: str
    shape: tuple[int, ...]
    start: int


class SafetensorsCheckpoint:
    """The weights of a folder.

    Args:
        paths: the shards, in any order.

    Raises:
        ModelError: a file is missing, cut short or damaged, or two files hold the same tensor.
    """

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self._entries: dict[str, _Entry] = {}
        for path in paths:
            for name, entry in _entries(path).items():
                if name in self._entries:
                    raise ModelError(f"{path}: tensor {name!r} is in another file as well; fetch the model again")
                self._entries[name] = entry
        self._where = str(paths[0].parent) if paths else "model"

    def names(self) -> frozenset[str]:
        return frozenset(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of tensor ``name``, which must be among :meth:`names`."""
        return self._entries[name].shape

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor ``name`` as float32 in its stored shape; raises :class:`ModelError` when it is not there."""
        entry = self._entries.get(name)
        if entry is None:
            raise ModelError(f"{self._where}: tensor {name!r} is missing; fetch the model again")
        if entry.dtype not in _DTYPES:
            raise ModelError(
                f"{entry.path}: tensor {name!r} is of type {entry.dtype}; {', '.join(_DTYPES)} are supported"
            )
        stored = np.frombuffer(entry.data, dtype=_DTYPES[entry.dtype], count=prod(entry.shape), offset=entry.start)
        values = stored.reshape(entry.shape)
        if entry.dtype == "BF16":  # a bfloat16 is the upper half of a float32
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32)


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
        weight_map = json.loads(index.read_bytes())["weight_map"]
        names = sorted({str(name) for name in weight_map.values()})
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise ModelError(f"{index}: not a readable index ({error}); fetch the model again") from error
    for name in names:
        if Path(name).name != name:
            raise ModelError(f"{index}: names a file outside its folder, {name!r}; fetch the model again")
        if not (folder / name).is_file():
            raise ModelError(f"{folder / name}: named by {INDEX} but missing; fetch the model again")
    return tuple(folder / name for name in names)


def _entries(path: Path) -> dict[str, _Entry]:
    """The tensors of one file, from its checked header."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise ModelError(f"{path}: cannot be read: {error}; check the path, or fetch the model again") from error
    size = len(data)
    if size < 8:
        raise _damaged(path, f"only {size} bytes long")
    (length,) = struct.unpack_from("<Q", data, 0)
    if length > min(MAX_HEADER, size - 8):
        raise _damaged(path, f"its header of {length:,} bytes does not fit the file of {size:,}")
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "its header is not JSON") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not a JSON object")
    return {name: _entry(path, data, 8 + length, name, item) for name, item in header.items() if name != "__metadata__"}


def _entry(path: Path, data: mmap.mmap, base: int, name: str, item: Any) -> _Entry:
    try:
        dtype, shape, (start, end) = item["dtype"], tuple(item["shape"]), item["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise _damaged(path, f"the entry of tensor {name!r} is not understood") from error
    numbers = (*shape, start, end)
    if not isinstance(dtype, str) or not all(type(value) is int and 0 <= value < 1 << 48 for value in numbers):
        raise _damaged(path, f"the entry of tensor {name!r} is not understood")
    if start > end or base + end > len(data):
        raise _damaged(path, f"tensor {name!r} ends at byte {base + end:,}, past the end ({len(data):,})")
    if dtype in _DTYPES and prod(shape) * np.dtype(_DTYPES[dtype]).itemsize != end - start:
        raise _damaged(path, f"tensor {name!r} of shape {list(shape)} does not fill its {end - start:,} bytes")
    return _Entry(path, data, dtype, shape, base + start)


def _damaged(path: Path, what: str) -> ModelError:
    return ModelError(f"{path}: {what}; the file is damaged or incomplete, fetch it again")
