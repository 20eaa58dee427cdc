"""The body of ``POST /v1/responses``, and the chat request that it amounts to.

Nothing is kept between calls: ``store: true`` and whatever refers to an earlier response is refused.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from ekiden.api.doors.renaming import as_chat
from ekiden.api.errors import invalid, shown
from ekiden.api.schema_base import Strict, only_fields, rule, string_field
from ekiden.api.schemas import MAX_MESSAGES, ChatRequest, Metadata
from ekiden.api.tool_schemas import MAX_TOOLS, FunctionName, refuse_allowed_tools

STATE: Final = "this server keeps nothing between calls; send the whole conversation in input"
REFUSED: Final[dict[str, str]] = {
    "previous_response_id": STATE,
    "conversation": STATE,
    "prompt": "no prompts are stored here; send the text in input",
    "reasoning": "the model has no reasoning setting",
    "max_tool_calls": "there are no tools that the server itself would call",
    "context_management": "a conversation is taken as it is",
    "moderation": "nothing is moderated here",
}
"""Known fields that are refused, and why."""

NAMES: Final = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "tool_choice.function": "tool_choice",
    "].function": "]",
}
"""How fields of the chat request are named here."""

_TEXT_PARTS: Final = ("input_text", "output_text", "text")
_NO_LOGPROBS: Final = "log-probabilities are given by /v1/chat/completions and /v1/completions"


def _check_include(value: Any) -> list[Any]:
    if value != []:
        raise rule(f"is {shown(value)}; it must be an empty list: {_NO_LOGPROBS}, and there is nothing else to include")
    return []


def _check_top_logprobs(value: Any) -> int:
    if value != 0 or isinstance(value, bool):
        raise rule(f"is {shown(value)}; it must be 0: {_NO_LOGPROBS}")
    return 0


Include = Annotated[list[Any], PlainValidator(_check_include), WithJsonSchema({"type": "array", "maxItems": 0})]
TopLogprobs = Annotated[int, PlainValidator(_check_top_logprobs), WithJsonSchema({"const": 0})]


def _check_input(value: Any) -> list[dict[str, Any]]:
    """Chat messages from a text or a list of items."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise rule(f"is {shown(value)}; it must be a string or a list of 1 to {MAX_MESSAGES} items")
    messages: list[dict[str, Any]] = []
    for index, item in enumerate(value):
        where = f"[{index}]"
        if not isinstance(item, dict):
            raise rule(f"is {shown(item)}; it must be an object", where)
        kind = item.get("type", "message")
        if kind == "message":
            messages.append(_message(item, where))
        elif kind == "function_call":
            _add_call(messages, item, where)
        elif kind == "function_call_output":
            only_fields(item, ("type", "id", "status", "call_id", "output"), where)
            content = _text(item.get("output"), f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": string_field(item, "call_id", where), "content": content})
        else:
            raise rule(
                f"is {shown(kind)}; 'message', 'function_call' and 'function_call_output' are taken", f"{where}.type"
            )
    return messages


def _message(item: dict[str, Any], where: str) -> dict[str, Any]:
    only_fields(item, ("type", "id", "status", "role", "content", "phase"), where)
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise rule(f"is {shown(role)}; it must be 'user', 'assistant', 'system' or 'developer'", f"{where}.role")
    return {"role": role, "content": _text(item.get("content"), f"{where}.content")}


def _add_call(messages: list[dict[str, Any]], item: dict[str, Any], where: str) -> None:
    """Calls that follow one another, or what the assistant said, belong to one message of the chat."""
    only_fields(item, ("type", "id", "status", "call_id", "name", "arguments"), where)
    function = {"name": string_field(item, "name", where), "arguments": string_field(item, "arguments", where)}
    call = {"id": string_field(item, "call_id", where), "type": "function", "function": function}
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})


