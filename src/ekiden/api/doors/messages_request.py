"""The body of ``POST /v1/messages``, in Anthropic's shape, and the chat request that it amounts to."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from ekiden.api.doors.renaming import as_chat
from ekiden.api.errors import invalid, shown
from ekiden.api.schema_base import Strict, only_fields, rule, string_field
from ekiden.api.schemas import MAX_MESSAGES, MAX_STOP_LENGTH, MAX_STOPS, ChatRequest
from ekiden.api.tool_schemas import MAX_TOOLS, FunctionName

REFUSED: Final[dict[str, str]] = {
    "container": "the server runs no code",
    "context_management": "a conversation is taken as it is",
    "mcp_servers": "the server calls nobody else",
    "effort": "the model has no effort setting",
}
"""Known fields that are refused, and why."""

NAMES: Final = {
    "tool_choice.function": "tool_choice",
    "].function.parameters": "].input_schema",
    "].function": "]",
    "stop": "stop_sequences",
    "response_format.json_schema": "output_config.format",
}
"""How fields of the chat request are named here. Messages are not renamed: theirs stand one after another, as ours."""


def _check_system(value: Any) -> str:
    return value if isinstance(value, str) else _text(value, "")


def _check_messages(value: Any) -> list[dict[str, Any]]:
    """Chat messages; a message of the user's that brings results becomes one message for each result, then the text."""
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise rule(f"is {shown(value)}; it must be a list of 1 to {MAX_MESSAGES} messages")
    messages: list[dict[str, Any]] = []
    for index, message in enumerate(value):
        where = f"[{index}]"
        if not isinstance(message, dict):
            raise rule(f"is {shown(message)}; it must be an object", where)
        only_fields(message, ("role", "content"), where)
        role = message.get("role")
        if role not in ("user", "assistant"):
            raise rule(f"is {shown(role)}; it must be 'user' or 'assistant'", f"{where}.role")
        content = message.get("content")
        if isinstance(content, str):
            messages.append({"role": role, "content": content})
        elif not isinstance(content, list) or not content:
            raise rule(f"is {shown(content)}; it must be a string or a list of blocks", f"{where}.content")
        else:
            messages += _blocks(role, content, f"{where}.content")
    return messages


def _blocks(role: str, content: list[Any], where: str) -> list[dict[str, Any]]:
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for index, block in enumerate(content):
        at = f"{where}[{index}]"
        kind = block.get("type") if isinstance(block, dict) else block
        if kind == "text":
            only_fields(block, ("type", "text", "cache_control", "citations"), at)
            texts.append(string_field(block, "text", at))
        elif kind == "tool_use" and role == "assistant":
            calls.append(_call(block, at))
        elif kind == "tool_result" and role == "user":
            results.append(_result(block, at))
        else:
            allowed = "'text' and 'tool_use'" if role == "assistant" else "'text' and 'tool_result'"
            raise rule(f"is {shown(kind)}; in a message of the {role} {allowed} are taken", f"{at}.type")
    if calls:
        return [{"role": role, "content": "\n".join(texts), "tool_calls": calls}]
    return results + ([{"role": role, "content": "\n".join(texts)}] if texts or not results else [])


def _call(block: dict[str, Any], where: str) -> dict[str, Any]:
    only_fields(block, ("type", "id", "name", "input", "cache_control", "caller"), where)
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise rule(f"is {shown(arguments)}; it must be an object", f"{where}.input")
    function = {"name": string_field(block, "name", where), "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": string_field(block, "id", where), "type": "function", "function": function}


def _result(block: dict[str, Any], where: str) -> dict[str, Any]:
    only_fields(block, ("type", "tool_use_id", "content", "is_error", "cache_control"), where)
    content = block.get("content")
    text = "" if content is None else content if isinstance(content, str) else _text(content, f"{where}.content")
    if block.get("is_error"):
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": string_field(block, "tool_use_id", where), "content": text}


def _text(value: Any, where: str) -> str:
    if not isinstance(value, list):
        raise rule(f"is {shown(value)}; it must be a string or a list of text blocks", where)
    texts: list[str] = []
    for index, block in enumerate(value):
        at = f"{where}[{index}]"
        kind = block.get("type") if isinstance(block, dict) else block
        if kind != "text":
            raise rule(f"is {shown(kind)}; the model takes 'text' blocks only", f"{at}.type")
        only_fields(block, ("type", "text", "cache_control", "citations"), at)
        texts.append(string_field(block, "text", at))
    return "\n".join(texts)


