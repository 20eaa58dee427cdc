"""How the doors take tools and the choice among them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from ekiden.api.call import NamedChoice, Tool, ToolChoice
from ekiden.api.errors import shown
from ekiden.api.hand_checks import rule
from ekiden.api.json_schema import TEXT, any_of, open_object
from ekiden.api.schema_base import ReadBy, Strict
from ekiden.api.shape import Objects, Shape

T = TypeVar("T")

MAX_TOOLS: Final = 128
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]


class LeftOut(Strict):
    """Stands for a tool of a type that this server cannot run. The model does not see it."""


Tools = Annotated[list[T], Field(fail_fast=True, max_length=MAX_TOOLS)]


class OfTypes:
    """Annotates an entry of ``tools`` that is read as ``model`` if its type is one of ``types``, and else left out."""

    def __init__(self, model: type[Strict], *types: str) -> None:
        self.model = model
        self.shape = replace(model.shape, types=frozenset(types))

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(self._read, handler.generate_schema(self.model))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        assert self.shape.types is not None
        other = {"type": "string", "not": {"enum": sorted(self.shape.types)}}
        return any_of(handler(schema), {"type": "object", "properties": {"type": other}, "required": ["type"]})

    def _read(self, value: Any, read: Callable[[Any], Any]) -> Any:
        return LeftOut() if isinstance(value, dict) and self.shape.leaves_out(value) else read(value)


def kept(tools: Sequence[T | LeftOut] | None) -> Iterator[tuple[int, T]]:
    """The tools that the model may be shown, each with its index in the body."""
    return ((index, tool) for index, tool in enumerate(tools or ()) if not isinstance(tool, LeftOut))


class FunctionDefinition(Strict):
    """``parameters`` is a JSON schema of an object; without it the function takes none."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def tool_of(function: FunctionDefinition, where: str) -> Tool:
    return Tool(function.name, function.description, function.parameters, function.strict, where)


class FunctionTyped(Strict):
    type: Literal["function"]


def no_allowed_tools(kind: Any) -> None:
    """Raise a :func:`rule` for this type of ``tool_choice``.

    It is valid in OpenAI's API, but leaving the other tools out has the same effect.
    """
    if kind == "allowed_tools":
        way_out = "send in tools only the functions that may be called"
        raise rule(f"is 'allowed_tools', which is not taken; {way_out}", ".type")


def _read_choice(value: Any) -> ToolChoice:
    if value == "any":  # Mistral's word
        return "required"
    if value in ("none", "auto", "required"):
        chosen: Literal["none", "auto", "required"] = value
        return chosen
    kind = value.get("type") if isinstance(value, dict) else None
    no_allowed_tools(kind)
    if kind != "function":
        raise rule(f"is {shown(value)}; it must be 'none', 'auto', 'required' or one function by its name")
    function = value.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise rule(f"is {shown(function)}; it must be an object with the function's name", ".function")
    return NamedChoice(function["name"], "tool_choice.function.name")


_CHOICE: Final = {"type": {"const": "function"}, "function": open_object({"name": TEXT})}
_CHOICE_SHAPE: Final = Shape(frozenset(_CHOICE), inner=(Objects("function", Shape(frozenset({"name"})), listed=False),))

NestedChoice = Annotated[
    ToolChoice,
    ReadBy(_read_choice, any_of({"enum": ["none", "auto", "required", "any"]}, open_object(_CHOICE)), _CHOICE_SHAPE),
]
"""``tool_choice`` as in chat: the function's name is in an object of its own."""
