"""A GGUF file as a :class:`Checkpoint`: Hugging Face names and layout, float32, one tensor at a time.

The weights stay in the mapped file. Each call dequantises one tensor with the ``gguf`` package, so that the memory
needed beyond the file's own pages is the largest tensor as float32.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from ekiden.models.architectures.gguf_metadata import ROPE_FACTORS, hf_name, rotary_halves, spec_from_metadata
from ekiden.models.architectures.spec import ModelSpec
from ekiden.models.gguf_file import GGUFFile, TensorInfo


class GGUFCheckpoint:
    """The weights of one GGUF file; ``metadata`` holds every key of the file.

    Raises:
        ModelError: the file is damaged, or its architecture or a type in it is not supported.
    """

    def __init__(self, path: Path) -> None:
        self._file = GGUFFile(path)
        self.metadata = self._file.metadata
        self._infos = {name: info for info in self._file.tensors.values() if (name := hf_name(info.name)) is not None}
        self.shapes = {name: info.shape for name, info in self._infos.items()}
        factors = self._file.tensors.get(ROPE_FACTORS)
        self.spec: ModelSpec = spec_from_metadata(
            str(path), self.metadata, self.shapes, None if factors is None else self._dequantise(factors).reshape(-1)
        )

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor ``name`` as float32, ``[out_features, in_features]`` for a matrix.

        It must be there, with the shape that :attr:`spec` demands (``weights.check_weights``).
        """
        values = self._dequantise(self._infos[name])
        for part, heads in (("q_proj", self.spec.num_heads), ("k_proj", self.spec.num_kv_heads)):
            if self.spec.family == "llama" and f".self_attn.{part}." in name:
                return rotary_halves(values, heads)
        return values

    def _dequantise(self, info: TensorInfo) -> npt.NDArray[np.float32]:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        rows = self._file.raw(info).reshape(*info.shape[:-1], -1)
        values = dequantize(rows, GGMLQuantizationType(info.type_id))
        return np.ascontiguousarray(values.reshape(info.shape), dtype=np.float32)
