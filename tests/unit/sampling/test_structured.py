"""Grammars: limits before compiling, walks that only lead to matching texts, and rows that keep to themselves."""

import itertools
import json
import random
import re
import threading
from collections.abc import Sequence as Tokens
from typing import Any

import numpy as np
import pytest

from ekiden.models.load import describe
from ekiden.models.resolve import ModelFiles
from ekiden.models.tokenizer import Tokenizer
from ekiden.sampling.grammar_limits import GrammarError, check_schema
from ekiden.sampling.sampler import Sampler
from ekiden.sampling.structured import CACHE_SIZE, GrammarCompiler, GrammarMatcher, choice
from ekiden.state.sampling_params import Grammar, GrammarKind
from tests.unit.sampling.naive import probabilities, sample, sequence


@pytest.fixture(scope="module")
def tokenizer(smollm2_files: ModelFiles) -> Tokenizer:
    return describe(smollm2_files).tokenizer


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.vocab_size)


def schema(value: Any, kind: GrammarKind = GrammarKind.JSON_SCHEMA) -> Grammar:
    return Grammar(kind=kind, source=json.dumps(value))


def regex(source: str) -> Grammar:
    return Grammar(kind=GrammarKind.REGEX, source=source)


def lark(source: str) -> Grammar:
    return Grammar(kind=GrammarKind.LARK, source=source)


def allowed(rules: GrammarMatcher, width: int) -> list[int]:
    bits = np.unpackbits(np.frombuffer(rules.masks()[0], np.uint8), count=width, bitorder="little")
    return np.flatnonzero(bits).tolist()


def wander(compiler: GrammarCompiler, tokenizer: Tokenizer, grammar: Grammar, seed: int, limit: int = 400) -> str:
    """A text made of allowed tokens, chosen by chance and ended as soon as it may."""
    chance, rules, data = random.Random(seed), compiler.compile(grammar), b""
    for _ in range(limit):
        choices = allowed(rules, tokenizer.vocab_size)
        ends = [token for token in choices if token in tokenizer.eos_token_ids]
        token = ends[0] if ends else chance.choice(choices)
        if token not in tokenizer.eos_token_ids:
            data += tokenizer.token_bytes(token)
        if rules.advance(token):
            assert rules.error is None
            return data.decode()
    raise AssertionError(f"no end after {limit} tokens: {data!r:.200}")


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["red", "green", None, 5]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "more": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/leaf"}]},
    },
    "required": ["name", "age", "kind", "tags", "more"],
    "additionalProperties": False,
    "$defs": {"leaf": {"type": "object", "properties": {"v": {"const": 1}}, "additionalProperties": False}},
}


@pytest.mark.parametrize("seed", range(5))
def test_any_walk_through_a_schema_gives_json_that_matches_it(compiler, tokenizer, seed):
    value = json.loads(wander(compiler, tokenizer, schema(PERSON), seed))
    assert list(value) == PERSON["required"]
    assert isinstance(value["name"], str)
    assert len(value["name"]) <= 12
    assert 0 <= value["age"] <= 120
    assert value["kind"] in ["red", "green", None, 5]
    assert all(isinstance(tag, bool) for tag in value["tags"])
    assert len(value["tags"]) <= 3
    assert value["more"] in [None, {}, {"v": 1}]


@pytest.mark.parametrize("seed", range(3))
def test_any_walk_through_a_regex_matches_it(compiler, tokenizer, seed):
    text = wander(compiler, tokenizer, regex(r"(ab|c/d){2,4}-\d{3}\.[^\d\s]"), seed)
    assert re.fullmatch(r"(ab|c/d){2,4}-[0-9]{3}\.[^0-9\s]", text)


def test_a_choice_gives_one_of_its_texts_and_all_can_come(compiler, tokenizer):
    texts = ["yes", 'no "way"', "日本語🌶️é👩‍👩‍👧", "back\\slash\nline"]
    found = {wander(compiler, tokenizer, choice(texts), seed) for seed in range(40)}
    assert found == set(texts)


