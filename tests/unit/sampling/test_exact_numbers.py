"""Numbers in schemas: whatever a grammar lets through is what the schema says, by exact arithmetic, and what the schema
says can be written. Other keywords are held against an independent validator."""

import json
import random
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ekiden.sampling.exact_numbers import exact_numbers
from ekiden.sampling.grammar_limits import GrammarError
from ekiden.sampling.structured import GrammarCompiler, GrammarMatcher
from ekiden.state.sampling_params import Grammar, GrammarKind
from tests.api.scripted import END, VOCAB_SIZE, make_tokenizer

COMPILER = GrammarCompiler(make_tokenizer(), VOCAB_SIZE)
"""Its tokens are bytes."""
BIG = 2**53
ID = 1234567890123456789


def compiled(schema: Any, *, lenient: bool = False) -> GrammarMatcher:
    kind = GrammarKind.LENIENT_JSON_SCHEMA if lenient else GrammarKind.JSON_SCHEMA
    return COMPILER.compile(Grammar(kind=kind, source=json.dumps(schema)))


def allowed(rules: GrammarMatcher) -> set[int]:
    bits = np.unpackbits(np.frombuffer(rules.masks()[0], np.uint8), count=VOCAB_SIZE, bitorder="little")
    return {token for token in np.flatnonzero(bits).tolist() if token < 256 or token == END}


def attempted(schema: Any) -> GrammarMatcher | str:
    """The matcher, or why there is none."""
    try:
        return compiled(schema)
    except GrammarError as error:
        return str(error)


def accepts(schema: Any, text: str, *, lenient: bool = False) -> bool:
    rules = compiled(schema, lenient=lenient)
    for byte in text.encode():
        if byte not in allowed(rules):
            return False
        rules.advance(byte)
    return END in allowed(rules)


def walked(rules: GrammarMatcher, seed: int, limit: int = 120) -> str | None:
    """A text by chance, which prefers to close what it opened; None when it did not end."""
    chance, text = random.Random(seed), b""
    for _ in range(limit):
        tokens = allowed(rules)
        closing = tokens & {END, *b'"]}'}
        token = chance.choice(sorted(closing if closing and chance.random() < 0.3 else tokens))
        if token == END:
            return text.decode()
        text += bytes([token])
        if rules.advance(token):
            return text.decode()
    return None


# --- numbers, by exact arithmetic


def exact(text: str | float) -> Fraction:
    return Fraction(Decimal(text if isinstance(text, str) else repr(text)))


def fits(schema: dict[str, Any], text: str) -> bool:
    """Whether a schema of numbers allows a text, by the words of its specification."""
    if text == "null":
        return "null" in schema["type"]
    number = exact(text)
    checks = {
        "minimum": lambda bound: number >= bound,
        "exclusiveMinimum": lambda bound: number > bound,
        "maximum": lambda bound: number <= bound,
        "exclusiveMaximum": lambda bound: number < bound,
        "multipleOf": lambda unit: (number / unit).denominator == 1,
        "const": lambda value: number == value,
    }
    whole = "number" not in schema["type"]
    return (
        (not whole or number.denominator == 1)
        and all(check(exact(schema[key])) for key, check in checks.items() if key in schema)
        and ("enum" not in schema or number in map(exact, schema["enum"]))
    )


SMALL = st.one_of(st.integers(-20, 20), st.integers(-200, 200).map(lambda tenths: tenths / 10))
EDGES = (
    0.0, -0.0, 0.01, -0.01, 1e-7, 1e-30, 1e-61, 5e-324, 0.1, 0.30000000000000004, 0.9999999999999999, 973.2790047860187,
    1e15, 1e18, 1e22, 1e300, BIG - 1, BIG, BIG + 1, BIG + 2, 2**60, 10**18, ID, 2**63 - 1025, 2**63 - 1024, 2**63 - 1,
    2**63, 2**64 - 1, 2**64, 10**30,
)  # fmt: skip
ANY = st.one_of(
    SMALL,
    st.sampled_from([sign * edge for edge in EDGES for sign in (1, -1)]),
    st.floats(-1e6, 1e6, allow_nan=False),
    st.floats(-1, 1, allow_nan=False),
)
KINDS = st.sampled_from(["integer", "number", ["integer", "null"], ["number", "null"]])
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def numbers(values: st.SearchStrategy[float], *others: str) -> st.SearchStrategy[dict[str, Any]]:
    parts: dict[str, Any] = dict.fromkeys(BOUNDS, values)
    parts["multipleOf"] = st.sampled_from([1, 2, 3, 0.5, 0.1, 0.25, 2.5, 1.0])
    parts |= {"const": values, "enum": st.lists(values, min_size=1, max_size=3)}
    return st.fixed_dictionaries({"type": KINDS}, optional={key: parts[key] for key in (*BOUNDS, *others)})


