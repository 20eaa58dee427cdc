"""Which tensors a model of a given spec is made of, checked by name and shape before any is read."""

from collections.abc import Iterator
from typing import Protocol

from ekiden.models.architectures.spec import ModelSpec
from ekiden.models.errors import ModelError


class Shaped(Protocol):
    """What can tell a tensor's shape without reading it."""

    def names(self) -> frozenset[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...


def expected_shapes(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Each tensor that the graph of ``spec`` asks for, with its shape ``[out_features, in_features]``."""
    hidden, inner, head = spec.hidden_size, spec.intermediate_size, spec.head_dim
    query, key_value = spec.num_heads * head, spec.num_kv_heads * head
    yield "model.embed_tokens.weight", (spec.vocab_size, hidden)
    yield "model.norm.weight", (hidden,)
    if not spec.tie_word_embeddings:
        yield "lm_head.weight", (spec.vocab_size, hidden)
    matrices = (
        ("self_attn.q_proj", (query, hidden), spec.attention_bias),
        ("self_attn.k_proj", (key_value, hidden), spec.attention_bias),
        ("self_attn.v_proj", (key_value, hidden), spec.attention_bias),
        ("self_attn.o_proj", (hidden, query), spec.output_bias),
        ("mlp.gate_proj", (inner, hidden), spec.mlp_bias),
        ("mlp.up_proj", (inner, hidden), spec.mlp_bias),
        ("mlp.down_proj", (hidden, inner), spec.mlp_bias),
    )
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,)
        yield prefix + "post_attention_layernorm.weight", (hidden,)
        for name, shape, bias in matrices:
            yield f"{prefix}{name}.weight", shape
            if bias:
                yield f"{prefix}{name}.bias", shape[:1]
        if spec.qk_norm:
            yield prefix + "self_attn.q_norm.weight", (head,)
            yield prefix + "self_attn.k_norm.weight", (head,)


def check_weights(source: str, spec: ModelSpec, checkpoint: Shaped) -> None:
    """Raise :class:`ModelError` for the first tensor that is missing or has another shape than ``spec`` says."""
    names = checkpoint.names()
    for name, wanted in expected_shapes(spec):
        if name not in names:
            raise ModelError(f"{source}: tensor {name!r} is missing; fetch or convert the model again")
        found = checkpoint.shape(name)
        if found != wanted:
            raise ModelError(
                f"{source}: tensor {name!r} has the shape {list(found)}, and its configuration says {list(wanted)}; "
                "fetch or convert the model again"
            )
