"""``POST /v1/chat/completions``."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from ekiden.api.call import Call, Conversation, Message, earlier_call
from ekiden.api.doors.chunks import ChunkedWriter
from ekiden.api.doors.door import Door, Job
from ekiden.api.errors import invalid
from ekiden.api.fields import MAX_MESSAGES, ConversationHints, GenerationFields, MaxTokens, check_streaming, sampling_of
from ekiden.api.generation import Child
from ekiden.api.hand_checks import joined_text, rule
from ekiden.api.json_schema import TEXT, any_of, array, closed_object
from ekiden.api.schema_base import ReadBy, Strict, Within
from ekiden.api.shape import Fate, ignored, refused
from ekiden.api.structured import format_asked
from ekiden.api.text_output import Piece, chat_logprobs, finish_fields, prompt_logprobs
from ekiden.api.tool_fields import (
    FunctionDefinition,
    FunctionTyped,
    LeftOut,
    NestedChoice,
    OfTypes,
    Tools,
    kept,
    tool_of,
)
from ekiden.api.tools.reply import ReplyReader, chat_delta, chat_finish_fields, chat_message
from ekiden.state.sampling_params import BOUNDS, MAX_ENTRIES, SamplingParams

_CONTENT_SCHEMA: Final = any_of(TEXT, array(closed_object({"type": {"const": "text"}, "text": TEXT})))


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

    fates: ClassVar[Mapping[str, Fate]] = dict.fromkeys(
        ("audio", "function_call"), refused("it is not supported by this server")
    )

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, ReadBy(_check_content, _CONTENT_SCHEMA)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=MAX_ENTRIES)] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


Messages = Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]


class ChatTool(FunctionTyped):
    function: FunctionDefinition


OfferedTool = Annotated[ChatTool | LeftOut, OfTypes(ChatTool, "function")]


class ChatRequest(GenerationFields, ConversationHints):
    fates: ClassVar[Mapping[str, Fate]] = {
        "functions": refused("this older form of tools is not taken; send tools", fine=([],)),
        "function_call": refused("this older form of tool_choice is not taken", fine=("none", "auto")),
        "audio": refused("the model takes and gives text only"),
        "modalities": refused("the model takes and gives text only", fine=(["text"],)),
        "web_search_options": ignored("the server does not reach the network"),
        "reasoning_effort": ignored("the model has no reasoning setting", fine=("none",)),
        "prediction": ignored("it is a hint that changes no answer"),
    }

    messages: Messages
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Within(BOUNDS["logprobs"])] | None = None
    tools: Tools[OfferedTool] | None = None
    tool_choice: NestedChoice | None = None
    parallel_tool_calls: bool | None = None


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
            tools=[tool_of(tool.function, f"tools[{i}].function") for i, tool in kept(fields.tools)],
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
        super().__init__(fields, job, prefix="chatcmpl", **kinds, key='"delta":{"content"', close="}")
        self._readers = [ReplyReader(job.plan) for _ in job.children]

    def whole(self, answers: list[Piece], usage: dict[str, Any]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        tokenizer, first = self.job.tokenizer, self.job.children[0]
        for child, answer in zip(self.job.children, answers, strict=True):
            wants = child.request.sampling.logprobs is not None
            message = chat_message(self.job.plan, answer.text)
            logprobs = chat_logprobs(tokenizer, answer.logprobs or []) if wants else None
            finish = chat_finish_fields(answer.finish, "tool_calls" in message)
            body = {"message": message, "logprobs": logprobs}
            choices.append(self.choice(child.index, body, finish, token_ids=answer.token_ids))
        response = self.head | {"choices": choices, "usage": usage}
        if self.return_ids:
            response["prompt_token_ids"] = first.prompt.token_ids
        asked, known = first.request.sampling.prompt_logprobs, answers[0].prompt_logprobs
        if asked is not None and known is not None:
            response["prompt_logprobs"] = prompt_logprobs(tokenizer, first.prompt.token_ids, known, asked)
        return response

    def opening(self, child: Child, first: Piece) -> bytes:
        body: dict[str, Any] = {"delta": {"role": "assistant", "content": ""}, "logprobs": None}
        ids = child.prompt.token_ids
        return self.chunk(self.choice(child.index, body, finish_fields(None), prompt_token_ids=ids))

    def piece(self, child: Child, piece: Piece) -> bytes:
        """One chunk; for a piece that may hold tool calls one for each delta, the last with the log-probabilities."""
        reader = self._readers[child.index]
        if self.job.plan is None:
            if self.is_text(piece):
                return self.grown(child.index, piece.text)
            deltas = [{"content": piece.text} if piece.text else {}]
        else:
            deltas = [chat_delta(event) for event in reader.read(piece.text, last=piece.finish is not None)]
            if piece.finish is not None or not deltas:
                if self.is_text(piece):
                    return b""
                deltas.append({})
        choices = [
            self.choice(child.index, {"delta": delta, "logprobs": None}, finish_fields(None)) for delta in deltas
        ]
        logprobs = chat_logprobs(self.job.tokenizer, piece.logprobs) if piece.logprobs else None
        body, finish = {"delta": deltas[-1], "logprobs": logprobs}, chat_finish_fields(piece.finish, reader.called)
        choices[-1] = self.choice(child.index, body, finish, token_ids=piece.token_ids)
        return b"".join(map(self.chunk, choices))


DOOR: Final = Door(fields=ChatRequest, call=chat_call, writer=ChatWriter, extended_finish_reasons=True)
