"""Equal small constants become one node: axes, shapes and scalars, which every layer repeats, are a third of a graph.

A start walks over all nodes again and again, and its time goes with their number.
"""

import openvino as ov
from openvino import Node
from openvino.op import Constant

_SMALL_BYTES = 64


def share_small_constants(model: ov.Model) -> None:
    """Changes ``model`` in place; what it computes stays the same to the bit."""
    first: dict[tuple[str, tuple[int, ...], bytes], Node] = {}
    for node in model.get_ordered_ops():
        if isinstance(node, Constant) and node.get_byte_size() <= _SMALL_BYTES:
            key = (node.get_element_type().get_type_name(), tuple(node.shape), node.data.tobytes())
            if (shared := first.setdefault(key, node)) is not node:
                node.output(0).replace(shared.output(0))
