"""``POST /v1/chat/completions``."""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from ekiden.api.call import Call, Conversation, Message, ToolChoice, earlier_call
from ekiden.api.doors.chunks import ChunkedWriter
from ekiden.api.doors.door import Door, Job
from ekiden.api.errors import invalid
from ekiden.api.fields import (
    GENERATION_FATES,
    HINT_FATES,
    MAX_MESSAGES,
    MAX_TOOLS,
    ConversationHints,
    FunctionDefinition,
    FunctionTyped,
    GenerationFields,
    MaxTokens,
    check_streaming,
    choice_reader,
    choice_schema,
    sampling_of,
    tool_of,
)
from ekiden.api.generation import Child
from ekiden.api.schema_base import Fate, Strict, Within, joined_text, no_effect, refused, rule
from ekiden.api.sse import encode
from ekiden.api.structured import format_asked
from ekiden.api.text_output import Piece, WholeAnswer, chat_logprobs, finish_fields, prompt_logprobs
from ekiden.api.tools.reply import ReplyReader, chat_delta, chat_finish_fields, chat_message, read_whole
from ekiden.state.sampling_params import BOUNDS, MAX_ENTRIES, SamplingParams

_PART_SCHEMA: Final = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
_CONTENT_SCHEMA: Final = {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART_SCHEMA, "minItems": 1}]}


def _check_content(value: Any) -> str:
    if value == []:
        raise rule("is []; it must be a string or a list of text parts")
    return joined_text(value)


class FunctionCall(Strict):
    name: str
    arguments: str | None = None


class ToolCall(Strict):
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class ChatMessage(Strict):
    """A message of the conversation. Clients that send back earlier answers include the last four fields and those in
    ``fates``."""

    fates: ClassVar[dict[str, Fate]] = dict.fromkeys(
        ("audio", "function_call"), refused("it is not supported by this server")
    )

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, PlainValidator(_check_content), WithJsonSchema(_CONTENT_SCHEMA)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=MAX_ENTRIES)] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


Messages = Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]


class ChatTool(FunctionTyped):
    function: FunctionDefinition


class ChatRequest(GenerationFields, ConversationHints):
    fates: ClassVar[dict[str, Fate]] = {
        **GENERATION_FATES,
        **HINT_FATES,
        "prediction": no_effect("an object: a hint that changes no answer"),
        "modalities": no_effect("['text'] only"),
        "function_call": no_effect("'none' or 'auto': without functions it has no meaning"),
        "functions": refused("this older form of tools is not taken; send tools"),
        "audio": refused("the model takes and gives text only"),
        "web_search_options": refused("the server does not reach the network"),
        "reasoning_effort": refused("the model has no reasoning setting"),
        "verbosity": refused("the model has no verbosity setting"),
    }

    messages: Messages
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Within(BOUNDS["logprobs"])] | None = None
    tools: Annotated[list[ChatTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: (
        Annotated[ToolChoice, PlainValidator(choice_reader(nested=True)), WithJsonSchema(choice_schema(nested=True))]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    # Without effect: see ``fates``.
    prediction: dict[str, Any] | None = None
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True, max_length=1)] | None = None
    function_call: Literal["none", "auto"] | None = None


def messages_of(messages: list[ChatMessage]) -> list[Message]:
    """The conversation as chat templates expect it. Raises :class:`ApiError` 400 for a message without content."""
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: ChatMessage, where: str) -> Message:
    """Null, absent and empty content all become an empty string."""
    calls = message.tool_calls or []
    if message.content is None and (message.role != "assistant" or not (calls or message.refusal)):
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
    if calls:
        prepared["tool_calls"] = [
            earlier_call(call.id or "", call.function.name, call.function.arguments) for call in calls
        ]
    return prepared


