"""Plans tool calls: from ``tools`` and ``tool_choice`` to what the prompt, the grammar and the parser need."""

import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from ekiden.api.call import AnswerFormat, Conversation, NamedChoice, Tool, ToolChoice
from ekiden.api.errors import ApiError, invalid
from ekiden.api.structured import compiles, json_format, unusable
from ekiden.api.text import ModelText
from ekiden.api.tools import grammar as grammars
from ekiden.api.tools.formats import ToolFormat, format_of, shown_tokens
from ekiden.api.tools.parser import PARSERS, ToolParser
from ekiden.sampling.exact_numbers import exact_numbers
from ekiden.sampling.grammar_limits import GrammarError, check_schema
from ekiden.sampling.structured import json_rule
from ekiden.state.sampling_params import Grammar

_ID_CHARACTERS: Final = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan:
    """How tool calls are prompted for and parsed. ``tools`` are those of the prompt, as the client described them.

    ``ruled``: a grammar holds calls to their form. ``forced``: it lets nothing but calls come.
    """

    form: ToolFormat
    tools: list[dict[str, Any]]
    names: frozenset[str]
    shown: frozenset[int]
    ruled: bool
    forced: bool

    def parser(self) -> ToolParser:
        return PARSERS[self.form](self.names, self._new_id, live=self.ruled, forced=self.forced)

    def _new_id(self) -> str:
        if self.form is ToolFormat.MISTRAL:  # whose templates take nine letters and digits, and nothing else
            return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


async def plan_tools(
    text: ModelText, talk: Conversation, answer_format: AnswerFormat | None
) -> tuple[ToolPlan | None, Grammar | None]:
    """The plan, None without tools or with ``tool_choice`` none, and the grammar of the answer, if it has one.

    ``answer_format`` has been found to compile. Raises :class:`ApiError` 400 for tools that cannot work.
    """
    choice = talk.tool_choice
    wanted = None if answer_format is None else answer_format.grammar
    if not talk.tools:
        if choice not in ("none", "auto"):
            raise invalid("tool_choice", "tool_choice asks for a call, and tools holds no function to call.")
        return None, wanted
    # Off the event loop, since a thousand intricate schemas take seconds.
    functions = await text.off_loop(lambda: [_function(tool) for tool in talk.tools])
    offered = _offered(talk.tools, functions, choice)
    if choice == "none":
        return None, wanted
    template = text.chat_template
    form = (None if template is None else format_of(template)) or ToolFormat.HERMES
    made = _grammar(text, talk, answer_format, form, offered)
    plan = ToolPlan(
        form=form,
        tools=[tool.as_object() for tool in talk.tools],
        names=frozenset(function.name for function in functions),
        shown=shown_tokens(text.tokenizer, form),
        ruled=made is not None,
        forced=choice != "auto",
    )
    if made is not None and await compiles(text, made) is not None:
        await _raise_fault(text, talk.tools)
    return plan, made


async def _raise_fault(text: ModelText, tools: list[Tool]) -> NoReturn:
    """Find the function for which the grammar of all calls does not compile, and raise the :class:`ApiError` 400."""
    for tool in tools:
        if tool.parameters is not None:
            form = json_format("", tool.parameters, strict=bool(tool.strict))
            if (error := await compiles(text, form.grammar)) is not None:
                raise _unusable(error, tool)
    message = "The functions in tools cannot be used together: their grammar is too large; send fewer, or simpler ones."
    raise invalid("tools", message, code="invalid_grammar")


def _unusable(error: GrammarError, tool: Tool) -> ApiError:
    return unusable(error, f"{tool.where}.{tool.key}", f" (the function {tool.name!r})")


def _grammar(
    text: ModelText,
    talk: Conversation,
    answer_format: AnswerFormat | None,
    form: ToolFormat,
    offered: Sequence[grammars.Function],
) -> Grammar | None:
    """The grammar of the answer: a response format applies to answers in text; calls have a grammar of their own."""
    parallel, tokenizer = talk.parallel_tool_calls, text.tokenizer
    if answer_format is not None and answer_format.schema is None:
        raise invalid(
            "tools", f"tools decide how an answer is written, so {answer_format.param} cannot be given with them."
        )
    if talk.tool_choice != "auto":
        parallel = parallel and not isinstance(talk.tool_choice, NamedChoice)
        return grammars.calls_only(form, offered, tokenizer, parallel=parallel)
    if answer_format is not None and answer_format.schema is not None:
        answer = json_rule(answer_format.schema, lenient=not answer_format.strict)
        return grammars.calls_or_json(form, offered, tokenizer, answer, parallel=parallel)
    if any(function.strict for function in offered):
        return grammars.text_with_calls(form, offered, tokenizer, parallel=parallel)
    return None


def _function(tool: Tool) -> grammars.Function:
    """The function with its schema, which is checked even where this ``tool_choice`` needs no grammar."""
    schema, where = tool.parameters, f"{tool.where}.{tool.key}"
    if schema is None:
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
    if schema.get("type", "object") != "object":
        raise invalid(f"{where}.type", f"{where}.type must be 'object': arguments are passed by name.")
    schema = {**schema, "type": "object"}
    try:
        check_schema(schema)
        exact_numbers(schema, lenient=not tool.strict)
    except GrammarError as error:
        raise _unusable(error, tool) from None
    return grammars.Function(tool.name, schema, bool(tool.strict))


def _offered(tools: list[Tool], functions: list[grammars.Function], choice: ToolChoice) -> list[grammars.Function]:
    """The functions that the answer may call. Raises :class:`ApiError` 400 for equal names, or an unknown choice."""
    names = [tool.name for tool in tools]
    for index, tool in enumerate(tools):
        if tool.name in names[:index]:
            where = f"{tool.where}.name"
            raise invalid(where, f"{where} is {tool.name!r}, which an earlier tool has already.")
    if not isinstance(choice, NamedChoice):
        return functions
    if choice.name not in names:
        reason = f"tool_choice names the function {choice.name!r}, which is not among the tools that are offered here"
        raise invalid(choice.param, f"{reason}.")
    return [functions[names.index(choice.name)]]
