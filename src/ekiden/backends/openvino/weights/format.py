"""What a weight format is: an object that the graph's builder asks at the places below, and that holds no state.

1. ``prepare``: before anything is built, it may put another checkpoint in the model's place that computes the same;
2. ``matrix``: what a tensor becomes in the graph, embedding and head included;
3. ``product``, ``block`` and ``head``: how matrices are multiplied, where that takes more than a matrix product;
   ``extend``: the operations that OpenVINO has to be taught for it;
4. ``activation``: what stands between hidden states and the products that read them;
5. ``group`` and ``fuses_activation``: how the plugin is to compute the products;
6. ``annotate`` and ``states``: how the states that the head reads become the model's own, if they are others;
7. ``told`` and ``key``: what the lineage is told beside the name, and what a converted model is found again by.

Formats that differ at one of these inherit the rest from :class:`WeightFormat`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import Node, Output
from openvino import opset13 as op

from ekiden.models.architectures.spec import Checkpoint, ModelSpec
from ekiden.models.architectures.weights import EMBEDDING

FloatArray = npt.NDArray[np.float32]


class Reader(Enum):
    """The products that read the same hidden states."""

    QKV = "query, key and value"
    OUTPUT = "the attention's output projection"
    GATE_UP = "gate and up"
    DOWN = "down"
    HEAD = "the head"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """One format. ``name`` is what the user chooses and the lineage tells.

    ``dynamic_group``: how many channels of an activation share a scale when the plugin quantises it; 0 for none.
    ``fuses_activation``: whether the MLP's activation is computed within the gate's product. The plugin's fastest
    float32 kernel allows none.
    ``joins_products``: whether products that read the same states are computed as one, whose result is split again.
    ``details`` are further parameters of the format for the lineage. What a format makes of the same weights may
    change only together with ``conversion.CONVERTER_VERSION`` or :attr:`key`.
    """

    name: str
    dynamic_group: int = 0
    fuses_activation: bool = False
    joins_products: bool = False
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What a converted model is found again by: the name, and whatever else it depends on."""
        return self.name

    def told(self) -> dict[str, str]:
        """What the lineage is told beside the name."""
        return dict(self.details)

    def group(self, spec: ModelSpec, model: ov.Model) -> int:
        """How many channels of an activation share a scale in ``model``, a graph of ``spec``: :attr:`dynamic_group`."""
        return self.dynamic_group

    def prepare(self, spec: ModelSpec, checkpoint: Checkpoint) -> tuple[ModelSpec, Checkpoint]:
        """The model whose tensors the graph is built from: it computes what the given one does.

        Raises :class:`ekiden.models.errors.ModelError` when the format cannot hold this model.
        """
        return spec, checkpoint

    def matrix(self, checkpoint: Checkpoint, *names: str) -> Node:
        """The tensor of that name as a constant ``[out, in]`` in this format, followed by its conversion to float32.
        With :attr:`joins_products` also several, one after the other.

        Raises what ``checkpoint.tensor`` raises.
        """
        raise NotImplementedError

    def product(self, x: Node, checkpoint: Checkpoint, *names: str) -> Node:
        """Hidden states ``[batch, length, in]`` times a matrix of the layer, as :meth:`matrix` has it."""
        return op.matmul(x, self.matrix(checkpoint, *names), False, True)

    def extend(self, core: ov.Core) -> None:
        """Teach OpenVINO the operations that graphs of this format have beyond its own."""

    def block(
        self, spec: ModelSpec, checkpoint: Checkpoint, index: int, hidden: Node | Output, attended: Node
    ) -> Sequence[Output] | None:
        """All from the attention of layer ``index`` to the next one as one operation; None for one built of products.

        From the residual stream ``hidden`` and what attention gave, both ``[batch, length, channels]``: the residual
        stream, and unless the layer is the last the products with the next one's query, key and value, without biases.
        """
        return None

    def head(self, x: Node, checkpoint: Checkpoint, name: str, embedding: Node) -> Node:
        """The logits of hidden states ``[batch, length, hidden]``; ``embedding`` is the matrix of the embedding."""
        return op.matmul(x, embedding if name == EMBEDDING else self.matrix(checkpoint, name), False, True)

    def activation(self, x: Node, reader: Reader) -> Node:
        """Hidden states ``[batch, length, channels]`` as the products of ``reader`` are to read them."""
        return x

    def annotate(self, model: ov.Model, checkpoint: Checkpoint) -> None:
        """Note in a graph just built what :meth:`states` and :meth:`group` need of the given checkpoint."""

    def states(self, model: ov.Model) -> Callable[[FloatArray], FloatArray] | None:
        """What turns the states ``[n, hidden]`` that the head of ``model`` reads into the given model's; None: nothing.

        Each row's result has the same bits whatever rows are beside it.
        """
        return None


def joined(checkpoint: Checkpoint, names: Sequence[str]) -> FloatArray:
    """The tensors of these names, one after the other along their first axis."""
    tensors = [checkpoint.tensor(name) for name in names]
    return tensors[0] if len(tensors) == 1 else np.concatenate(tensors)
