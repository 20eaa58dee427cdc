"""The body of ``POST /v1/messages``, in Anthropic's shape, and the call that it amounts to."""

import json
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from ekiden.api.call import Call, Conversation, EarlierCall, Message, NamedChoice, Tool, ToolChoice, earlier_call
from ekiden.api.errors import invalid, shown
from ekiden.api.fields import MAX_MESSAGES, MAX_TOOLS, FunctionName, MaxTokens, StopList, TopK, TopP, sampling_of
from ekiden.api.schema_base import (
    Fate,
    Strict,
    Within,
    joined_text,
    no_effect,
    only_fields,
    refused,
    rule,
    string_field,
)
from ekiden.api.structured import json_format
from ekiden.state.sampling_params import Bound, SamplingParams

_PASSED_OVER: Final = ("cache_control", "citations")
"""Fields of a text block that have no effect."""


def _text(value: Any, where: str = "") -> str:
    return joined_text(value, where, extra=_PASSED_OVER, noun="blocks")


def _check_messages(value: Any) -> list[Message]:
    """A user message with tool results becomes one message for each result, and one for its text."""
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise rule(f"is {shown(value)}; it must be a list of 1 to {MAX_MESSAGES} messages")
    messages: list[Message] = []
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


def _blocks(role: str, content: list[Any], where: str) -> list[Message]:
    texts: list[str] = []
    calls: list[EarlierCall] = []
    results: list[Message] = []
    for index, block in enumerate(content):
        at = f"{where}[{index}]"
        kind = block.get("type") if isinstance(block, dict) else block
        if kind == "text":
            only_fields(block, ("type", "text", *_PASSED_OVER), at)
            texts.append(string_field(block, "text", at))
        elif kind == "tool_use" and role == "assistant":
            calls.append(_call(block, at))
        elif kind == "tool_result" and role == "user":
            results.append(_result(block, at))
        else:
            allowed = "'text' and 'tool_use'" if role == "assistant" else "'text' and 'tool_result'"
            raise rule(f"is {shown(kind)}; in a message of the {role} {allowed} are taken", f"{at}.type")
    message: Message = {"role": role, "content": "\n".join(texts)}
    if calls:
        return [{**message, "tool_calls": calls}]
    return results + ([message] if texts or not results else [])


def _call(block: dict[str, Any], where: str) -> EarlierCall:
    only_fields(block, ("type", "id", "name", "input", "cache_control", "caller"), where)
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise rule(f"is {shown(arguments)}; it must be an object", f"{where}.input")
    name = string_field(block, "name", where)
    return earlier_call(string_field(block, "id", where), name, json.dumps(arguments, ensure_ascii=False))


def _result(block: dict[str, Any], where: str) -> Message:
    only_fields(block, ("type", "tool_use_id", "content", "is_error", "cache_control"), where)
    content = block.get("content")
    text = "" if content is None else _text(content, f"{where}.content")
    if block.get("is_error"):
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": string_field(block, "tool_use_id", where), "content": text}


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
    fates: ClassVar[dict[str, Fate]] = {"effort": refused("the model has no effort setting")}

    format: OutputFormat | None = None


class Thinking(Strict):
    type: Literal["disabled"]


class MessagesMetadata(Strict):
    user_id: str | None = None


class CountRequest(Strict):
    """What ``/v1/messages/count_tokens`` takes."""

    fates: ClassVar[dict[str, Fate]] = {
        "thinking": no_effect("of the type 'disabled' only"),
        "cache_control": no_effect("an object: prefixes are found by their content"),
        "context_management": refused("a conversation is taken as it is"),
        "mcp_servers": refused("the server calls nobody else"),
    }

    model: str
    messages: Annotated[list[Message], PlainValidator(_check_messages), WithJsonSchema(_MESSAGES_SCHEMA)]
    system: Annotated[str, PlainValidator(_text), WithJsonSchema(_BLOCKS_SCHEMA)] | None = None
    tools: Annotated[list[MessagesTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: MessagesChoice | None = None
    output_config: OutputConfig | None = None
    # Without effect: see ``fates``.
    thinking: Thinking | None = None
    cache_control: dict[str, Any] | None = None


class MessagesRequest(CountRequest):
    fates: ClassVar[dict[str, Fate]] = {
        **CountRequest.fates,
        "metadata": no_effect("an object with a user_id"),
        "service_tier": no_effect("'auto' or 'standard_only': there is one tier"),
        "inference_geo": no_effect("any string"),
        "container": refused("the server runs no code"),
    }

    max_tokens: MaxTokens
    temperature: Annotated[float, Within(Bound(0, 1, "between 0 and 1"))] | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    stop_sequences: StopList | None = None
    stream: bool | None = None
    # Without effect: see ``fates``.
    metadata: MessagesMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    inference_geo: str | None = None


def messages_call(fields: CountRequest, defaults: SamplingParams) -> Call:
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
    choice = fields.tool_choice
    form = None if fields.output_config is None else fields.output_config.format
    return Call(
        model=fields.model,
        prompt=Conversation(
            messages=messages,
            tools=[
                Tool(tool.name, tool.description, tool.input_schema, tool.strict, f"tools[{index}]", "input_schema")
                for index, tool in enumerate(fields.tools or [])
            ],
            tool_choice="auto" if choice is None else _choice(choice),
            parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
            beginning=beginning,
        ),
        sampling=sampling_of(fields, defaults, stop=getattr(fields, "stop_sequences", None)),
        names={"stop": "stop_sequences"},
        answer_format=None if form is None else json_format("output_config.format.schema", form.definition),
        stream=isinstance(fields, MessagesRequest) and bool(fields.stream),
    )


def _choice(choice: MessagesChoice) -> ToolChoice:
    if (choice.type == "tool") != (choice.name is not None):
        raise invalid("tool_choice.name", "tool_choice.name is required for the type 'tool', and for no other.")
    if choice.name is not None:
        return NamedChoice(choice.name, "tool_choice.name")
    return "required" if choice.type == "any" else "none" if choice.type == "none" else "auto"