def _text(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise rule(f"is {shown(value)}; it must be a string or a list of text parts", where)
    texts: list[str] = []
    for index, part in enumerate(value):
        at = f"{where}[{index}]"
        if not isinstance(part, dict) or part.get("type") not in _TEXT_PARTS:
            kind = part.get("type") if isinstance(part, dict) else part
            raise rule(f"is {shown(kind)}; the model takes text parts only", f"{at}.type")
        only_fields(part, ("type", "text", "annotations", "logprobs"), at)
        texts.append(string_field(part, "text", at))
    return "\n".join(texts)


def _check_format(value: Any) -> dict[str, Any]:
    """``response_format`` of the chat request."""
    if not isinstance(value, dict):
        raise rule(f"is {shown(value)}; it must be an object")
    kind = value.get("type")
    if kind != "json_schema":
        only_fields(value, ("type",), "")
        if kind not in ("text", "json_object"):
            raise rule(f"is {shown(kind)}; it must be 'text', 'json_object' or 'json_schema'", ".type")
        return {"type": kind}
    return {"type": kind, "json_schema": {key: item for key, item in value.items() if key != "type"}}


def _check_choice(value: Any) -> Any:
    """``tool_choice`` of the chat request."""
    refuse_allowed_tools(value)
    if isinstance(value, dict) and value.get("type") == "function":
        only_fields(value, ("type", "name"), "")
        return {"type": "function", "function": {"name": string_field(value, "name", "")}}
    if value not in ("none", "auto", "required"):
        raise rule(f"is {shown(value)}; it must be 'none', 'auto', 'required' or one function by its name")
    return value


_ITEM_SCHEMA: Final = {"type": "object", "properties": {"type": {"type": "string"}}}
_INPUT_SCHEMA: Final = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": _ITEM_SCHEMA, "minItems": 1, "maxItems": MAX_MESSAGES},
    ]
}
_FORMAT_SCHEMA: Final = {
    "type": "object",
    "properties": {"type": {"enum": ["text", "json_object", "json_schema"]}},
    "required": ["type"],
}
_CHOICE_SCHEMA: Final = {
    "anyOf": [
        {"enum": ["none", "auto", "required"]},
        {
            "type": "object",
            "properties": {"type": {"const": "function"}, "name": {"type": "string"}},
            "required": ["type", "name"],
        },
    ]
}


class TextSettings(Strict):
    format: Annotated[dict[str, Any], PlainValidator(_check_format), WithJsonSchema(_FORMAT_SCHEMA)] | None = None
    verbosity: Literal["medium"] | None = None


class ResponseTool(Strict):
    """A function as chat describes it, with its type beside its name."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponsesStreamOptions(Strict):
    include_obfuscation: bool | None = None


class ResponsesRequest(Strict):
    model: str
    input: Annotated[list[dict[str, Any]], PlainValidator(_check_input), WithJsonSchema(_INPUT_SCHEMA)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stream: bool | None = None
    text: TextSettings | None = None
    tools: Annotated[list[ResponseTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: Annotated[Any, PlainValidator(_check_choice), WithJsonSchema(_CHOICE_SCHEMA)] | None = None
    parallel_tool_calls: bool | None = None
    # Extensions, as for chat.
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    # Without effect.
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    include: Include | None = None
    top_logprobs: TopLogprobs | None = None
    stream_options: ResponsesStreamOptions | None = None
    store: bool | None = None
    # Refused with a reason: REFUSED.
    previous_response_id: None = None
    conversation: None = None
    prompt: None = None
    reasoning: None = None
    max_tool_calls: None = None
    context_management: None = None
    moderation: None = None


def chat_request(fields: ResponsesRequest) -> ChatRequest:
    """Raises :class:`ApiError` 400."""
    if fields.store:
        raise invalid("store", f"store is true; leave it out or send false: {STATE}.", code="unsupported_parameter")
    messages = fields.input
    if fields.instructions is not None:
        messages = [{"role": "system", "content": fields.instructions}, *messages]
    tools: list[dict[str, Any]] | None = None
    if fields.tools is not None:
        described = [tool.model_dump(exclude={"type"}, exclude_none=True) for tool in fields.tools]
        tools = [{"type": "function", "function": function} for function in described]
    return as_chat(
        {
            "model": fields.model,
            "messages": messages,
            "max_completion_tokens": fields.max_output_tokens,
            "temperature": fields.temperature,
            "top_p": fields.top_p,
            "response_format": fields.text and fields.text.format,
            "tools": tools,
            "tool_choice": fields.tool_choice,
            "parallel_tool_calls": fields.parallel_tool_calls,
            "seed": fields.seed,
            "top_k": fields.top_k,
            "min_p": fields.min_p,
            "repetition_penalty": fields.repetition_penalty,
            "priority": fields.priority,
        },
        NAMES,
    )
