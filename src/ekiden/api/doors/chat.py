"""``POST /v1/chat/completions``."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from ekiden.api.call import Call, Conversation, Message
from ekiden.api.doors.chat_messages import Messages, messages_of
from ekiden.api.doors.chunks import ChunkedWriter
from ekiden.api.doors.door import Door, Job
from ekiden.api.errors import invalid
from ekiden.api.fields import (
    FOUND_BY_CONTENT,
    ConversationHints,
    GenerationFields,
    MaxTokens,
    check_streaming,
    generation_sampling,
)
from ekiden.api.generation import Child
from ekiden.api.reasoning import wish_of_effort
from ekiden.api.schema_base import Within
from ekiden.api.shape import Fate, ignored, refused
from ekiden.api.structured import format_asked
from ekiden.api.template_fields import TemplateKwargs
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
from ekiden.state.sampling_params import BOUNDS, SamplingParams


class ChatTool(FunctionTyped):
    fates: ClassVar[Mapping[str, Fate]] = {"cache_control": ignored(FOUND_BY_CONTENT)}

    function: FunctionDefinition


OfferedTool = Annotated[ChatTool | LeftOut, OfTypes(ChatTool, "function")]


class ChatRequest(GenerationFields, ConversationHints):
    fates: ClassVar[Mapping[str, Fate]] = {
        "functions": refused("this older form of tools is not taken; send tools", fine=([],)),
        "function_call": refused("this older form of tool_choice is not taken", fine=("none", "auto")),
        "audio": refused("the model takes and gives text only"),
        "modalities": refused("the model takes and gives text only", fine=(["text"],)),
        "web_search_options": ignored("the server does not reach the network"),
        "prediction": ignored("it is a hint that changes no answer"),
        "add_special_tokens": ignored("the chat template decides", fine=(False,)),
        "best_of": ignored("it is for /v1/completions", fine=(1,)),
        "echo": refused("it is for /v1/completions", fine=(False,)),
        "documents": refused("send their text in messages", fine=([],)),
        "chat_template": refused("start the server with --chat-template FILE"),
    }

    messages: Messages
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Within(BOUNDS["logprobs"])] | None = None
    tools: Tools[OfferedTool] | None = None
    tool_choice: NestedChoice | None = None
    # Extensions common elsewhere.
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None


def _continued(fields: ChatRequest, messages: list[Message]) -> tuple[list[Message], str]:
    """The conversation without its last message, and that message, which the answer continues."""
    name = "continue_final_message" if fields.continue_final_message else f"messages[{len(messages) - 1}].prefix"
    if fields.add_generation_prompt and fields.continue_final_message:
        raise invalid(name, f"{name} and add_generation_prompt cannot both be true; the answer would be a new message.")
    *before, last = messages
    if last["role"] != "assistant" or "tool_calls" in last:
        raise invalid(name, f"{name} is true; the last message must be a text of the role 'assistant'.")
    if not before:
        raise invalid(name, f"{name} is true; there must be a message before the last one.")
    return before, last["content"]


def chat_call(fields: ChatRequest, defaults: SamplingParams) -> Call:
    include_usage = check_streaming(fields)
    if fields.top_logprobs and not fields.logprobs:
        text = f"top_logprobs is {fields.top_logprobs}; it is allowed only with logprobs: true."
        raise invalid("top_logprobs", text)
    newer = fields.max_completion_tokens is not None
    continues = fields.continue_final_message or bool(fields.messages[-1].prefix)
    messages, beginning = messages_of(fields.messages), ""
    if continues:
        messages, beginning = _continued(fields, messages)
    return Call(
        model=fields.model,
        prompt=Conversation(
            messages=messages,
            tools=[tool_of(tool.function, f"tools[{i}].function") for i, tool in kept(fields.tools)],
            tool_choice=fields.tool_choice or "auto",
            parallel_tool_calls=fields.parallel_tool_calls is not False,
            template_kwargs=fields.chat_template_kwargs or {},
            wish=wish_of_effort(fields.reasoning_effort),
            beginning=beginning,
            add_generation_prompt=continues or fields.add_generation_prompt is not False,
        ),
        sampling=generation_sampling(
            fields,
            defaults,
            fields.max_completion_tokens,
            fields.max_tokens,
            logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        ),
        names={"max_tokens": "max_completion_tokens"} if newer else {},
        answer_format=format_asked(fields),
        n=fields.n or 1,
        priority=fields.priority or 0,
        stream=bool(fields.stream),
        include_usage=include_usage,
        shows_reasoning=fields.include_reasoning is not False,
        shows_special_tokens=fields.skip_special_tokens is False,
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
            reader = self._readers[child.index]
            message = chat_message(reader, answer.text)
            if answer.reasoning:
                message["reasoning_content"] = answer.reasoning
            logprobs = chat_logprobs(tokenizer, answer.logprobs or []) if wants else None
            finish = chat_finish_fields(answer.finish, reader.called)
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
        """One chunk for each delta, the last with the log-probabilities: the reasoning, the text, parts of calls."""
        self.count(child, piece)
        reader = self._readers[child.index]
        deltas: list[dict[str, Any]] = []
        if piece.reasoning:
            deltas.append({"reasoning_content": piece.reasoning})
        if self.job.plan is None:
            if self.is_text(piece):
                return self.grown(child.index, piece.text)
            if piece.text or not deltas:
                deltas.append({"content": piece.text} if piece.text else {})
        else:
            deltas += [chat_delta(event) for event in reader.read(piece.text, last=piece.finish is not None)]
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
