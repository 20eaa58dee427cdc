"""Turns a stateful decoder graph into the one that the runner uses: paged attention, and only the logits asked for.

After :func:`to_paged` the graph has the inputs that OpenVINO's paged attention needs (``input_ids [tokens]``,
``position_ids [tokens]``, ``past_lens [rows]``, ``subsequence_begins [rows + 1]``, ``block_indices``,
``block_indices_begins [rows + 1]``, ``max_context_len`` and the caches) and two that we add: ``state_rows [n]``, the
positions in the flat token axis whose last hidden states are wanted, and ``logit_rows [m]``, which of those ``n`` want
logits too. A gather selects the first as early as the graph allows: after the last attention, so that the rest of the
last layer computes only ``n`` tokens; otherwise before the head; otherwise after it. A second one, before the head,
selects those that it computes. What the head reads is the output ``states [n, hidden]``, if the head is found; before
it is quantised, where the graph does that itself.
"""

from collections.abc import Iterable

import openvino as ov
from openvino import Input, Node, Output, Type
from openvino import opset13 as op
from openvino._offline_transformations import paged_attention_transformation

from ekiden.backends.openvino.constants import share_small_constants
from ekiden.backends.openvino.kernels import BLOCK, LINEAR
from ekiden.models.errors import ModelError

STATE_ROWS = "state_rows"
LOGIT_ROWS = "logit_rows"
STATES = "states"

_PASSED_THROUGH = frozenset({"Convert", "Add", "Multiply", "Divide", "Tanh", "Subtract", "Clamp"})
"""Operations that may lie between the head and the result: element-wise, so rows may be selected before them."""

_QUANTISE = "FakeQuantize"
_ELEMENT_WISE = _PASSED_THROUGH | {"Power", "Sqrt", "Swish", "Sigmoid", "Gelu", "Relu", "Maximum", "Minimum", _QUANTISE}
_TOKENS_RANK = 3
"""After the transformation hidden states are ``[tokens, 1, hidden]`` or ``[1, tokens, hidden]``."""

_SLIDING_WINDOW_PORT = 10
_PAGED_ATTENTION = "PagedAttentionExtension"


def to_paged(model: ov.Model, sliding_window: int | None = None) -> None:
    """Transform ``model`` in place. Raises :class:`ModelError` when its attention or cache is not recognised."""
    if not model.get_sinks():
        raise ModelError(
            "the OpenVINO model has no key/value state; export it with Optimum-Intel for text generation "
            "(`optimum-cli export openvino --task text-generation-with-past`)"
        )
    try:
        paged_attention_transformation(model)
    except RuntimeError as error:
        raise ModelError(
            f"the model's attention cannot be turned into paged attention: {_last_line(error)}; "
            "only decoder-only models exported with key/value state work"
        ) from error
    attentions = [node for node in model.get_ops() if node.get_type_name() == _PAGED_ATTENTION]
    if not attentions:
        raise ModelError(
            "the model has no attention that can be turned into paged attention; give a decoder-only language model"
        )
    if sliding_window is not None:
        for node in attentions:
            node.input(_SLIDING_WINDOW_PORT).replace_source_output(op.constant(sliding_window, Type.i32).output(0))
    _gather_wanted_rows(model)
    share_small_constants(model)
    model.validate_nodes_and_infer_types()


def _gather_wanted_rows(model: ov.Model) -> None:
    state_rows, logit_rows = _rows_input(STATE_ROWS), _rows_input(LOGIT_ROWS)
    result = _logits_result(model)
    weights = _weights(model)
    head = _find_head(result, weights)
    target = result.input(0) if head is None else _read_by(head)
    entries = [target] if head is None else _entries_of_the_tail(model, target, weights) or [target]
    gathered: dict[tuple[str, int], Output] = {}
    for entry in entries:
        source = entry.get_source_output()
        key = (source.get_node().get_friendly_name(), source.get_index())
        if key not in gathered:
            gathered[key] = op.gather(source, state_rows, op.constant(_token_axis(source))).output(0)
        entry.replace_source_output(gathered[key])
    states = target.get_source_output()
    target.replace_source_output(op.gather(states, logit_rows, op.constant(_token_axis(states))).output(0))
    model.add_parameters([state_rows, logit_rows])
    if head is not None:
        given = op.result(states)
        given.output(0).set_names({STATES})
        model.add_results([given])


def _rows_input(name: str) -> Node:
    rows = op.parameter([-1], Type.i32, name=name)
    rows.output(0).set_names({name})
    return rows