def test_rules_of_a_lark_grammar_may_recur(compiler, tokenizer):
    grammar = lark('start: "(" inner ")"\ninner: "x" | "(" inner ")"')
    for seed in range(5):
        text = wander(compiler, tokenizer, grammar, seed)
        assert text.count("(") == text.count(")") > 0
        assert text.strip("()") == "x"


def test_grammars_of_llama_cpp_are_taken(compiler, tokenizer):
    grammar = Grammar(kind=GrammarKind.GBNF, source='root ::= "a" item+\nitem ::= [0-9] | "(" item ")"\n')
    for seed in range(5):
        text = wander(compiler, tokenizer, grammar, seed)
        assert re.fullmatch(r"a[0-9()]+", text)
        assert text.count("(") == text.count(")")


def test_special_tokens_never_stand_for_text(compiler, tokenizer):
    rules = compiler.compile(regex(r"<\|im_start\|>.*"))
    assert not set(allowed(rules, tokenizer.vocab_size)) & tokenizer.special_ids


def test_copies_of_one_grammar_do_not_share_their_place(compiler, tokenizer):
    (a,), (b,) = (tokenizer.encode(text, add_special_tokens=False) for text in "ab")
    first, second = compiler.compile(regex("ab")), compiler.compile(regex("ab"))
    assert not first.advance(a)
    assert b in allowed(first, tokenizer.vocab_size)
    assert b not in allowed(second, tokenizer.vocab_size)
    assert first.advance(b)
    assert not second.advance(a)


def test_a_token_outside_the_grammar_is_an_error_and_not_a_crash(compiler, tokenizer):
    rules = compiler.compile(regex("[0-9]"))
    (letter,) = tokenizer.encode("a", add_special_tokens=False)
    assert rules.advance(letter)
    assert rules.error is not None
    assert "does not fit" in rules.error
    assert rules.advance(letter), "it stays at its end"
    assert set(allowed(rules, tokenizer.vocab_size)) <= tokenizer.eos_token_ids


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        value = {"type": "object", "properties": {"a": value}, "required": ["a"]}
    return value


def chain(length: int) -> dict[str, Any]:
    names = {f"q{i}": {"type": "array", "items": {"$ref": f"#/$defs/q{i + 1}"}} for i in range(length)}
    return {"$defs": {**names, f"q{length}": {"type": "null"}}, "$ref": "#/$defs/q0"}