@settings(max_examples=150)
@given(schema=st.one_of(numbers(ANY), numbers(ANY, "multipleOf"), numbers(ANY, "const", "enum")), seed=st.integers())
@example({"type": "number", "exclusiveMinimum": 0, "maximum": 0.01}, 2)
@example({"type": "number", "minimum": -0.01, "exclusiveMaximum": 0}, 0)
@example({"type": "number", "exclusiveMinimum": 5, "maximum": 5.5}, 0)
@example({"type": "number", "const": 973.2790047860187}, 0)
@example({"type": "integer", "enum": [ID]}, 0)
@example({"type": "integer", "exclusiveMinimum": BIG, "exclusiveMaximum": BIG + 2}, 0)
@example({"type": "integer", "minimum": 2**70, "maximum": 2**71}, 0)
def test_only_numbers_that_a_schema_allows_can_be_written(schema: dict[str, Any], seed: int):
    rules = attempted(schema)
    if isinstance(rules, str):
        assert re.search("(?i)minimum|maximum|multipleOf|const|enum|range|interval", rules), "it names the keyword"
    else:
        text = walked(rules, seed)
        assert text is None or fits(schema, text), text


@settings(max_examples=150)
@given(schema=numbers(SMALL, "multipleOf"), number=st.one_of(st.integers(-22, 22), SMALL))
@example({"type": "number", "minimum": 0, "maximum": 2.55}, 2.5)
@example({"type": "number", "exclusiveMinimum": 0}, 0.001)
def test_every_number_that_a_schema_allows_can_be_written(schema: dict[str, Any], number: float):
    text = format(Decimal(repr(number)), "f").removesuffix(".0").replace("-0", "0" if number == 0 else "-0")
    others = [text + zeros for zeros in ("0", "00")] if "." in text else [f"{text}.0"]
    if "multipleOf" in schema and "number" in schema["type"]:
        others.append((text if "." in text else f"{text}.0") + "000")
    refused = attempted(schema)
    if isinstance(refused, str):
        assert re.search("no number is left|Unsatisfiable", refused)
    found = not isinstance(refused, str) and any(accepts(schema, each) for each in (text, *others))
    assert found == fits(schema, text)


def test_own_06_a_number_beyond_2_53_is_refused_by_its_keyword_and_place():
    for value in (ID, BIG + 1, 2**64, -ID, 1e300):
        for literal in ({"const": value}, {"enum": ["a", value]}, {"const": {"a": [value]}}):
            (key,) = literal
            schema = {"type": "object", "properties": {"id": literal}, "required": ["id"]}
            with pytest.raises(GrammarError, match=f"^{key} has ") as caught:
                compiled(schema)
            assert caught.value.where == f"properties.id.{key}"
    for key, bounds in {"minimum": {"minimum": BIG + 1}, "exclusiveMaximum": {"exclusiveMaximum": BIG + 2}}.items():
        with pytest.raises(GrammarError, match=f"^{key} has "):
            compiled({"type": "integer", **bounds})


def test_own_06_what_is_not_enforced_does_not_stand_in_the_way_of_the_right_number():
    schema = {"type": "object", "properties": {"id": {"enum": [ID]}}, "required": ["id"]}
    assert accepts(schema, f'{{"id": {ID}}}', lenient=True)
    assert not accepts(schema, '{"id": "a"}', lenient=True), "all values were whole numbers"


