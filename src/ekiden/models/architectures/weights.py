"""The tensors that a model needs, checked by name and shape before any of them is read."""

from collections.abc import Iterator

from ekiden.models.architectures.spec import Checkpoint, ModelSpec
from ekiden.models.errors import ModelError

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
FINAL_NORM = "model.norm.weight"


def expected_shapes(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name and shape (``[out_features, in_features]``) of each tensor that the graph of ``spec`` needs."""
    hidden, inner, head = spec.hidden_size, spec.intermediate_size, spec.head_dim
    query, key_value = spec.num_heads * head, spec.num_kv_heads * head
    yield EMBEDDING, (spec.vocab_size, hidden)
    yield FINAL_NORM, (hidden,)
    if not spec.tie_word_embeddings:
        yield HEAD, (spec.vocab_size, hidden)
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


def check_weights(source: str, spec: ModelSpec, checkpoint: Checkpoint) -> None:
    """Raise :class:`ModelError` for the first tensor that is missing or whose shape differs from what ``spec`` says."""
    for name, wanted in expected_shapes(spec):
        found = checkpoint.shapes.get(name)
        if found is None:
            raise ModelError(f"{source}: tensor {name!r} is missing; fetch or convert the model again")
        if found != wanted:
            raise ModelError(
                f"{source}: tensor {name!r} has the shape {list(found)}, but its configuration says {list(wanted)}; "
                "fetch or convert the model again"
            )
