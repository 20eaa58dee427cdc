"""The shape of ``tools`` and ``tool_choice`` in a request."""

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from ekiden.api.errors import shown
from ekiden.api.schema_base import Strict, rule

MAX_TOOLS: Final = 128

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class FunctionDefinition(Strict):
    """``parameters`` is a JSON schema of an object; without it the function takes none."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: FunctionDefinition


@dataclass(frozen=True, slots=True)
class NamedChoice:
    """The answer must call this function."""

    name: str


def refuse_allowed_tools(value: Any) -> None:
    """OpenAI's choice of a part of ``tools`` is told apart from nonsense: a request can say the same with less."""
    if isinstance(value, dict) and value.get("type") == "allowed_tools":
        raise rule(
            "is 'allowed_tools', which is not taken; send in tools only the functions that may be called", ".type"
        )


def _check_choice(value: Any) -> str | NamedChoice:
    if value in ("none", "auto", "required"):
        return str(value)
    refuse_allowed_tools(value)
    if not isinstance(value, dict) or value.get("type") != "function":
        raise rule(f"is {shown(value)}; it must be 'none', 'auto', 'required' or one function by its name")
    function = value.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise rule(f"is {shown(function)}; it must be an object with the function's name", ".function")
    unknown = next((key for key in [*value, *function] if key not in ("type", "function", "name")), None)
    if unknown is not None:
        raise rule(f"has the unknown field {shown(unknown)}")
    return NamedChoice(function["name"])


Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)]
ToolChoice = Annotated[
    str | NamedChoice,
    PlainValidator(_check_choice),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["none", "auto", "required"]},
                {
                    "type": "object",
                    "properties": {
                        "type": {"const": "function"},
                        "function": {
                            "type": "object",
                            "properties": {"name": {"type": "string"}},
                            "required": ["name"],
                            "additionalProperties": False,
                        },
                    },
                    "required": ["type", "function"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
