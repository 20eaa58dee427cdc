"""Formats whose markers are special tokens of the vocabulary, and formats told from published templates' traits."""

from dataclasses import dataclass
from typing import cast

import pytest

from ekiden.api.tools.formats import ToolFormat, format_of, shown_tokens
from ekiden.api.tools.grammar import Function, calls_only, text_with_calls
from ekiden.models.chat_template import ChatTemplate
from ekiden.models.tokenizer import Tokenizer

GET = Function("get", {"type": "object"}, strict=False)


@dataclass
class Vocabulary:
    ids: dict[str, int]
    special_ids: frozenset[int]

    def token_to_id(self, text: str) -> int | None:
        return self.ids.get(text)


def vocabulary(ids: dict[str, int], special: set[int]) -> Tokenizer:
    return cast(Tokenizer, Vocabulary(ids, frozenset(special)))


def test_a_special_marker_is_asked_for_by_its_number_and_shown() -> None:
    tokenizer = vocabulary({"[TOOL_CALLS]": 5, "[ARGS]": 6}, {5, 6, 7})
    assert shown_tokens(tokenizer, ToolFormat.MISTRAL) == {5, 6}
    assert "start: <[5]> " in calls_only(ToolFormat.MISTRAL, [GET], tokenizer, parallel=True).source
    assert "head: TEXT <[5]>" in text_with_calls(ToolFormat.MISTRAL, [GET], tokenizer, parallel=True).source


def test_a_marker_that_is_an_ordinary_token_or_none_is_text() -> None:
    for tokenizer in (vocabulary({"<tool_call>": 5}, set()), vocabulary({}, {5})):
        assert shown_tokens(tokenizer, ToolFormat.HERMES) == frozenset()
        assert '"<tool_call>"' in calls_only(ToolFormat.HERMES, [GET], tokenizer, parallel=False).source


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("{% if tools %}...within <tool_call></tool_call> XML tags{% endif %}", ToolFormat.HERMES),
        ("{% if tools is not none %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", ToolFormat.MISTRAL),
        ("{% if custom_tools %}{% set tools = custom_tools %}{% endif %}<|python_tag|>", ToolFormat.LLAMA3),
        ("{% if tools %}{{ '\"parameters\": ' }}{% endif %}", ToolFormat.LLAMA3),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", None),
        ("{% if tools %}something else{% endif %}", None),
    ],
)
def test_the_format_is_told_from_the_template(source: str, form: ToolFormat | None) -> None:
    assert format_of(ChatTemplate(source)) is form


def test_a_template_of_its_own_for_tools_decides() -> None:
    assert format_of(ChatTemplate("plain", tool_source="{{ tools }}<tool_call>")) is ToolFormat.HERMES
