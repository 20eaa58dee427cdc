"""The tools of ``/v1/responses``: functions, custom tools, and namespaces of both.

The model is offered functions only. A custom tool, which takes free text, becomes a function of one string; a
namespace gives its name to its functions. The answer's calls go back in the client's own terms.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from ekiden.api.call import NamedChoice, Tool, ToolChoice
from ekiden.api.errors import invalid, shown
from ekiden.api.hand_checks import rule, string_field
from ekiden.api.json_schema import TEXT, any_of, closed_object, open_object
from ekiden.api.schema_base import ReadBy, Strict, rule_of
from ekiden.api.shape import Fate, Shape, ignored
from ekiden.api.tool_fields import FunctionName, LeftOut, OfTypes, Tools, kept, no_allowed_tools

INPUT: Final = "input"
"""The one parameter of a custom tool."""
_CUSTOM_SCHEMA: Final = closed_object({INPUT: TEXT})
_INNER_TYPES: Final = ("function", "custom")
_NAMESPACE: Final = "namespace"
_Mode = Literal["none", "auto", "required"]
_TOLD: Final[dict[str, dict[str, Any]]] = {
    "function": {"description": None, "parameters": None, "strict": None},
    "custom": {},
    _NAMESPACE: {"description": "", "tools": []},
}
"""What a response says of a tool where the request left it out."""
MAX_OFFERED: Final = 512
"""Most functions of a request, those in namespaces included."""


class ToolFormat(Strict):
    type: str
    syntax: str | None = None
    definition: str | None = None


class NamedTool(Strict):
    """A function or a custom tool, by itself or in a namespace."""

    fates: ClassVar[Mapping[str, Fate]] = {
        "defer_loading": ignored("all tools are offered from the beginning"),
        "output_schema": ignored("a tool's output is taken as it is"),
        "allowed_callers": ignored("only the model calls tools here"),
    }

    type: str
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: ToolFormat | None = None


InnerTools = Tools[Annotated[NamedTool | LeftOut, OfTypes(NamedTool, *_INNER_TYPES)]]


class ResponseTool(NamedTool):
    tools: InnerTools | None = None


_OF_TYPES: Final = OfTypes(ResponseTool, *_INNER_TYPES, _NAMESPACE)
TOOL_SHAPE: Final = _OF_TYPES.shape
ResponseTools = Tools[Annotated[ResponseTool | LeftOut, _OF_TYPES]]
_TOOLS: Final[TypeAdapter[list[ResponseTool | LeftOut]]] = TypeAdapter(ResponseTools)


class Placed(NamedTuple):
    """Tools of a request, and their place in its body."""

    where: str
    tools: Sequence[ResponseTool | LeftOut]


def read_tools(value: Any, where: str) -> Placed:
    """Tools among the items of the input. Raises a :func:`rule`."""
    try:
        return Placed(f"input{where}", _TOOLS.validate_python(value, strict=True))
    except ValidationError as error:
        raise rule_of(error, where) from None


class Offered(NamedTuple):
    """A function that the model is offered, and how the client knows it."""

    function: Tool
    name: str
    namespace: str | None
    custom: bool


def model_name(namespace: str | None, name: str) -> str:
    """The name of a function that the model sees."""
    return name if namespace is None else f"{namespace}__{name}"


def custom_arguments(text: str) -> str:
    """The input of a custom tool as the arguments of its function."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """The reverse, for arguments that were cut too. Those that hold no input are given as they are, and the tool can
    say what is wrong with them."""
    try:
        value = from_json(arguments, allow_partial="trailing-strings")[INPUT]
    except (ValueError, TypeError, LookupError):
        return arguments
    return value if isinstance(value, str) else arguments


def offered(lists: Iterable[Placed]) -> list[Offered]:
    """The functions among the tools. Raises :class:`ApiError` 400 for too many."""
    found: list[Offered] = []
    for where, tool in ((f"{place}[{index}]", tool) for place, tools in lists for index, tool in kept(tools)):
        if tool.type != _NAMESPACE:
            found.append(_offered(tool, where))
            continue
        # What is said of a namespace stands before its first function, as a heading does.
        heading = f"{tool.name}: {tool.description}" if tool.description else ""
        for inner_index, inner in kept(tool.tools):
            found.append(_offered(inner, f"{where}.tools[{inner_index}]", tool.name, heading))
            heading = ""
    if len(found) > MAX_OFFERED:
        raise invalid("tools", f"tools holds {len(found)} functions; {MAX_OFFERED} are allowed.")
    return found


def _offered(tool: NamedTool, where: str, namespace: str | None = None, heading: str = "") -> Offered:
    said = "\n\n".join(filter(None, (heading, tool.description, _format_told(tool.format))))
    custom = tool.type == "custom"
    parameters = _CUSTOM_SCHEMA if custom else tool.parameters
    function = Tool(model_name(namespace, tool.name), said or None, parameters, tool.strict, where)
    return Offered(function, tool.name, namespace, custom)


def has_format(tools: Sequence[NamedTool | LeftOut] | None) -> bool:
    """Whether a custom tool asks for a format of its input, which the model is told of and not held to."""
    return any(
        _format_told(tool.format) or (isinstance(tool, ResponseTool) and has_format(tool.tools))
        for _, tool in kept(tools)
    )


def _format_told(form: ToolFormat | None) -> str:
    if form is None or form.definition is None:
        return ""
    return f"The input is a text of this {form.syntax or 'formal'} grammar:\n{form.definition}"


class OneTool(NamedTuple):
    """The choice of one tool by its name."""

    type: str
    name: str


def _read_choice(value: Any) -> _Mode | OneTool:
    if value in ("none", "auto", "required"):
        mode: _Mode = value
        return mode
    kind = value.get("type") if isinstance(value, dict) else None
    no_allowed_tools(kind)
    if not isinstance(kind, str):
        raise rule(f"is {shown(value)}; it must be 'none', 'auto', 'required' or one function by its name")
    if kind not in _INNER_TYPES:
        raise rule(f"is {shown(kind)}, a tool that this server cannot run; choose a function", ".type")
    return OneTool(kind, string_field(value, "name", ""))


_MODES: Final = {"enum": ["none", "auto", "required"]}
_ONE_TOOL: Final = {"type": {"enum": list(_INNER_TYPES)}, "name": TEXT}
Choice = Annotated[
    _Mode | OneTool,
    ReadBy(_read_choice, any_of(_MODES, open_object(_ONE_TOOL)), Shape(frozenset(_ONE_TOOL))),
]


def chosen(choice: _Mode | OneTool | None, tools: list[Offered]) -> ToolChoice:
    """The choice by the name that the model sees; the function of a namespace can be chosen without the namespace."""
    if not isinstance(choice, OneTool):
        return choice or "auto"
    named = [tool.function.name for tool in tools if choice.name in (tool.function.name, tool.name)]
    return NamedChoice(named[0] if len(named) == 1 else choice.name, "tool_choice.name")


def told_back(tools: Sequence[NamedTool | LeftOut] | None) -> list[dict[str, Any]]:
    """The tools that the model may call, as a response repeats them."""
    told = []
    for _, tool in kept(tools):
        each = _TOLD[tool.type] | tool.model_dump(exclude_none=True, exclude={"tools"})
        told.append(each | {"tools": told_back(tool.tools)} if isinstance(tool, ResponseTool) and tool.tools else each)
    return told
