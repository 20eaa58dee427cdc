"""A GGUF file as a :class:`Checkpoint`: Hugging Face names and layout, float32, one tensor at a time.

The weights stay in the mapped file; each call dequantises one tensor with the ``gguf`` package, so the most that is
in memory beyond the file's own pages is the largest tensor as float32.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from ekiden.models.architectures.gguf_metadata import ROPE_FACTORS, hf_name, rotary_halves, spec_from_metadata
from ekiden.models.architectures.spec import ModelSpec
from ekiden.models.errors import ModelError
from ekiden.models.gguf_file import GGUFFile, MetadataValue, TensorInfo

_ROTATED = {".self_attn.q_proj.": "num_heads", ".self_attn.k_proj.": "num_kv_heads"}


class GGUFCheckpoint:
    """The weights of one GGUF file.

    Raises:
        ModelError: the file is damaged, or its architecture or a type in it is not supported.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GGUFFile(path)
        self._infos = {name: info for info in self._file.tensors.values() if (name := hf_name(info.name)) is not None}
        shapes = {name: info.shape for name, info in self._infos.items()}
        self.spec: ModelSpec = spec_from_metadata(str(path), self.metadata, shapes, self._rope_factors())

    @property
    def metadata(self) -> dict[str, MetadataValue]:
        """Every key of the file; arrays of numbers are numpy arrays over the mapped file."""
        return self._file.metadata

    def names(self) -> frozenset[str]:
        return frozenset(self._infos)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of tensor ``name``, which must be among :meth:`names`."""
        return self._infos[name].shape

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor ``name`` as float32, ``[out_features, in_features]`` for a matrix.

        Raises:
            ModelError: there is no such tensor, or its shape does not fit its place.
        """
        info = self._infos.get(name)
        if info is None:
            raise ModelError(f"{self.path}: tensor {name!r} is missing; fetch or convert the model again")
        values = self._dequantise(info)
        if self.spec.family == "llama":
            for part, heads in _ROTATED.items():
                if part in name:
                    num_heads: int = getattr(self.spec, heads)
                    if values.shape[0] != num_heads * self.spec.head_dim:
                        raise ModelError(
                            f"{self.path}: tensor {info.name!r} has the shape {list(values.shape)}, not "
                            f"{num_heads * self.spec.head_dim} rows; fetch or convert the model again"
                        )
                    values = rotary_halves(values, num_heads)
        return values

    def _rope_factors(self) -> npt.NDArray[np.float32] | None:
        info = self._file.tensors.get(ROPE_FACTORS)
        return None if info is None else self._dequantise(info).reshape(-1)

    def _dequantise(self, info: TensorInfo) -> npt.NDArray[np.float32]:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        raw = self._file.raw(info)
        if info.type_name == "F32":
            return raw.view("<f4").reshape(info.shape).astype(np.float32)
        if info.type_name == "F16":
            return raw.view("<f2").reshape(info.shape).astype(np.float32)
        rows = raw.reshape(*info.shape[:-1], -1)
        values = dequantize(rows, GGMLQuantizationType(info.type_id))
        return np.ascontiguousarray(values.reshape(info.shape), dtype=np.float32)
