"""From a request's ``tools`` and ``tool_choice`` to what its prompt, its grammar and its reading need."""

import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ekiden.api.context import ApiContext
from ekiden.api.errors import invalid
from ekiden.api.schemas import ChatRequest
from ekiden.api.structured import check_grammar, request_grammar, response_schema
from ekiden.api.tool_schemas import NamedChoice, Tool
from ekiden.api.tools import grammar as grammars
from ekiden.api.tools.formats import ToolFormat, format_of, shown_tokens
from ekiden.api.tools.parser import PARSERS, ToolParser
from ekiden.sampling.grammar_limits import GrammarError, check_schema
from ekiden.state.sampling_params import Grammar

_ID_CHARACTERS: Final = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan:
    """How one call's answers are asked for and read. ``tools`` go into the prompt, as the client described them."""

    form: ToolFormat
    tools: list[dict[str, Any]]
    names: frozenset[str]
    shown: frozenset[int]
    forced: bool

    def parser(self) -> ToolParser:
        return PARSERS[self.form](self.names, self._new_id, forced=self.forced)

    def _new_id(self) -> str:
        if self.form is ToolFormat.MISTRAL:  # whose templates take nine letters and digits, and nothing else
            return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


async def plan_tools(context: ApiContext, fields: ChatRequest) -> tuple[ToolPlan | None, Grammar | None]:
    """The plan, None without tools or with ``tool_choice`` none, and the grammar of the answer, if it has one.

    Raises :class:`ApiError` 400 for tools or grammars that cannot work.
    """
    tools, choice = fields.tools or [], fields.tool_choice
    if not tools:
        if choice not in (None, "none", "auto"):
            raise invalid("tool_choice", "tool_choice asks for a call, and tools holds no function to call.")
        return None, await request_grammar(context, fields)
    functions = [_function(tool, index) for index, tool in enumerate(tools)]
    offered = _offered(functions, choice)
    if choice == "none":
        return None, await request_grammar(context, fields)
    template = context.chat_template
    form = (None if template is None else format_of(template)) or ToolFormat.HERMES
    plan = ToolPlan(
        form=form,
        tools=[tool.model_dump(exclude_none=True) for tool in tools],
        names=frozenset(function.name for function in functions),
        shown=shown_tokens(context.tokenizer, form),
        forced=choice not in (None, "auto"),
    )
    grammar = await _grammar(context, fields, form, offered)
    return plan, grammar


async def _grammar(
    context: ApiContext, fields: ChatRequest, form: ToolFormat, offered: Sequence[grammars.Function]
) -> Grammar | None:
    """The format of the answer binds what is said in words; calls have the format of their own."""
    parallel = fields.parallel_tool_calls is not False
    tokenizer = context.tokenizer
    asked = response_schema(fields)
    if await request_grammar(context, fields) is not None and asked is None:
        raise invalid("tools", "tools decide how an answer is written, so no guided_ field can be given with them.")
    if fields.tool_choice not in (None, "auto"):
        named = isinstance(fields.tool_choice, NamedChoice)
        made = grammars.calls_only(form, offered, tokenizer, parallel=parallel and not named)
    elif asked is not None:
        schema, strict = asked
        made = grammars.calls_or_json(form, offered, tokenizer, schema, strict=strict, parallel=parallel)
    elif any(function.strict for function in offered):
        made = grammars.text_with_calls(form, offered, tokenizer, parallel=parallel)
    else:
        return None
    await check_grammar(context, made, "tools")
    return made


def _function(tool: Tool, index: int) -> grammars.Function:
    """The function's schema, checked: it may reach the compiler now or with another ``tool_choice``."""
    schema = tool.function.parameters
    if schema is None:
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
    where = f"tools[{index}].function.parameters"
    if schema.get("type", "object") != "object":
        raise invalid(f"{where}.type", f"{where}.type must be 'object': arguments are passed by name.")
    try:
        check_schema(schema)
    except GrammarError as error:
        raise invalid(where, f"{where} cannot be used: {error}.", code="invalid_grammar") from None
    return grammars.Function(tool.function.name, {**schema, "type": "object"}, bool(tool.function.strict))


def _offered(functions: list[grammars.Function], choice: object) -> list[grammars.Function]:
    """The functions that the answer may call. Names are told apart by nothing but themselves."""
    names = [function.name for function in functions]
    for index, name in enumerate(names):
        if name in names[:index]:
            where = f"tools[{index}].function.name"
            raise invalid(where, f"{where} is {name!r}, which an earlier tool has already.")
    if not isinstance(choice, NamedChoice):
        return functions
    if choice.name not in names:
        raise invalid(
            "tool_choice.function.name",
            f"tool_choice names the function {choice.name!r}, which is not among the tools.",
        )
    return [functions[names.index(choice.name)]]
