"""The messages of a chat request: how they are read, and what of them the chat template is shown."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from ekiden.api.call import Message, earlier_call
from ekiden.api.errors import invalid, shown
from ekiden.api.fields import FOUND_BY_CONTENT, MAX_MESSAGES
from ekiden.api.hand_checks import joined_text, rule
from ekiden.api.json_schema import TEXT, any_of, array, open_object
from ekiden.api.lone_surrogates import sound_arguments
from ekiden.api.schema_base import ReadBy, Strict
from ekiden.api.shape import Fate, Shape, ignored, refused
from ekiden.state.sampling_params import MAX_ENTRIES

_PART_SHAPE: Final = Shape(
    names=frozenset({"type", "text", "refusal"}), fates={"cache_control": ignored(FOUND_BY_CONTENT)}
)
_CONTENT_SCHEMA: Final = any_of(
    TEXT,
    array(open_object({"type": {"enum": ["text", "input_text", "output_text"]}, "text": TEXT}), 0),
    array(open_object({"type": {"const": "refusal"}, "refusal": TEXT}), 0),
)
_ARGUMENTS_SCHEMA: Final = any_of(TEXT, {"type": "object"})


def _read_content(value: Any) -> str | None:
    """An empty list counts as absent. Parts under the names of the newer API are taken too."""
    return None if value == [] else joined_text(value)


def _read_arguments(value: Any) -> str:
    """Some clients send the object itself."""
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, str):
        raise rule(f"is {shown(value)}; it must be a string of JSON")
    return sound_arguments(value)


class FunctionCall(Strict):
    name: str
    arguments: Annotated[str, ReadBy(_read_arguments, _ARGUMENTS_SCHEMA)] | None = None


class ToolCall(Strict):
    fates: ClassVar[Mapping[str, Fate]] = {"index": ignored("the calls are in the order of the list")}

    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


_NOT_FOR_THE_TEMPLATE: Final = "it is no part of the prompt"


class ChatMessage(Strict):
    """A message of the conversation. Clients that send back earlier answers include more than the model is shown.

    ``prefix`` on the last message, of the role assistant: the answer continues it.
    """

    fates: ClassVar[Mapping[str, Fate]] = {
        "audio": refused("the model takes and gives text only"),
        "images": refused("the model takes and gives text only", fine=([],)),
        "function_call": refused("this older form of tool_calls is not taken"),
        "cache_control": ignored(FOUND_BY_CONTENT),
        "id": ignored(_NOT_FOR_THE_TEMPLATE),
        "type": ignored(_NOT_FOR_THE_TEMPLATE, fine=("message", "text")),
        "annotations": ignored(_NOT_FOR_THE_TEMPLATE),
        "provider_specific_fields": ignored(_NOT_FOR_THE_TEMPLATE),
    }

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, ReadBy(_read_content, _CONTENT_SCHEMA, _PART_SHAPE)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=MAX_ENTRIES)] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    prefix: bool | None = None


Messages = Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]


def messages_of(messages: list[ChatMessage]) -> list[Message]:
    """The conversation as chat templates expect it. Raises :class:`ApiError` 400 for a message without content."""
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: ChatMessage, where: str) -> Message:
    """Null, absent and empty content all become an empty string."""
    calls = message.tool_calls or []
    if message.content is None and message.role != "assistant":
        raise invalid(
            f"{where}.content", f"{where}.content is required for the role {message.role!r}.", code="missing_parameter"
        )
    if calls and message.role != "assistant":
        raise invalid(f"{where}.tool_calls", f"{where}.tool_calls belongs to the role 'assistant' only.")
    # "developer" is the newer name of "system", which templates know.
    role = "system" if message.role == "developer" else message.role
    prepared: Message = {"role": role, "content": message.content or message.refusal or ""}
    if message.name is not None:
        prepared["name"] = message.name
    if message.tool_call_id is not None:
        prepared["tool_call_id"] = message.tool_call_id
    thought = message.reasoning_content or message.reasoning
    if thought:
        prepared["reasoning_content"] = thought
    if calls:
        prepared["tool_calls"] = [
            earlier_call(call.id or "", call.function.name, call.function.arguments) for call in calls
        ]
    return prepared
