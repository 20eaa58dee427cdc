"""Grammars of answers with tool calls, in the model's own format and with arguments that match the schemas."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ekiden.api.tools.arguments import named_only
from ekiden.api.tools.formats import MAX_CALLS, ToolFormat
from ekiden.models.tokenizer import Tokenizer
from ekiden.sampling.structured import json_rule
from ekiden.state.sampling_params import Grammar, GrammarKind


@dataclass(frozen=True, slots=True)
class Function:
    """``schema`` describes the arguments object. ``strict``: keywords that cannot be enforced are an error."""

    name: str
    schema: dict[str, Any]
    strict: bool


def calls_only(form: ToolFormat, functions: Sequence[Function], tokenizer: Tokenizer, *, parallel: bool) -> Grammar:
    """The whole answer is one call, or several if ``parallel``."""
    return _grammar(form, functions, f"start: {_calls(form, tokenizer, parallel=parallel)}")


def calls_or_json(
    form: ToolFormat, functions: Sequence[Function], tokenizer: Tokenizer, answer_rule: str, *, parallel: bool
) -> Grammar:
    """The answer is either calls, or JSON as ``answer_rule`` has it."""
    calls = f"calls: {_calls(form, tokenizer, parallel=parallel)}"
    return _grammar(form, functions, "start: calls | answer", calls, f"answer: {answer_rule}")


def text_with_calls(
    form: ToolFormat, functions: Sequence[Function], tokenizer: Tokenizer, *, parallel: bool
) -> Grammar:
    """Free text; wherever a call opens, it must be a complete call."""
    if form is ToolFormat.LLAMA3:
        # In this format only the first character of an answer distinguishes calls from text.
        calls = f"calls: {_calls(form, tokenizer, parallel=parallel)}"
        return _grammar(form, functions, "start: calls | TEXT", r"TEXT: /([^{](.|\n)*)?/", calls)
    marker = _marker(form.value.opening, tokenizer)
    head = f"head[lazy]: TEXT {marker}" if marker.startswith('"') else f"head: TEXT {marker}"
    count = f"{{0,{MAX_CALLS}}}" if parallel else "?"
    start = f"start: call{count} TEXT" if form is ToolFormat.HERMES else "start: TEXT | call"
    call = f"call: head {_after_opening(form, tokenizer, parallel=parallel)}"
    return _grammar(form, functions, start, r"TEXT: /(.|\n)*/", head, call)


def _calls(form: ToolFormat, tokenizer: Tokenizer, *, parallel: bool) -> str:
    """The right side of a rule for one call or several, without text."""
    several = f"{{0,{MAX_CALLS - 1}}}"
    if form is ToolFormat.LLAMA3:
        return f'body ("; " body){several}' if parallel else "body"
    one = f"{_marker(form.value.opening, tokenizer)} {_after_opening(form, tokenizer, parallel=parallel)}"
    return f'{one} ("\\n" {one}){several}' if parallel and form is ToolFormat.HERMES else one


def _after_opening(form: ToolFormat, tokenizer: Tokenizer, *, parallel: bool) -> str:
    """What follows the opening marker: one call, or Mistral's list of calls."""
    if form is ToolFormat.HERMES:
        return f'"\\n" body "\\n" {_marker(form.value.closing, tokenizer)}'
    several = f'(", " body){{0,{MAX_CALLS - 1}}}' if parallel else ""
    return f'"[" body {several} "]"'


def _grammar(form: ToolFormat, functions: Sequence[Function], *rules: str) -> Grammar:
    """``body`` is the object of one call to any of the functions."""
    lines = [*rules, "body: " + " | ".join(f"call{index}" for index in range(len(functions)))]
    for index, function in enumerate(functions):
        before = _quoted(f'{{"name": {json.dumps(function.name)}, "{form.value.arguments}": ')
        lines.append(f'call{index}: {before} arguments{index} "}}"')
        lines.append(f"arguments{index}: {json_rule(named_only(function.schema), lenient=not function.strict)}")
    return Grammar(kind=GrammarKind.LARK, source="\n".join(lines))


def _marker(text: str, tokenizer: Tokenizer) -> str:
    """A marker as the grammar writes it: a special token by its number, other markers by their text."""
    token = tokenizer.token_to_id(text)
    return f"<[{token}]>" if token is not None and token in tokenizer.special_ids else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
