"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's shape of a conversation."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from ekiden.api.asgi import JsonBytes
from ekiden.api.call import Call, Conversation, EarlierCall, Message, NamedChoice, Tool, ToolChoice, earlier_call
from ekiden.api.doors.door import Door, Doors, Job
from ekiden.api.doors.items import ItemsWriter
from ekiden.api.errors import ApiError, invalid, messages_body, shown
from ekiden.api.fields import (
    FOUND_BY_CONTENT,
    MAX_MESSAGES,
    NOT_STORED,
    ONE_TIER,
    MaxTokens,
    StopList,
    TopK,
    TopP,
    sampling_of,
)
from ekiden.api.generation import Child
from ekiden.api.hand_checks import joined_text, objects, only_fields, rule, string_field
from ekiden.api.json_schema import TEXT, any_of, array, closed_object
from ekiden.api.schema_base import ReadBy, Strict, Within
from ekiden.api.shape import Fate, ignored, refused
from ekiden.api.sse import named_event
from ekiden.api.structured import json_format
from ekiden.api.text_output import Piece
from ekiden.api.tool_fields import FunctionName, Tools
from ekiden.state.sampling_params import Bound, SamplingParams

_PASSED_OVER: Final = ("cache_control", "citations")
"""Fields of a text block that have no effect."""


def _text(value: Any, where: str = "") -> str:
    return joined_text(value, where, kinds={"text": "text"}, noun="blocks")


def _check_messages(value: Any) -> list[Message]:
    """A user message with tool results becomes one message for each result, and one for its text."""
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise rule(f"is {shown(value)}; it must be a list of 1 to {MAX_MESSAGES} messages")
    messages: list[Message] = []
    for where, message in objects(value):
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


_BLOCKS_SCHEMA: Final = any_of(TEXT, array({"type": "object", "properties": {"type": TEXT}}))
_MESSAGE_SCHEMA: Final = closed_object({"role": {"enum": ["user", "assistant"]}, "content": _BLOCKS_SCHEMA})
_MESSAGES_SCHEMA: Final = array(_MESSAGE_SCHEMA, 1, MAX_MESSAGES)


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
    fates: ClassVar[Mapping[str, Fate]] = {"effort": refused("the model has no effort setting")}

    format: OutputFormat | None = None


class Thinking(Strict):
    type: Literal["disabled"]


class CountRequest(Strict):
    """What ``/v1/messages/count_tokens`` takes."""

    fates: ClassVar[Mapping[str, Fate]] = {
        "context_management": refused("a conversation is taken as it is"),
        "mcp_servers": refused("the server calls nobody else"),
        "cache_control": ignored(FOUND_BY_CONTENT),
    }

    model: str
    messages: Annotated[list[Message], ReadBy(_check_messages, _MESSAGES_SCHEMA)]
    system: Annotated[str, ReadBy(_text, _BLOCKS_SCHEMA)] | None = None
    tools: Tools[MessagesTool] | None = None
    tool_choice: MessagesChoice | None = None
    output_config: OutputConfig | None = None
    thinking: Thinking | None = None


class MessagesRequest(CountRequest):
    fates: ClassVar[Mapping[str, Fate]] = {
        "container": refused("the server runs no code"),
        "metadata": ignored(NOT_STORED),
        "service_tier": ignored(ONE_TIER, fine=("auto", "standard_only")),
        "inference_geo": ignored("the server is where it is"),
    }

    max_tokens: MaxTokens
    temperature: Annotated[float, Within(Bound(0, 1, "between 0 and 1"))] | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    stop_sequences: StopList | None = None
    stream: bool | None = None


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


async def count_tokens(doors: Doors, request: Request) -> Response:
    """``{"input_tokens"}`` of a conversation. Raises :class:`ApiError`."""
    _, job = await doors.ready(COUNTING, request)
    return JsonBytes({"input_tokens": len(job.children[0].prompt.token_ids)})


class MessageWriter(ItemsWriter):
    """The message and its events; its items are called blocks."""

    def __init__(self, fields: CountRequest, job: Job) -> None:
        super().__init__(job)
        self._arguments = ""

    def opening(self, child: Child, first: Piece) -> bytes:
        usage = _usage({"prompt_tokens": len(child.prompt.token_ids), "completion_tokens": 0}, cached=0)
        return named_event("message_start", {"message": self._message(usage)})

    def begin_text(self) -> bytes:
        return self._begin({"type": "text", "text": ""})

    def begin_call(self, call_id: str, name: str) -> bytes:
        self._arguments = ""
        return self._begin({"type": "tool_use", "id": call_id, "name": name, "input": {}})

    def grow(self, text: str) -> bytes:
        if self.open == "call":
            self._arguments += text
            delta = {"type": "input_json_delta", "partial_json": text}
        else:
            self.items[-1]["text"] += text
            delta = {"type": "text_delta", "text": text}
        return self._block_event("content_block_delta", {"delta": delta})

    def close(self) -> bytes:
        if self.open == "call":
            self.items[-1]["input"] = _object(self._arguments)
        return self._block_event("content_block_stop", {})

    def usage(self, usage: dict[str, Any]) -> bytes:
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        fields = {"delta": self._stop(), "usage": _usage(usage, cached=cached)}
        return named_event("message_delta", fields) + named_event("message_stop", {})

    def error(self, error: ApiError) -> bytes:
        return b"event: error\ndata: " + messages_body(error) + b"\n\n"

    def whole(self, answers: list[Piece], usage: dict[str, Any]) -> dict[str, Any]:
        """A tool call that was cut off is left out, because half an object is not valid as its input."""
        self.piece(self.job.children[0], answers[0])
        message = self._message(_usage(usage, cached=usage["prompt_tokens_details"]["cached_tokens"]))
        content = [block for block in self.items if block.get("input", {}) is not None]
        return message | self._stop() | {"content": content}

    def _message(self, usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": f"msg_{self.job.origin.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self.job.card.model_id,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _stop(self) -> dict[str, Any]:
        assert self.finish is not None
        stopped = self.finish.stop_reason
        if self.cut:
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if isinstance(stopped, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stopped}
        return {"stop_reason": "tool_use" if self.reader.called else "end_turn", "stop_sequence": None}

    def _begin(self, block: dict[str, Any]) -> bytes:
        self.items.append(block)
        return self._block_event("content_block_start", {"content_block": block})

    def _block_event(self, kind: str, fields: dict[str, Any]) -> bytes:
        return named_event(kind, {"index": len(self.items) - 1, **fields})


def _usage(usage: dict[str, Any], *, cached: int) -> dict[str, Any]:
    """In this protocol, input tokens do not include those found in the prefix cache."""
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
    }


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


DOOR: Final = Door(fields=MessagesRequest, call=messages_call, writer=MessageWriter)
COUNTING: Final = Door(fields=CountRequest, call=messages_call, writer=MessageWriter)