_BLOCKS_SCHEMA: Final = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "object", "properties": {"type": {"type": "string"}}}, "minItems": 1},
    ]
}
_MESSAGES_SCHEMA: Final = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"role": {"enum": ["user", "assistant"]}, "content": _BLOCKS_SCHEMA},
        "required": ["role", "content"],
        "additionalProperties": False,
    },
    "minItems": 1,
    "maxItems": MAX_MESSAGES,
}

Conversation = Annotated[list[dict[str, Any]], PlainValidator(_check_messages), WithJsonSchema(_MESSAGES_SCHEMA)]
System = Annotated[str, PlainValidator(_check_system), WithJsonSchema(_BLOCKS_SCHEMA)]
StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


class MessagesTool(Strict):
    name: FunctionName
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class MessagesChoice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(Strict):
    type: Literal["json_schema"]
    definition: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Strict):
    format: OutputFormat | None = None
    # Refused with a reason: REFUSED.
    effort: None = None


class Thinking(Strict):
    type: Literal["disabled"]


class MessagesMetadata(Strict):
    user_id: str | None = None


class CountRequest(Strict):
    """What ``/v1/messages/count_tokens`` takes."""

    model: str
    messages: Conversation
    system: System | None = None
    tools: Annotated[list[MessagesTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: MessagesChoice | None = None
    thinking: Thinking | None = None
    cache_control: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    # Refused with a reason: REFUSED.
    context_management: None = None
    mcp_servers: None = None


class MessagesRequest(CountRequest):
    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    stop_sequences: Annotated[list[StopText], Field(fail_fast=True, max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    # Without effect.
    metadata: MessagesMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    inference_geo: str | None = None
    # Refused with a reason: REFUSED.
    container: None = None


@dataclass(frozen=True, slots=True)
class Converted:
    """``beginning`` is what the client has written of the answer already."""

    chat: ChatRequest
    beginning: str


def chat_request(fields: CountRequest) -> Converted:
    """Raises :class:`ApiError` 400."""
    messages, beginning = fields.messages, ""
    if messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]:
        messages, beginning = messages[:-1], messages[-1]["content"]
        if not messages:
            raise invalid("messages", "messages holds only the beginning of an answer; it needs a message of the user.")
        if beginning.rstrip() != beginning:
            raise invalid(
                "messages", "messages ends with a beginning of the answer that ends with white space; leave that out."
            )
    if fields.system is not None:
        messages = [{"role": "system", "content": fields.system}, *messages]
    values: dict[str, Any] = {
        "model": fields.model,
        "messages": messages,
        "tools": None if fields.tools is None else [_tool(tool) for tool in fields.tools],
        "response_format": _format(fields.output_config),
        **_choice(fields.tool_choice),
    }
    if isinstance(fields, MessagesRequest):
        values |= {
            "max_completion_tokens": fields.max_tokens,
            "temperature": fields.temperature,
            "top_p": fields.top_p,
            "top_k": fields.top_k,
            "stop": fields.stop_sequences or None,
        }
    return Converted(as_chat(values, NAMES), beginning)


def _tool(tool: MessagesTool) -> dict[str, Any]:
    function = {"name": tool.name, "parameters": tool.input_schema}
    optional = {"description": tool.description, "strict": tool.strict}
    return {"type": "function", "function": function | {key: v for key, v in optional.items() if v is not None}}


def _format(config: OutputConfig | None) -> dict[str, Any] | None:
    if config is None or config.format is None:
        return None
    schema = {"name": "output", "schema": config.format.definition, "strict": True}
    return {"type": "json_schema", "json_schema": schema}


def _choice(choice: MessagesChoice | None) -> dict[str, Any]:
    if choice is None:
        return {}
    if (choice.type == "tool") != (choice.name is not None):
        raise invalid("tool_choice.name", "tool_choice.name is required for the type 'tool', and for no other.")
    named = {"type": "function", "function": {"name": choice.name}}
    return {
        "tool_choice": {"auto": "auto", "any": "required", "none": "none", "tool": named}[choice.type],
        "parallel_tool_calls": None
        if choice.disable_parallel_tool_use is None
        else not choice.disable_parallel_tool_use,
    }
