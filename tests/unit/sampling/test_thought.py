"""A grammar begins after the reasoning, in whichever tokens the marks come."""

import json

import pytest

from ekiden.models.tokenizer import Tokenizer
from ekiden.sampling.structured import GrammarCompiler, GrammarMatcher, choice
from ekiden.state.sampling_params import Grammar, GrammarKind, Thinking
from tests.api.scripted import END, VOCAB_SIZE, make_tokenizer, say
from tests.unit.sampling.thinking_tokens import CLOSE, OPEN, SIZE, thinking_tokenizer

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
JSON = Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(SCHEMA))
GRAMMARS = [
    (JSON, '{"a": 12}', "{}"),
    (Grammar(kind=GrammarKind.REGEX, source="[a-z]{3}"), "abc", "ABC"),
    (Grammar(kind=GrammarKind.GBNF, source='root ::= "yes" | "no"'), "yes", "maybe"),
    (choice(["yes", "no"]), "no", "maybe"),
]
MAY = Thinking(opening="<think>", closing="</think>")
BEGUN = Thinking(opening="<think>", closing="</think>", begun=True)


def allowed(matcher: GrammarMatcher, tokens: list[int]) -> bool:
    """Whether the grammar lets all tokens come, and then the end."""
    for token in [*tokens, END]:
        (mask,) = matcher.masks()
        if not mask[token // 8] >> token % 8 & 1:
            return False
        if matcher.advance(token):
            return True
    raise AssertionError("the end token did not end it")


def matcher(grammar: Grammar, thinking: Thinking, tokenizer: Tokenizer, size: int = VOCAB_SIZE) -> GrammarMatcher:
    asked = Grammar(kind=grammar.kind, source=grammar.source, thinking=thinking)
    return GrammarCompiler(tokenizer, size).compile(asked)


@pytest.mark.parametrize(("grammar", "good", "bad"), GRAMMARS)
@pytest.mark.parametrize("thought", ["", "so", '{"a": 1} </thin </think\n', "\n\n"])
@pytest.mark.parametrize("ends", ["", "\n\n"])
def test_after_reasoning_that_is_spelled(grammar: Grammar, good: str, bad: str, thought: str, ends: str) -> None:
    tokenizer = make_tokenizer()
    for thinking, opening in ((BEGUN, ""), (BEGUN, "<think>"), (MAY, "<think>")):
        before = f"{opening}{thought}</think>{ends}"
        assert allowed(matcher(grammar, thinking, tokenizer), say(before + good))
        assert not allowed(matcher(grammar, thinking, tokenizer), say(before + bad))
        assert not allowed(matcher(grammar, thinking, tokenizer), say(opening + thought))  # it cannot end in thought


@pytest.mark.parametrize(("grammar", "good", "bad"), GRAMMARS)
def test_reasoning_may_be_left_out_unless_it_has_begun(grammar: Grammar, good: str, bad: str) -> None:
    tokenizer = make_tokenizer()
    assert allowed(matcher(grammar, MAY, tokenizer), say(good))
    assert not allowed(matcher(grammar, MAY, tokenizer), say(bad))
    assert not allowed(matcher(grammar, BEGUN, tokenizer), say(good))


@pytest.mark.parametrize("special", [True, False])
def test_marks_that_are_tokens(special: bool) -> None:
    tokenizer = thinking_tokenizer(special=special)
    for grammar, good, bad in GRAMMARS:
        for thinking, opening in ((BEGUN, []), (MAY, [OPEN])):
            before = [*opening, *say('so {"a": 1}'), CLOSE, *say("\n\n")]
            assert allowed(matcher(grammar, thinking, tokenizer, SIZE), [*before, *say(good)])
            assert not allowed(matcher(grammar, thinking, tokenizer, SIZE), [*before, *say(bad)])


def test_a_call_that_is_thought_of_is_no_call() -> None:
    """Free text with whole calls in it cannot take the reasoning for its text."""
    text = Grammar(
        kind=GrammarKind.LARK, source='start: TEXT | call\ncall: head "{}"\nhead[lazy]: TEXT "<call>"\nTEXT: /(.|\\n)*/'
    )
    tokenizer = thinking_tokenizer(special=False)
    for thinking, opening in ((BEGUN, []), (MAY, [OPEN])):
        thought = [*opening, *say("maybe <call> or not"), CLOSE]
        assert allowed(matcher(text, thinking, tokenizer, SIZE), [*thought, *say("so <call>{}")])
        assert not allowed(matcher(text, thinking, tokenizer, SIZE), [*thought, *say("so <call> or not")])
