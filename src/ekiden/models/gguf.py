"""A GGUF file, or all parts of a split one, as a :class:`Checkpoint`: Hugging Face names and layout, float32, and one
tensor at a time.

The weights stay in the mapped file. Each call dequantises one tensor with the ``gguf`` package, so that the memory
needed beyond the file's own pages is the largest tensor as float32.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from ekiden.models.architectures.gguf_metadata import ROPE_FACTORS, hf_name, rotary_halves, spec_from_metadata
from ekiden.models.architectures.spec import ModelSpec
from ekiden.models.blocks import READERS, Blocks
from ekiden.models.errors import ModelError, cut
from ekiden.models.gguf_file import TENSOR_TYPES, GGUFFile, TensorInfo
from ekiden.models.gguf_parts import check_parts


class GGUFCheckpoint:
    """The weights of one GGUF file, or of all parts of a split one in order; ``metadata`` holds the first's keys.

    Raises:
        ModelError: a file is damaged, parts are missing or do not belong together, or the architecture or a type is not
            supported.
    """

    def __init__(self, *paths: Path) -> None:
        parts = [GGUFFile(path) for path in paths]
        check_parts(parts)
        self.metadata = parts[0].metadata
        self._places: dict[str, tuple[GGUFFile, TensorInfo]] = {}
        for part in parts:
            for name in self._places.keys() & part.tensors.keys():
                raise ModelError(f"{part.path}: tensor {cut(name)} is in another part as well; fetch the model again")
            self._places |= {name: (part, info) for name, info in part.tensors.items()}
        self._names = {hf: own for own in self._places if (hf := hf_name(own)) is not None}
        self.shapes = {name: self._places[own][1].shape for name, own in self._names.items()}
        factors = self._dequantise(ROPE_FACTORS).reshape(-1) if ROPE_FACTORS in self._places else None
        self.spec: ModelSpec = spec_from_metadata(str(paths[0]), self.metadata, self.shapes, factors)

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor ``name`` as float32, ``[out_features, in_features]`` for a matrix.

        It must be there, with the shape that :attr:`spec` demands (``weights.check_weights``).
        """
        values = self._dequantise(self._names[name])
        heads = self._interleaved_heads(name)
        return values if heads is None else rotary_halves(values, heads)

    def blocks(self, name: str) -> Blocks | None:
        """The matrix ``name`` in its own four bits; None for one that is stored with other than four."""
        info, rows = self._rows(self._names[name])
        read = READERS.get(TENSOR_TYPES[info.type_id][0])
        if read is None or len(info.shape) != 2:
            return None
        heads = self._interleaved_heads(name)
        # Only whole rows change places, so it makes no difference that they are still packed.
        return read(rows if heads is None else rotary_halves(rows, heads))

    def _interleaved_heads(self, name: str) -> int | None:
        """How many heads the rows of ``name`` hold whose rotary pairs are neighbours, as llama.cpp stores them."""
        for part, heads in (("q_proj", self.spec.num_heads), ("k_proj", self.spec.num_kv_heads)):
            if self.spec.family == "llama" and f".self_attn.{part}." in name:
                return heads
        return None

    def _rows(self, own_name: str) -> tuple[TensorInfo, npt.NDArray[np.uint8]]:
        file, info = self._places[own_name]
        return info, file.raw(info).reshape(*info.shape[:-1], -1)

    def _dequantise(self, own_name: str) -> npt.NDArray[np.float32]:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        info, rows = self._rows(own_name)
        values = dequantize(rows, GGMLQuantizationType(info.type_id))
        return np.ascontiguousarray(values.reshape(info.shape), dtype=np.float32)
