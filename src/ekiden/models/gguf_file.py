"""Reads the GGUF container: its metadata and its table of tensors. The content of the file is not trusted.

Rules of this file:

1. Every count is checked against the bytes that are left in the file before anything is allocated. A hostile header
   can therefore take no more memory than the file is long, and a truncated file is noticed before a tensor is read.
2. Every fault ends as a :class:`ModelError` that names the file and the fault and says what to do.
3. The ``gguf`` package dequantises the weights, but its reader is not used: it builds a numpy array for each string,
   which takes 5 s for a vocabulary of 49,152 tokens, against 0.1 s here.

The format is described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import mmap
import struct
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ekiden.models.errors import ModelError, cut
from ekiden.models.files import unreadable

MAGIC = b"GGUF"
MAX_DIMENSIONS = 4
MAX_KEYS = 65_536
MAX_TENSORS = 65_536
MAX_NUMBERS = 1 << 24
MAX_TEXTS = 1 << 22
MAX_NESTING = 3
MAX_KEY = (1 << 16) - 1
MAX_TEXT = 1 << 20
"""Bytes of one text: chat templates have thousands."""
DEFAULT_ALIGNMENT = 32

# GGML type number -> name, elements in a block, bytes in a block.
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}

# Metadata value type -> struct format of one little-endian scalar.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

MetadataValue = str | int | float | bool | list[Any] | npt.NDArray[Any]


class TensorInfo(NamedTuple):
    """Where a tensor lies: ``offset`` in bytes from the file's start, ``shape`` with the slowest dimension first."""

    name: str
    type_id: int
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class GGUFFile:
    """An open GGUF file: ``metadata`` and ``tensors``, with the weights left on disk until :meth:`raw` maps them.

    Raises:
        ModelError: the file is not GGUF, has an unknown version, is truncated or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                if (magic := file.read(4)) != MAGIC:
                    raise ModelError(f"{path}: not a GGUF file (it begins with {magic!r}); give a .gguf model file")
                self._data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except OSError as error:
            raise unreadable(path, error) from error
        self._size, self._position = len(self._data), len(MAGIC)
        self._check_version()
        tensor_count = self._count("number of tensors", 8 + 4 + 4 + 8, MAX_TENSORS)
        self.metadata: dict[str, MetadataValue] = self._read_metadata()
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 8 or alignment % 8 or alignment > 1 << 20:
            raise ModelError(
                f"{path}: general.alignment is {alignment!r:.40}, not a multiple of 8; fetch the file again"
            )
        self.tensors: dict[str, TensorInfo] = self._read_tensors(tensor_count, alignment)

    def raw(self, info: TensorInfo) -> npt.NDArray[np.uint8]:
        """The tensor's bytes as a read-only view of the mapped file, ``[num_bytes]``."""
        return np.frombuffer(self._data, dtype=np.uint8, count=info.num_bytes, offset=info.offset)

    # --- the header, read from front to back; every read is checked against the end of the file

    def _failure(self, what: str) -> ModelError:
        return ModelError(f"{self.path}: {what}; the file is damaged or incomplete, fetch it again")

    def _unpack(self, fmt: str) -> Any:
        try:
            (value,) = struct.unpack_from("<" + fmt, self._data, self._position)
        except struct.error as error:
            raise self._failure(f"cut short at byte {self._size}, inside its header") from error
        self._position += struct.calcsize("<" + fmt)
        return value

    def _count(self, what: str, least_bytes_each: int, limit: int) -> int:
        """Read a 64-bit count and check that the rest of the file can hold so many items."""
        value: int = self._unpack("Q")
        if value * least_bytes_each > self._size - self._position:
            raise self._failure(f"{what} is {value:,}, more than the file can hold")
        if value > limit:
            raise self._failure(f"{what} is {value:,}, over the limit of {limit:,}")
        return value

    def _read_string(self, what: str, limit: int = MAX_TEXT) -> str:
        length = self._count(f"length of {what}", 1, limit)
        start = self._position
        self._position = start + length
        try:
            return self._data[start : self._position].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._failure(f"{what} is not valid UTF-8") from error

    def _check_version(self) -> None:
        version: int = self._unpack("I")
        if version in (2 << 24, 3 << 24):
            raise ModelError(
                f"{self.path}: this GGUF file is big-endian; convert it to little-endian (`gguf-convert-endian`)"
            )
        if version not in (2, 3):
            raise ModelError(f"{self.path}: GGUF version {version} is not supported; convert the model again")

    def _read_metadata(self) -> dict[str, MetadataValue]:
        result: dict[str, MetadataValue] = {}
        for _ in range(self._count("number of metadata keys", 8 + 4 + 1, MAX_KEYS)):
            key = self._read_string("a metadata key", MAX_KEY)
            if key in result:
                raise self._failure(f"metadata key {cut(key)} occurs twice")
            result[key] = self._read_value(key, self._unpack("I"), 0)
        return result

    def _read_value(self, key: str, type_id: int, depth: int) -> MetadataValue:
        if type_id in _SCALARS:
            scalar: MetadataValue = self._unpack(_SCALARS[type_id])
            return scalar
        if type_id == _STRING:
            return self._read_string(key)
        if type_id != _ARRAY or depth == MAX_NESTING:
            raise self._failure(f"metadata key {cut(key)} has the unknown value type {type_id}")
        item_type: int = self._unpack("I")
        if item_type in _SCALARS:
            dtype = np.dtype("<" + _SCALARS[item_type])
            length = self._count(f"length of {key}", dtype.itemsize, MAX_NUMBERS)
            items = np.frombuffer(self._data, dtype=dtype, count=length, offset=self._position)
            self._position += items.nbytes
            return items
        if item_type == _STRING:
            return self._read_strings(key)
        length = self._count(f"length of {key}", 12, MAX_KEYS)
        return [self._read_value(key, item_type, depth + 1) for _ in range(length)]

    def _read_strings(self, key: str) -> list[str]:
        """An array of strings. Reading a vocabulary takes most of the time, so this loop is written out."""
        length = self._count(f"length of {key}", 8, MAX_TEXTS)
        unpack_length = struct.Struct("<Q").unpack_from
        data, position, size = self._data, self._position, self._size
        result: list[str] = []
        try:
            for _ in range(length):
                end = position + 8 + unpack_length(data, position)[0]
                if end > size:
                    raise self._failure(f"cut short at byte {size}, inside {key}")
                if end - position > MAX_TEXT + 8:
                    raise self._failure(f"item {len(result)} of {key} is {end - position - 8:,} bytes long")
                result.append(data[position + 8 : end].decode("utf-8"))
                position = end
        except struct.error as error:
            raise self._failure(f"cut short at byte {size}, inside {key}") from error
        except UnicodeDecodeError as error:
            raise self._failure(f"item {len(result)} of {key} is not valid UTF-8") from error
        self._position = position
        return result

    def _read_tensors(self, count: int, alignment: int) -> dict[str, TensorInfo]:
        result: dict[str, TensorInfo] = {}
        for _ in range(count):
            tensor = self._read_tensor()
            if tensor.name in result:
                raise self._failure(f"tensor {cut(tensor.name)} occurs twice")
            result[tensor.name] = tensor
        start = (self._position + alignment - 1) // alignment * alignment
        for name, tensor in result.items():
            end = start + tensor.offset + tensor.num_bytes
            if end > self._size:
                raise self._failure(f"tensor {cut(name)} ends at byte {end:,}, past the end ({self._size:,})")
            result[name] = tensor._replace(offset=start + tensor.offset)
        return result

    def _read_tensor(self) -> TensorInfo:
        """One row of the table; its offset still counts from the end of the table."""
        name = self._read_string("a tensor's name", MAX_KEY)
        dimensions: int = self._unpack("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self._failure(f"tensor {cut(name)} has {dimensions} dimensions")
        shape = tuple(int(self._unpack("Q")) for _ in range(dimensions))[::-1]
        if min(shape) < 1 or max(shape) >= 1 << 40:
            raise self._failure(f"tensor {cut(name)} has the shape {list(shape)}")
        type_id: int = self._unpack("I")
        if type_id not in TENSOR_TYPES:
            names = ", ".join(type_name for type_name, _, _ in TENSOR_TYPES.values())
            raise ModelError(
                f"{self.path}: tensor {cut(name)} is of type {_type_name(type_id)}, which is not supported; "
                f"give a file whose types are among {names}"
            )
        _, block_elements, block_bytes = TENSOR_TYPES[type_id]
        if shape[-1] % block_elements:
            raise self._failure(f"rows of tensor {cut(name)} ({shape[-1]}) are not whole blocks of {block_elements}")
        return TensorInfo(name, type_id, shape, self._unpack("Q"), prod(shape) // block_elements * block_bytes)


def _type_name(type_id: int) -> str:
    """The name that the gguf package has for a type which is not in :data:`TENSOR_TYPES`."""
    from gguf.constants import GGMLQuantizationType

    return {kind.value: kind.name for kind in GGMLQuantizationType}.get(type_id, f"number {type_id}")
