"""Builds a decoder-only language model as an OpenVINO graph from its weights.

Rules:
- the graph is stateful, as exporters write it (inputs ``input_ids``, ``attention_mask``, ``position_ids``,
  ``beam_idx``; keys and values in variables), because the paged transformation expects that form (``paged.py``);
- RMS norm, rotary embedding, attention and compressed weights are built from the exact operations by which the CPU
  plugin recognises them; an equivalent formula made of other operations runs several times slower;
- weights are read for one product at a time and released at once, so that few float32 tensors are in memory.

What matrices become in the graph is up to the weight format (``weights/``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import openvino as ov
from openvino import Node, Output, Type
from openvino import opset13 as op
from openvino.op.util import Variable, VariableInfo

from ekiden.backends.openvino.constants import share_small_constants
from ekiden.backends.openvino.weights.format import FloatArray, Reader, WeightFormat, joined
from ekiden.models.architectures.spec import Checkpoint, ModelSpec
from ekiden.models.architectures.weights import EMBEDDING, FINAL_NORM, HEAD

_TO_THE_END = 2**62
_MASKED = -65504.0


@dataclass(slots=True)
class _Build:
    """What the functions below share while one graph is built."""

    spec: ModelSpec
    checkpoint: Checkpoint
    weights: WeightFormat
    beam: Node
    batch: Node
    cosine: Node
    sine: Node
    mask: Node
    assignments: list[Node] = field(default_factory=list)


def build_model(spec: ModelSpec, checkpoint: Checkpoint, weights: WeightFormat) -> ov.Model:
    """The stateful graph of a Llama, Mistral, Qwen2 or Qwen3 model; output ``logits`` is ``[batch, length, vocab]``.

    Raises what ``checkpoint.tensor`` and ``weights.prepare`` raise.
    """
    given = checkpoint
    spec, checkpoint = weights.prepare(spec, checkpoint)
    input_ids = _input("input_ids", [-1, -1], Type.i64)
    attention_mask = _input("attention_mask", [-1, -1], Type.i64)
    position_ids = _input("position_ids", [-1, -1], Type.i64)
    beam_idx = _input("beam_idx", [-1], Type.i32)

    batch = op.gather(op.shape_of(input_ids), _integers(0), _integer(0))
    cosine, sine = _rotary_tables(spec, position_ids, batch)
    build = _Build(spec, checkpoint, weights, beam_idx, batch, cosine, sine, _additive_mask(attention_mask))

    embedding = weights.matrix(checkpoint, EMBEDDING)
    hidden = op.gather(embedding, op.convert(input_ids, Type.i32), op.constant(np.int32(0)))
    projected = _query_key_value(build, hidden, 0)
    for index in range(spec.num_layers):
        hidden, projected = _between_attentions(build, hidden, _attention(build, projected, index), index)
    hidden = _rms_norm(hidden, checkpoint.tensor(FINAL_NORM), spec.rms_norm_eps)
    head = EMBEDDING if spec.tie_word_embeddings else HEAD
    result = op.result(weights.head(weights.activation(hidden, Reader.HEAD), checkpoint, head, embedding))
    result.output(0).set_names({"logits"})
    inputs = [input_ids, attention_mask, position_ids, beam_idx]
    model = ov.Model([result], build.assignments, inputs, spec.family)
    share_small_constants(model)
    weights.annotate(model, given)
    return model


def _between_attentions(
    build: _Build, hidden: Node | Output, attended: Node, index: int
) -> tuple[Node | Output, Sequence[Node | Output]]:
    """The rest of a layer after its attention, and query, key and value of the next one, if there is one."""
    spec, prefix = build.spec, f"model.layers.{index}."
    whole = build.weights.block(spec, build.checkpoint, index, hidden, attended)
    if whole is not None:
        return whole[0], _each_biased(build, whole[1:], _projections(index + 1))
    attended = build.weights.activation(attended, Reader.OUTPUT)
    hidden = op.add(hidden, _linear(build, attended, [prefix + "self_attn.o_proj"], spec.output_bias))
    norm = build.checkpoint.tensor(prefix + "post_attention_layernorm.weight")
    hidden = op.add(hidden, _mlp(build, _rms_norm(hidden, norm, spec.rms_norm_eps), prefix + "mlp."))
    return hidden, _query_key_value(build, hidden, index + 1) if index + 1 < spec.num_layers else ()


def _projections(index: int) -> list[str]:
    return [f"model.layers.{index}.self_attn.{each}" for each in ("q_proj", "k_proj", "v_proj")]


def _query_key_value(build: _Build, hidden: Node, index: int) -> Sequence[Node | Output]:
    spec = build.spec
    norm = build.checkpoint.tensor(f"model.layers.{index}.input_layernorm.weight")
    x = build.weights.activation(_rms_norm(hidden, norm, spec.rms_norm_eps), Reader.QKV)
    return _linears(build, x, _projections(index), spec.attention_bias)


def _attention(build: _Build, projected: Sequence[Node | Output], index: int) -> Node:
    """What attention gives, ``[batch, length, heads * head_dim]``, of the products for query, key and value."""
    spec, prefix = build.spec, f"model.layers.{index}.self_attn."
    query, key, value = projected
    query = _heads(build, query, spec.num_heads, prefix + "q_norm.weight")
    key = _heads(build, key, spec.num_kv_heads, prefix + "k_norm.weight")
    value = _heads(build, value, spec.num_kv_heads, None)
    query, key = _rotate(build, query), _rotate(build, key)
    key = _cached(build, key, f"past_key_values.{index}.keypresent.{index}.key")
    value = _cached(build, value, f"past_key_values.{index}.valuepresent.{index}.value")
    key, value, scale = _repeat_kv(build, key), _repeat_kv(build, value), _scalar(spec.head_dim**-0.5)
    attended = op.scaled_dot_product_attention(query, key, value, build.mask, scale, causal=False)
    return op.reshape(op.transpose(attended, _integers(0, 2, 1, 3)), _integers(0, 0, -1), True)


def _mlp(build: _Build, x: Node, prefix: str) -> Node:
    bias = build.spec.mlp_bias
    x = build.weights.activation(x, Reader.GATE_UP)
    gate, up = _linears(build, x, [prefix + "gate_proj", prefix + "up_proj"], bias)
    if build.weights.fuses_activation:
        gated = op.multiply(op.swish(gate), up)
    else:
        # In this order no activation is fused into the matrix product, whose fastest float32 kernel allows none.
        gated = op.multiply(op.multiply(up, gate), op.sigmoid(gate))
    return _linear(build, build.weights.activation(gated, Reader.DOWN), [prefix + "down_proj"], bias)


def _heads(build: _Build, x: Node | Output, heads: int, norm_name: str | None) -> Node:
    """``[batch, length, heads * head_dim]`` to ``[batch, heads, length, head_dim]``, each head normed if asked."""
    split = op.reshape(x, _integers(0, 0, heads, build.spec.head_dim), True)
    if build.spec.qk_norm and norm_name is not None:
        split = _rms_norm(split, build.checkpoint.tensor(norm_name), build.spec.rms_norm_eps)
    return op.transpose(split, _integers(0, 2, 1, 3))


def _rotate(build: _Build, x: Node) -> Node:
    """The rotary embedding in the layout of halves: ``x * cos + rotate_half(x) * sin``."""
    half = build.spec.head_dim // 2
    upper = op.slice(x, _integers(half), _integers(_TO_THE_END), _integers(1), _integers(3))
    lower = op.slice(x, _integers(0), _integers(half), _integers(1), _integers(3))
    minus_one = op.constant(np.full((1, 1, 1, 1), -1, np.float32))
    rotated = op.concat([op.multiply(upper, minus_one), lower], -1)
    return op.add(op.multiply(x, build.cosine), op.multiply(rotated, build.sine))


def _rotary_tables(spec: ModelSpec, position_ids: Node, batch: Node) -> tuple[Node, Node]:
    """Cosine and sine for the given positions, each ``[batch, 1, length, head_dim]``."""
    frequencies = np.asarray(spec.rope.inverse_frequencies, np.float32).reshape(1, -1, 1)
    positions = op.convert(op.unsqueeze(position_ids, _integer(1)), Type.f32)
    shape = op.concat([batch, _integers(1, 1)], 0)
    spread = op.broadcast(op.constant(frequencies), shape, broadcast_spec="BIDIRECTIONAL")
    angles = op.transpose(op.matmul(spread, positions, False, False), _integers(0, 2, 1))
    angles = op.concat([angles, angles], -1)
    cosine, sine = op.cos(angles), op.sin(angles)
    if spec.rope.attention_factor != 1.0:
        factor = _scalar(spec.rope.attention_factor)
        cosine, sine = op.multiply(cosine, factor), op.multiply(sine, factor)
    return op.unsqueeze(cosine, _integer(1)), op.unsqueeze(sine, _integer(1))


def _additive_mask(attention_mask: Node) -> Node:
    """0 for attended positions, very negative for others. The stateful graph needs it; the paged form does without."""
    ignored = op.subtract(_scalar(1.0), op.convert(attention_mask, Type.f32))
    return op.unsqueeze(op.multiply(ignored, _scalar(_MASKED)), _integers(1, 2))


def _cached(build: _Build, fresh: Node, name: str) -> Node:
    """Append to a state variable along the length: the pattern by which the paged transformation finds the cache."""
    spec = build.spec
    info = VariableInfo()
    info.data_shape = ov.PartialShape([-1, spec.num_kv_heads, -1, spec.head_dim])
    info.data_type = Type.f32
    info.variable_id = name
    variable = Variable(info)
    empty = op.concat([build.batch, _integers(spec.num_kv_heads, 0, spec.head_dim)], 0)
    past = op.read_value(op.broadcast(_scalar(0.0), empty), variable)
    joined = op.concat([op.gather(past, build.beam, _integer(0)), fresh], 2)
    build.assignments.append(op.assign(joined, variable))
    return joined


def _repeat_kv(build: _Build, x: Node) -> Node:
    """Repeat each KV head for every query head that shares it."""
    spec = build.spec
    groups = spec.num_heads // spec.num_kv_heads
    if groups == 1:
        return x
    shape = op.shape_of(x)
    outer = op.gather(shape, _integers(0, 1), _integer(0))
    inner = op.gather(shape, _integers(2, 3), _integer(0))
    target = op.concat([outer, _integers(groups), inner], 0)
    repeated = op.broadcast(op.unsqueeze(x, _integer(2)), target, broadcast_spec="BIDIRECTIONAL")
    return op.reshape(repeated, _integers(0, spec.num_heads, -1, spec.head_dim), True)


def _linears(build: _Build, x: Node, names: Sequence[str], bias: bool) -> Sequence[Node | Output]:
    """The products of several matrices with the same states, computed as one where the format joins them."""
    if not build.weights.joins_products:
        return [_linear(build, x, [name], bias) for name in names]
    widths = [build.checkpoint.shapes[name + ".weight"][0] for name in names]
    parts: list[Output] = op.variadic_split(_linear(build, x, names, bias), _integer(2), _integers(*widths)).outputs()
    return parts


def _linear(build: _Build, x: Node, names: Sequence[str], bias: bool) -> Node:
    """The product with a matrix, or with several one after the other."""
    product = build.weights.product(x, build.checkpoint, *(name + ".weight" for name in names))
    return _biased(build, product, names) if bias else product


def _each_biased(build: _Build, products: Sequence[Output], names: Sequence[str]) -> Sequence[Node | Output]:
    if not build.spec.attention_bias:
        return products
    return [_biased(build, product, [name]) for product, name in zip(products, names, strict=False)]


def _biased(build: _Build, product: Node | Output, names: Sequence[str]) -> Node:
    biases = joined(build.checkpoint, [name + ".bias" for name in names])
    return op.add(product, op.constant(biases.reshape(1, 1, -1)))


def _rms_norm(x: Node | Output, weight: FloatArray, epsilon: float) -> Node:
    mean = op.reduce_mean(op.power(x, _scalar(2.0)), _integers(-1), True)
    inverse = op.divide(_scalar(1.0), op.sqrt(op.add(mean, _scalar(epsilon))))
    rank = len((x.output(0) if isinstance(x, Node) else x).get_partial_shape())
    shaped = weight.reshape((1,) * (rank - 1) + (-1,))
    return op.multiply(op.constant(shaped), op.multiply(x, inverse))


def _input(name: str, shape: list[int], element_type: Type) -> Node:
    parameter = op.parameter(shape, element_type, name=name)
    parameter.output(0).set_names({name})
    return parameter


def _scalar(value: float) -> Node:
    return op.constant(np.float32(value))


def _integer(value: int) -> Node:
    return op.constant(np.int64(value))


def _integers(*values: int) -> Node:
    return op.constant(np.array(values, np.int64))