def _entries_of_the_tail(model: ov.Model, head_input: Input, weights: set[str]) -> list[Input]:
    """The inputs at which hidden states enter the graph's tail: what follows the last attention, up to the head.

    The tail (output projection, MLP, norm) does not mix tokens, so it need only compute those whose logits are wanted.
    The result is empty if the tail has an operation that is not known to treat each token by itself.
    """
    earlier = _ancestors(node for node in model.get_ops() if node.get_type_name() == _PAGED_ATTENTION)
    tail: dict[str, Node] = {}
    entries: list[Input] = []
    todo = [head_input]
    while todo:
        entry = todo.pop()
        node = entry.get_source_output().get_node()
        name = node.get_friendly_name()
        if name in tail or name in weights:
            continue
        if name not in earlier and _token_by_token(node, weights):
            tail[name] = node
            todo += node.inputs()
        elif len(entry.get_source_output().get_partial_shape()) == _TOKENS_RANK:
            entries.append(entry)
        else:
            return []
    inside = tail.keys() | {head_input.get_node().get_friendly_name()}
    ports = (port for node in tail.values() for out in node.outputs() for port in out.get_target_inputs())
    return entries if all(port.get_node().get_friendly_name() in inside for port in ports) else []


def _token_by_token(node: Node, weights: set[str]) -> bool:
    """Whether a node's output for a token depends on that token alone."""
    kind = node.get_type_name()
    if kind == BLOCK:
        return True
    if kind in (LINEAR, "MatMul"):
        return _source_name(node.input_value(1)) in weights and _is_product(node)
    if kind == "ReduceMean":
        axes = node.input_value(1).get_node()
        last = (-1, _TOKENS_RANK - 1)
        return axes.get_type_name() == "Constant" and all(axis in last for axis in axes.get_vector().tolist())
    if kind == "VariadicSplit":
        axis = node.input_value(1).get_node()
        return axis.get_type_name() == "Constant" and list(axis.get_vector()) == [_TOKENS_RANK - 1]
    return kind in _ELEMENT_WISE or _sums_channel_groups(node)


def _sums_channel_groups(node: Node) -> bool:
    """Whether a node is one of the pair that splits each token's channels into groups and sums each group."""
    kind = node.get_type_name()
    if kind not in ("Reshape", "ReduceSum") or node.input_value(1).get_node().get_type_name() != "Constant":
        return False
    numbers: list[int] = node.input_value(1).get_node().get_vector().tolist()
    if kind == "ReduceSum":
        return node.input_value(0).get_node().get_type_name() == "Reshape" and numbers == [_TOKENS_RANK]
    # A zero keeps the size at its place: tokens and the batch of 1 stay as they are.
    return bool(node.get_attributes()["special_zero"]) and numbers[:-1] == [0, 0, -1]


def _source_name(value: Output) -> str:
    return str(value.get_node().get_friendly_name())


def _weights(model: ov.Model) -> set[str]:
    """Names of the constants and of the nodes that are computed from constants alone."""
    found: set[str] = set()
    for node in model.get_ordered_ops():
        inputs = [_source_name(value) for value in node.input_values()]
        if node.get_type_name() == "Constant" or (inputs and found.issuperset(inputs)):
            found.add(node.get_friendly_name())
    return found


def _ancestors(nodes: Iterable[Node]) -> set[str]:
    """Names of the nodes and of all nodes that they are computed from."""
    found: set[str] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node.get_friendly_name() not in found:
            found.add(node.get_friendly_name())
            todo += [value.get_node() for value in node.input_values()]
    return found


def _logits_result(model: ov.Model) -> Node:
    for result in model.get_results():
        if "logits" in result.output(0).get_names() | result.input_value(0).get_names():
            return result
    if len(model.get_results()) == 1:
        return model.get_results()[0]
    raise ModelError("the OpenVINO model has no output named 'logits'; export it for text generation")


def _find_head(result: Node, weights: set[str]) -> Node | None:
    """The MatMul that computes the logits, or None if other than element-wise operations follow it."""
    node = result.input_value(0).get_node()
    while node.get_type_name() in _PASSED_THROUGH:
        varying = [value for value in node.input_values() if _source_name(value) not in weights]
        if len(varying) != 1:
            return None
        node = varying[0].get_node()
    if not _is_product(node):
        return None
    return node if len(node.output(0).get_target_inputs()) == 1 else None


def _is_product(node: Node) -> bool:
    """Whether a node multiplies its first input, as it is, by a matrix."""
    kind = node.get_type_name()
    return kind == LINEAR or (kind == "MatMul" and not node.get_attributes().get("transpose_a", False))


def _read_by(head: Node) -> Input:
    """The input at which hidden states come to the head, or to the operation that quantises them for it."""
    before = head.input_value(0).get_node()
    return before.input(0) if before.get_type_name() == _QUANTISE else head.input(0)


def _token_axis(source: Output) -> int:
    """The axis of the tokens: 0 in ``[tokens, 1, hidden]``, 1 in a graph that kept a batch of 1 in front."""
    shape = source.get_partial_shape()
    batch_of_one = shape.rank.get_length() == 3 and shape[0].is_static and shape[0].get_length() == 1
    return 1 if batch_of_one else 0


def _last_line(error: Exception) -> str:
    """The last line of OpenVINO's message holds the reason; those before it name its source files."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