SELF = {
    "$defs": {"q": {"$ref": "#/$defs/q"}},
    "type": "object",
    "properties": {"v": {"$ref": "#/$defs/q"}},
}
PAIR = {
    "$defs": {"q": {"$ref": "#/$defs/r"}, "r": {"$ref": "#/$defs/q"}},
    "type": "object",
    "properties": {"v": {"$ref": "#/$defs/q"}},
}
ENDLESS = {
    "$defs": {"n": {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}, "required": ["c"]}},
    "$ref": "#/$defs/n",
}
ENDLESS_LIST = {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1}}, "$ref": "#/$defs/n"}
TREE = {
    "$defs": {
        "n": {
            "type": "object",
            "properties": {"v": {"type": "boolean"}, "c": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
            "required": ["v"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/n",
}
# A chain written in no order, so that few links resolve at a time, beside many names for a large whole that waits.
ORDER = random.Random(0).sample(range(240), 240)
TANGLE = {
    "$defs": {
        **{f"q{i}": {} for i in range(240)},
        **{f"q{link}": {"$ref": f"#/$defs/q{following}"} for link, following in itertools.pairwise(ORDER)},
        **{f"r{i}": {"$ref": "#" + "/" * (i + 1)} for i in range(240)},
    },
    "type": "object",
    "allOf": [*[{}] * 500, {"$ref": f"#/$defs/q{ORDER[0]}"}],
}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (SELF, "leads to itself"),
        (PAIR, "leads to itself"),
        ({"$ref": "#"}, "leads to itself"),
        (ENDLESS, "no finite text"),
        (ENDLESS_LIST, "no finite text"),
        (nested(2000), "nested deeper than 64"),
        ({"anyOf": [{"const": i} for i in range(2000)]}, "more than 2000 objects"),
        ({"properties": {f"p{i}": {} for i in range(501)}}, "more than 500 properties"),
        ({"enum": list(range(10_000))}, "more than 1000 enum values"),
        (chain(501), "more than 500 references"),
        ({"type": "integer", "multipleOf": 999_983}, "multipleOf"),
        ({"type": "number", "multipleOf": 1e-9}, "multipleOf"),
        ({"type": "number", "multipleOf": float("inf")}, "multipleOf"),
        ({"type": "integer", "multipleOf": 10**400}, "multipleOf"),
        (TANGLE, "following its references takes too long"),
        ([1], "not list"),
        ("text", "not str"),
    ],
)
def test_schemas_over_the_limits_are_refused_before_they_are_compiled(value, message):
    with pytest.raises(GrammarError, match=message):
        check_schema(value)


@pytest.mark.parametrize(
    "grammar",
    [
        schema({"type": "string", "pattern": "(" * 2000 + "a" + ")" * 2000}),
        schema({"enum": []}),
        schema({"type": "integer", "minimum": 5, "maximum": 3}),
        schema({"$ref": "file:///etc/passwd"}),
        schema({"$ref": "https://example.com/schema.json"}),
        schema({"not": {"type": "string"}}),
        Grammar(kind=GrammarKind.JSON_SCHEMA, source="[" * 100_000),
        Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps({"description": "x" * 200_000})),
        regex("(("),
        regex("(?=look)ahead"),
        regex(r"[^\s\S]"),
        regex("a" * 10_000),
        Grammar(kind=GrammarKind.GBNF, source="root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000),
        Grammar(kind=GrammarKind.GBNF, source="root ::= nothing"),
        lark(""),
        lark("start: start"),
        lark("start: nothing"),
        lark("start: " + "(" * 10_000 + '"a"' + ")" * 10_000),
        lark("start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(20_000)) + '\nr20000: "a"'),
        lark("start: %json " + '{"items":' * 5000 + "{}" + "}" * 5000),
    ],
    ids=lambda grammar: f"{grammar.kind} {grammar.source[:24]}",
)
def test_what_cannot_be_used_is_told_in_one_short_line(compiler, grammar):
    for _ in range(2):  # the second answer comes from the cache
        with pytest.raises(GrammarError) as caught:
            compiler.compile(grammar)
        assert 0 < len(str(caught.value)) < 400
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "grammar",
    [
        schema({"type": "array", "items": {"type": "integer"}, "maxItems": 10**9}),
        schema({"enum": [f"value {i}" for i in range(1000)]}),
        schema(chain(490)),
        schema(nested(30)),
        schema(
            {
                "$defs": {
                    **{
                        f"q{i}": {
                            "type": "object",
                            "properties": {"a": {"$ref": f"#/$defs/q{i + 1}"}},
                            "required": ["a"],
                        }
                        for i in range(450)
                    },
                    "q450": {"type": "null"},
                },
                "$ref": "#/$defs/q0",
            }
        ),
        schema({"not": {"type": "string"}, "type": "integer"}, GrammarKind.LENIENT_JSON_SCHEMA),
        regex("(a{1,1000}){1,1000}"),
        lark("start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(490)) + '\nr490: "a"'),
    ],
    ids=lambda grammar: f"{grammar.kind} {grammar.source[:24]}",
)
def test_what_is_large_but_within_the_limits_works(compiler, tokenizer, grammar):
    rules = compiler.compile(grammar)
    assert allowed(rules, tokenizer.vocab_size)
    assert rules.error is None


def test_a_recursive_tree_is_a_legal_schema(compiler, tokenizer):
    for text in ['{"v": true}', '{"v": false, "c": [{"v": true, "c": []}, {"v": true}]}']:
        rules = compiler.compile(schema(TREE))
        for token in tokenizer.encode(text, add_special_tokens=False):
            assert token in allowed(rules, tokenizer.vocab_size)
            rules.advance(token)
        assert rules.error is None


def test_a_grammar_is_compiled_once_and_the_oldest_is_forgotten(tokenizer):
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    first = compiler.submit(regex("a"))
    assert compiler.submit(regex("a")) is first
    for index in range(CACHE_SIZE):
        compiler.compile(regex(f"b{index}"))
    assert compiler.submit(regex("a")) is not first


def test_the_deep_stack_is_the_compilers_alone(compiler):
    compiler.compile(regex("stack"))
    assert threading.stack_size() == 0, "the default, for whoever starts a thread next"


# --- in the sampler


class Only:
    """Rules that allow certain ids of 1000."""

    def __init__(self, *ids: int) -> None:
        bits = np.zeros(1000, np.uint8)
        bits[list(ids)] = 1
        self._mask = np.packbits(bits, bitorder="little").tobytes()
        self.error: str | None = None

    def forced(self, limit: int) -> tuple[int, ...]:
        return ()

    def masks(self, drafts: Tokens[int] = ()) -> tuple[bytes, ...]:
        return (self._mask,) * (len(drafts) + 1)

    def advance(self, token: int) -> bool:
        raise AssertionError("tokens are fed where they are appended")


def logits_of(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (rows, 1000)).astype(np.float32)


def ruled(ids: list[int], **fields: Any):
    made = sequence(**fields)
    made.rules = Only(*ids)
    return made


def test_greedy_takes_the_highest_allowed_token_whatever_bias_and_penalties_say():
    logits = logits_of(3)
    ids = [5, 77, 78, 993, 999]
    rows = [
        ruled(ids, temperature=0.0),
        ruled(ids, temperature=0.0, logit_bias={3: 100.0, 5: 100.0}),
        ruled(ids, temperature=0.0, output=[78, 78], frequency_penalty=2.0),
    ]
    tokens, _ = sample(Sampler(), logits, rows)
    assert tokens[0] == max(ids, key=lambda token: logits[0, token])
    assert tokens[1] == 5
    logits[2, 78] -= 4.0
    assert tokens[2] == max(ids, key=lambda token: logits[2, token])


@pytest.mark.parametrize("fields", [{}, {"top_p": 0.7}, {"top_k": 3}, {"min_p": 0.2}], ids=str)
def test_draws_follow_the_distribution_over_what_is_allowed(fields):
    row = logits_of(1, 3)[0] / 3
    ids = [1, 130, 131, 500, 640, 999]
    fields = {"temperature": 0.9, **fields}
    masked = np.full_like(row, -np.inf)
    masked[ids] = row[ids]
    probability = probabilities(masked, sequence(**fields).request.sampling)
    count = 4000
    rows = [ruled(ids, seed=seed, **fields) for seed in range(count)]
    tokens, _ = sample(Sampler(), np.repeat(row[None], count, axis=0), rows)
    seen = np.bincount(tokens, minlength=1000)
    likely = probability > 0
    assert not seen[~likely].any()
    deviation = (seen[likely] - count * probability[likely]) / np.sqrt(count * probability[likely])
    assert (deviation**2).sum() < 30  # chi-square of at most five degrees of freedom: p < 1e-4


def test_free_rows_get_the_same_tokens_beside_constrained_ones():
    logits = logits_of(9)
    kinds: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.95}, {"temperature": 1.0}]
    free = [sequence(seed=row, **kinds[row % 3]) for row in range(9)]
    alone = [sample(Sampler(), logits[row : row + 1], [free[row]])[0][0] for row in range(9)]
    mixed = [ruled([4, 9], temperature=row % 2 / 1.0) if row % 2 else free[row] for row in range(9)]
    tokens, _ = sample(Sampler(), logits, mixed)
    assert tokens[::2] == alone[::2]
    assert set(tokens[1::2]) <= {4, 9}


def test_an_ended_grammar_ends_the_answer_though_min_tokens_forbids_it():
    row = ruled([7], temperature=0.0, min_tokens=50)
    assert sample(Sampler(eos_token_ids=frozenset({7})), logits_of(1), [row])[0] == [7]


def test_an_end_token_that_min_tokens_forbids_gives_way_to_what_else_is_allowed():
    logits = logits_of(1)
    logits[0, 7] = 50.0
    row = ruled([7, 8], temperature=0.0, min_tokens=50)
    assert sample(Sampler(eos_token_ids=frozenset({7})), logits, [row])[0] == [8]