def chat_call(fields: ChatRequest, defaults: SamplingParams) -> Call:
    include_usage = check_streaming(fields)
    if fields.top_logprobs is not None and not fields.logprobs:
        text = f"top_logprobs is {fields.top_logprobs}; it is allowed only with logprobs: true."
        raise invalid("top_logprobs", text)
    newer = fields.max_completion_tokens is not None
    return Call(
        model=fields.model,
        prompt=Conversation(
            messages=messages_of(fields.messages),
            tools=[tool_of(tool.function, f"tools[{i}].function") for i, tool in enumerate(fields.tools or [])],
            tool_choice=fields.tool_choice or "auto",
            parallel_tool_calls=fields.parallel_tool_calls is not False,
        ),
        sampling=sampling_of(
            fields,
            defaults,
            max_tokens=fields.max_completion_tokens if newer else fields.max_tokens,
            logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        ),
        names={"max_tokens": "max_completion_tokens"} if newer else {},
        answer_format=format_asked(fields),
        n=fields.n or 1,
        priority=fields.priority or 0,
        stream=bool(fields.stream),
        include_usage=include_usage,
    )


class ChatWriter(ChunkedWriter):
    """The answer as one object, or as the chunks of a stream."""

    def __init__(self, fields: ChatRequest, job: Job) -> None:
        kinds = {"kind": "chat.completion", "chunk": "chat.completion.chunk"}
        super().__init__(job, prefix="chatcmpl", **kinds, key='"delta":{"content"', close="}")
        plan = job.plan
        self._readers = None if plan is None else {child.index: ReplyReader(plan) for child in job.children}
        self._token_text = job.token_text
        self._return_ids = bool(fields.return_token_ids)

    def whole(self, answers: list[WholeAnswer], usage: dict[str, Any]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        first = self.job.children[0]
        for child, answer in zip(self.job.children, answers, strict=True):
            wants = child.request.sampling.logprobs is not None
            reply = read_whole(self.job.plan, answer.text)
            choice = {
                "index": child.index,
                "message": chat_message(reply),
                "logprobs": chat_logprobs(self._token_text, answer.logprobs) if wants else None,
                **chat_finish_fields(answer.finish, bool(reply.calls)),
            }
            if self._return_ids:
                choice["token_ids"] = answer.token_ids
            choices.append(choice)
        response = self.head | {"choices": choices, "usage": usage}
        if self._return_ids:
            response["prompt_token_ids"] = first.prompt.token_ids
        asked, known = first.request.sampling.prompt_logprobs, answers[0].prompt_logprobs
        if asked is not None and known is not None:
            response["prompt_logprobs"] = prompt_logprobs(self._token_text, first.prompt.token_ids, known, asked)
        return response

    def opening(self, child: Child) -> bytes:
        choice: dict[str, Any] = {
            "index": child.index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        if self._return_ids:
            choice["prompt_token_ids"] = child.prompt.token_ids
        return self.frame.choice(choice)

    def piece(self, child: Child, piece: Piece) -> bytes:
        if self._readers is not None:
            return self._read(self._readers[child.index], child, piece)
        if piece.finish is None and not piece.logprobs and not self._return_ids:
            if not piece.text:
                return b""
            return self.grown(child.index, encode(piece.text))
        choice: dict[str, Any] = {
            "index": child.index,
            "delta": {"content": piece.text} if piece.text else {},
            "logprobs": chat_logprobs(self._token_text, piece.logprobs) if piece.logprobs else None,
            **finish_fields(piece.finish),
        }
        if self._return_ids:
            choice["token_ids"] = piece.token_ids
        return self.frame.choice(choice)

    def _read(self, reader: ReplyReader, child: Child, piece: Piece) -> bytes:
        """The chunks of a piece that may hold tool calls, one for each delta; the last has the log-probabilities."""
        deltas = [chat_delta(event) for event in reader.read(piece.text, last=piece.finish is not None)]
        if piece.finish is not None or not deltas:
            if piece.finish is None and not piece.logprobs and not self._return_ids:
                return b""
            deltas.append({})
        choices: list[dict[str, Any]] = [
            {"index": child.index, "delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas
        ]
        last = choices[-1]
        last |= chat_finish_fields(piece.finish, reader.called)
        if piece.logprobs:
            last["logprobs"] = chat_logprobs(self._token_text, piece.logprobs)
        if self._return_ids:
            last["token_ids"] = piece.token_ids
        return b"".join(self.frame.choice(choice) for choice in choices)


DOOR: Final = Door(fields=ChatRequest, call=chat_call, writer=ChatWriter, extended_finish_reasons=True)
