"""Safetensors files as a :class:`Checkpoint`: one file, or shards with an index, read lazily as float32.

The format is a length, a JSON header and the bytes (https://github.com/huggingface/safetensors#format). It is read
here by hand because the package's numpy interface has no bfloat16, the type most models are published in. The header
is checked whole before any tensor is touched: its size, each offset against the file, each shape against its bytes.
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
    file: "_File"
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


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
            for name, entry in _File(path).entries().items():
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
                f"{entry.file.path}: tensor {name!r} is of type {entry.dtype}; {', '.join(_DTYPES)} are supported"
            )
        values = np.frombuffer(
            entry.file.data, dtype=_DTYPES[entry.dtype], count=prod(entry.shape), offset=entry.start
        ).reshape(entry.shape)
        if entry.dtype == "BF16":  # a bfloat16 is the upper half of a float32
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32)


def shards_of(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a folder: those its index names, or the one file there is.

    Raises:
        ModelError: an index that cannot be read, that points outside the folder, or that names a file not there.
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
            raise ModelError(f"{folder / name}: named by {INDEX} and not there; fetch the model again")
    return tuple(folder / name for name in names)


class _File:
    """One mapped file with its checked header."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise ModelError(f"{path}: cannot be read: {error}; check the path, or fetch the model again") from error

    def _fail(self, what: str) -> ModelError:
        return ModelError(f"{self.path}: {what}; the file is damaged or incomplete, fetch it again")

    def entries(self) -> dict[str, _Entry]:
        size = len(self.data)
        if size < 8:
            raise self._fail(f"only {size} bytes long")
        (length,) = struct.unpack_from("<Q", self.data, 0)
        if length > min(MAX_HEADER, size - 8):
            raise self._fail(f"its header of {length:,} bytes does not fit the file of {size:,}")
        try:
            header = json.loads(self.data[8 : 8 + length])
        except (ValueError, RecursionError) as error:
            raise self._fail("its header is not JSON") from error
        if not isinstance(header, dict):
            raise self._fail("its header is not a JSON object")
        base = 8 + length
        return {name: self._entry(name, item, base) for name, item in header.items() if name != "__metadata__"}

    def _entry(self, name: str, item: Any, base: int) -> _Entry:
        try:
            dtype, shape, (start, end) = item["dtype"], tuple(item["shape"]), item["data_offsets"]
        except (TypeError, KeyError, ValueError) as error:
            raise self._fail(f"the entry of tensor {name!r} is not understood") from error
        numbers = (*shape, start, end)
        if not isinstance(dtype, str) or not all(type(value) is int and 0 <= value < 1 << 48 for value in numbers):
            raise self._fail(f"the entry of tensor {name!r} is not understood")
        if start > end or base + end > len(self.data):
            raise self._fail(f"tensor {name!r} ends at byte {base + end:,}, past the end ({len(self.data):,})")
        if dtype in _DTYPES and prod(shape) * np.dtype(_DTYPES[dtype]).itemsize != end - start:
            raise self._fail(f"tensor {name!r} of shape {list(shape)} does not fill its {end - start:,} bytes")
        return _Entry(file=self, dtype=dtype, shape=shape, start=base + start, end=base + end)