@pytest.mark.parametrize(
    ("least", "most"), [(-(2**63), 2**63 - 1), (0, 2**64 - 1), (-(10**30), 10**30), (0, 1.8446744073709552e19)]
)
def test_the_ends_of_64_bit_integers_are_kept(least: float, most: float):
    schema = {"type": "integer", "minimum": least, "maximum": most}
    assert accepts(schema, str(2**63 - 1))
    assert accepts(schema, "-5") == (least < 0)
    assert not accepts(schema, str(2**63))


def test_own_07_an_excluded_bound_never_comes_however_it_is_combined():
    for schema in (
        {"type": "number", "exclusiveMinimum": 0, "maximum": 0.01},
        {"allOf": [{"type": "number", "exclusiveMinimum": 0}, {"maximum": 0.01}]},
        {"$ref": "#/$defs/rate", "$defs": {"rate": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.01}}},
        {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 0.01},
    ):
        assert not any(accepts(schema, text) for text in ("0", "0.0", "-0", "0.00", "0.02")), schema
        assert accepts(schema, "0.001")
        assert accepts(schema, "0.01")


def test_what_holds_no_schema_is_left_alone():
    schema = {
        "properties": {"minimum": {"type": "integer"}, "const": {"default": {"maximum": ID, "minLength": 2**40}}},
        "examples": [{"const": ID}],
    }
    assert exact_numbers(schema, lenient=False) == schema


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 5, "exclusiveMaximum": 5}, "minimum has 5: .* exclusiveMaximum no number"),
        ({"type": "number", "minimum": "5"}, "minimum has 5: it must be a finite number"),
        ({"type": "number", "maximum": float("nan")}, "maximum has nan"),
        ({"type": "number", "multipleOf": -1}, "multipleOf has -1: it must be greater than 0"),
        ({"type": "string", "minLength": 2**40}, "minLength has 1099511627776: no answer is as long"),
        ({"minProperties": 3, "required": ["a"]}, "minProperties has 3"),
        ({"type": "integer", "minimum": 10**4000}, r"minimum has 10{39}\.\.\. \(4001 characters\)"),
    ],
)
def test_what_cannot_be_kept_names_its_keyword(schema: dict[str, Any], words: str):
    with pytest.raises(GrammarError, match=words):
        compiled(schema)


# --- the other keywords, against a validator that others wrote

DRAFT = "https://json-schema.org/draft/2020-12/schema"
LEAVES = st.sampled_from(
    [{"type": "boolean"}, {"type": "null"}, {"type": "integer", "minimum": 0, "maximum": 9}, {"enum": ["a", 1, None]}]
)
COUNTS = st.sampled_from([0, 1, 2, 3, 1.0, 2.0, 2**40])


def keywords(kind: str, **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(kind)}, optional=parts)


PATTERNS = st.sampled_from(["^a", "^[ab]+$", "b$", "^.{2}$", r"^\d+$", "^(a|bc)*$", r"\w"])
STRINGS = keywords("string", minLength=COUNTS, maxLength=COUNTS, pattern=PATTERNS)
ARRAYS = keywords(
    "array", minItems=COUNTS, maxItems=COUNTS, items=LEAVES, prefixItems=st.lists(LEAVES, min_size=1, max_size=2)
)
OBJECTS = keywords(
    "object",
    properties=st.dictionaries(st.sampled_from("abc"), LEAVES, max_size=3),
    required=st.lists(st.sampled_from("abc"), unique=True, max_size=2),
    additionalProperties=st.sampled_from([False, {"type": "null"}]),
    minProperties=COUNTS,
    maxProperties=COUNTS,
)
CHOICES = st.lists(st.one_of(STRINGS, LEAVES), min_size=1, max_size=2).map(lambda each: {"anyOf": each})
SCHEMAS = st.one_of(STRINGS, ARRAYS, OBJECTS, CHOICES)


@settings(max_examples=200)
@given(schema=SCHEMAS, seed=st.integers())
@example({"type": "object", "minProperties": 2, "additionalProperties": {"type": "null"}}, 3)
def test_what_can_be_written_is_valid(schema: dict[str, Any], seed: int):
    rules = attempted(schema)
    assume(not isinstance(rules, str))
    assert not isinstance(rules, str)
    text = walked(rules, seed)
    assume(text is not None)
    assert jsonschema_rs.is_valid({"$schema": DRAFT, **schema}, json.loads(text or ""))
