"""How the doors take tools and the choice among them."""

from functools import partial
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field

from ekiden.api.call import NamedChoice, Tool, ToolChoice
from ekiden.api.errors import shown
from ekiden.api.hand_checks import only_fields, rule
from ekiden.api.json_schema import TEXT, Schema, any_of, closed_object
from ekiden.api.schema_base import ReadBy, Strict

T = TypeVar("T")

MAX_TOOLS: Final = 128
Tools = Annotated[list[T], Field(fail_fast=True, max_length=MAX_TOOLS)]
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


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


def _read_choice(value: Any, *, nested: bool) -> ToolChoice:
    """Reads ``tool_choice``. ``nested``: the function's name is in an object of its own, as in chat."""
    if value in ("none", "auto", "required"):
        chosen: Literal["none", "auto", "required"] = value
        return chosen
    place = ".function" if nested else ""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "allowed_tools":
        # Valid in OpenAI's API, but leaving the other tools out has the same effect.
        way_out = "send in tools only the functions that may be called"
        raise rule(f"is 'allowed_tools', which is not taken; {way_out}", ".type")
    if kind != "function":
        raise rule(f"is {shown(value)}; it must be 'none', 'auto', 'required' or one function by its name")
    function = value.get("function") if nested else value
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise rule(f"is {shown(function)}; it must be an object with the function's name", place)
    only_fields(value, ("type", "function" if nested else "name"), "")
    only_fields(function, ("name",) if nested else ("type", "name"), place)
    return NamedChoice(function["name"], f"tool_choice{place}.name")


_NAMED: Final = {"name": TEXT}


def _choice_schema(named: Schema) -> Schema:
    return any_of({"enum": ["none", "auto", "required"]}, closed_object({"type": {"const": "function"}, **named}))


NestedChoice = Annotated[
    ToolChoice, ReadBy(partial(_read_choice, nested=True), _choice_schema({"function": closed_object(_NAMED)}))
]
FlatChoice = Annotated[ToolChoice, ReadBy(partial(_read_choice, nested=False), _choice_schema(_NAMED))]
