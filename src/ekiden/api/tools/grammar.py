"""Grammars of answers with tool calls, in the model's own format and with arguments that match the schemas."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    return _grammar(f"start: {_calls(form, tokenizer, parallel=parallel)}", *_bodies(form, functions))


def calls_or_json(
    form: ToolFormat,
    functions: Sequence[Function],
    tokenizer: Tokenizer,
    schema: dict[str, Any],
    *,
    strict: bool,
    parallel: bool,
) -> Grammar:
    """The answer is either calls, or JSON that matches ``schema``."""
    return _grammar(
        "start: calls | answer",
        f"calls: {_calls(form, tokenizer, parallel=parallel)}",
        f"answer: {json_rule(schema, lenient=not strict)}",
        *_bodies(form, functions),
    )


def text_with_calls(
    form: ToolFormat, functions: Sequence[Function], tokenizer: Tokenizer, *, parallel: bool
) -> Grammar:
    """Free text; wherever a call opens, it must be a complete call."""
    if form is ToolFormat.LLAMA3:
        # In this format only the first character of an answer distinguishes calls from text.
        return _grammar(
            "start: calls | TEXT",
            r"TEXT: /([^{](.|\n)*)?/",
            f"calls: {_calls(form, tokenizer, parallel=parallel)}",
            *_bodies(form, functions),
        )
    marker = _marker(form.value.opening, tokenizer)
    head = f"head[lazy]: TEXT {marker}" if marker.startswith('"') else f"head: TEXT {marker}"
    count = f"{{0,{MAX_CALLS}}}" if parallel else "?"
    if form is ToolFormat.HERMES:
        tail = f'"\\n" body "\\n" {_marker(form.value.closing, tokenizer)}'
        return _grammar(
            f"start: call{count} TEXT", r"TEXT: /(.|\n)*/", head, f"call: head {tail}", *_bodies(form, functions)
        )
    more = f'(", " body){{0,{MAX_CALLS - 1}}}' if parallel else ""
    return _grammar(
        "start: TEXT | call", r"TEXT: /(.|\n)*/", head, f'call: head "[" body {more} "]"', *_bodies(form, functions)
    )


def _calls(form: ToolFormat, tokenizer: Tokenizer, *, parallel: bool) -> str:
    """The right side of a rule for one call or several, without text."""
    more = MAX_CALLS - 1
    match form:
        case ToolFormat.HERMES:
            opening, closing = (_marker(text, tokenizer) for text in (form.value.opening, form.value.closing))
            one = f'{opening} "\\n" body "\\n" {closing}'
            return f'{one} ("\\n" {one}){{0,{more}}}' if parallel else one
        case ToolFormat.LLAMA3:
            return f'body ("; " body){{0,{more}}}' if parallel else "body"
        case ToolFormat.MISTRAL:
            several = f'(", " body){{0,{more}}}' if parallel else ""
            return f'{_marker(form.value.opening, tokenizer)} "[" body {several} "]"'


def _bodies(form: ToolFormat, functions: Sequence[Function]) -> list[str]:
    lines = ["body: " + " | ".join(f"call{index}" for index in range(len(functions)))]
    for index, function in enumerate(functions):
        before = _quoted(f'{{"name": {json.dumps(function.name)}, "{form.value.arguments}": ')
        lines.append(f'call{index}: {before} arguments{index} "}}"')
        lines.append(f"arguments{index}: {json_rule(function.schema, lenient=not function.strict)}")
    return lines


def _marker(text: str, tokenizer: Tokenizer) -> str:
    """A marker as the grammar writes it: a special token by its number, other markers by their text."""
    token = tokenizer.token_to_id(text)
    return f"<[{token}]>" if token is not None and token in tokenizer.special_ids else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _grammar(*lines: str) -> Grammar:
    return Grammar(kind=GrammarKind.LARK, source="\n".join(lines))
