"""``POST /v1/responses``: OpenAI's newer shape of a conversation, without state on the server.

Nothing is kept between calls: ``store: true`` and whatever refers to an earlier response is refused.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from ekiden.api.call import AnswerFormat, Call, Conversation, Message, NamedChoice, earlier_call
from ekiden.api.constraint_fields import JsonSchemaFormat
from ekiden.api.doors.door import Door, Job
from ekiden.api.doors.items import ItemsWriter
from ekiden.api.errors import ApiError, invalid, shown
from ekiden.api.fields import (
    MAX_MESSAGES,
    ConversationHints,
    MaxTokens,
    MetadataStrings,
    OpenAIFields,
    sampling_of,
)
from ekiden.api.generation import Child
from ekiden.api.hand_checks import joined_text, objects, only_fields, rule, string_field
from ekiden.api.json_schema import TEXT, any_of, array
from ekiden.api.lone_surrogates import sound_arguments
from ekiden.api.schema_base import ReadBy, Strict
from ekiden.api.shape import Fate, ignored, refused
from ekiden.api.sse import named_event
from ekiden.api.structured import json_format, schema_format
from ekiden.api.text_output import Piece
from ekiden.api.tool_fields import FlatChoice, FunctionDefinition, FunctionTyped, Tools, tool_of
from ekiden.state.sampling_params import SamplingParams

_STATE: Final = "this server keeps nothing between calls; send the whole conversation in input"
_NO_LOGPROBS: Final = "log-probabilities are given by /v1/chat/completions and /v1/completions"


def _check_input(value: Any) -> list[Message]:
    """The messages of a text or a list of items."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise rule(f"is {shown(value)}; it must be a string or a list of 1 to {MAX_MESSAGES} items")
    messages: list[Message] = []
    for where, item in objects(value):
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


def _message(item: dict[str, Any], where: str) -> Message:
    only_fields(item, ("type", "id", "status", "role", "content", "phase"), where)
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise rule(f"is {shown(role)}; it must be 'user', 'assistant', 'system' or 'developer'", f"{where}.role")
    # "developer" is the newer name of "system", which templates know.
    role = "system" if role == "developer" else role
    return {"role": role, "content": _text(item.get("content"), f"{where}.content")}


def _add_call(messages: list[Message], item: dict[str, Any], where: str) -> None:
    """Chat templates expect a text of the assistant and the calls that follow it in one message."""
    only_fields(item, ("type", "id", "status", "call_id", "name", "arguments"), where)
    name, arguments = string_field(item, "name", where), string_field(item, "arguments", where)
    sound_arguments(arguments, f"{where}.arguments")
    call = earlier_call(string_field(item, "call_id", where), name, arguments)
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})


def _text(value: Any, where: str) -> str:
    return joined_text(value, where, kinds=dict.fromkeys(("input_text", "output_text", "text"), "text"))


_ITEM_SCHEMA: Final = {"type": "object", "properties": {"type": TEXT}}
_INPUT_SCHEMA: Final = any_of(TEXT, array(_ITEM_SCHEMA, 1, MAX_MESSAGES))


class TextFormat(JsonSchemaFormat):
    """A format whose type stands beside its name; types other than ``json_schema`` have no further fields."""

    name: str | None = None  # type: ignore[assignment]  # required for one of the types only
    type: Literal["text", "json_object", "json_schema"]


class TextSettings(Strict):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ResponseTool(FunctionDefinition, FunctionTyped):
    """A function as in chat, but with its type beside its name."""


class ResponsesStreamOptions(Strict):
    fates: ClassVar[Mapping[str, Fate]] = {"include_obfuscation": ignored("streams carry no padding")}


class ResponsesRequest(OpenAIFields, ConversationHints):
    fates: ClassVar[Mapping[str, Fate]] = {
        "previous_response_id": refused(_STATE),
        "conversation": refused(_STATE),
        "prompt": refused("no prompts are stored here; send the text in input"),
        "reasoning": refused("the model has no reasoning setting"),
        "max_tool_calls": refused("there are no tools that the server itself would call"),
        "context_management": refused("a conversation is taken as it is"),
        "moderation": refused("nothing is moderated here"),
        "truncation": refused("a conversation is taken as it is", fine=("disabled",)),
        "background": refused(_STATE, fine=(False,)),
        "include": refused(f"{_NO_LOGPROBS}, and there is nothing else to include", fine=([],)),
        "top_logprobs": refused(_NO_LOGPROBS, fine=(0,)),
    }

    input: Annotated[list[Message], ReadBy(_check_input, _INPUT_SCHEMA)]
    instructions: str | None = None
    max_output_tokens: MaxTokens | None = None
    text: TextSettings | None = None
    tools: Tools[ResponseTool] | None = None
    tool_choice: FlatChoice | None = None
    parallel_tool_calls: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    store: bool | None = None
    # Given back with the answer.
    metadata: MetadataStrings | None = None
    user: str | None = None


def responses_call(fields: ResponsesRequest, defaults: SamplingParams) -> Call:
    if fields.store:
        raise invalid("store", f"store is true; leave it out or send false: {_STATE}.", code="unsupported_parameter")
    system: list[Message] = []
    if fields.instructions is not None:
        system = [{"role": "system", "content": fields.instructions}]
    return Call(
        model=fields.model,
        prompt=Conversation(
            messages=[*system, *fields.input],
            param="input",
            tools=[tool_of(tool, f"tools[{index}]") for index, tool in enumerate(fields.tools or [])],
            tool_choice=fields.tool_choice or "auto",
            parallel_tool_calls=fields.parallel_tool_calls is not False,
        ),
        sampling=sampling_of(fields, defaults, max_tokens=fields.max_output_tokens),
        names={"max_tokens": "max_output_tokens"},
        answer_format=_answer_format(fields),
        priority=fields.priority or 0,
        stream=bool(fields.stream),
    )


def _answer_format(fields: ResponsesRequest) -> AnswerFormat | None:
    form = None if fields.text is None else fields.text.format
    if form is None:
        return None
    if form.type == "json_schema":
        if form.name is None:
            raise invalid("text.format.name", "text.format.name is required.", code="missing_parameter")
        return schema_format("text.format.schema", form)
    if beside := set(form.model_dump(by_alias=True, exclude_none=True)) - {"type"}:
        param = f"text.format.{min(beside)}"
        raise invalid(param, f"{param} is for the type 'json_schema'.")
    return json_format("text.format") if form.type == "json_object" else None


class ResponseWriter(ItemsWriter):
    """The response object and its events."""

    def __init__(self, fields: ResponsesRequest, job: Job) -> None:
        super().__init__(job)
        self._number = -1
        self._head = _head(fields, job)

    def whole(self, answers: list[Piece], usage: dict[str, Any]) -> dict[str, Any]:
        self.piece(self.job.children[0], answers[0])
        return self._response(usage)

    def opening(self, child: Child, first: Piece) -> bytes:
        started = {"response": self._response(None)}
        return self._event("response.created", started) + self._event("response.in_progress", started)

    def begin_text(self) -> bytes:
        added = self._begin("msg", {"type": "message", "role": "assistant", "content": []})
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self.items[-1]["content"].append(part)
        return added + self._of_item("response.content_part.added", {"content_index": 0, "part": part})

    def begin_call(self, call_id: str, name: str) -> bytes:
        return self._begin("fc", {"type": "function_call", "call_id": call_id, "name": name, "arguments": ""})

    def grow(self, text: str) -> bytes:
        item = self.items[-1]
        if self.open == "call":
            item["arguments"] += text
            return self._of_item("response.function_call_arguments.delta", {"delta": text})
        item["content"][0]["text"] += text
        return self._of_item("response.output_text.delta", {"content_index": 0, "delta": text, "logprobs": []})

    def close(self) -> bytes:
        """What is still open when the answer is cut is ``incomplete``."""
        item = self.items[-1]
        item["status"] = "incomplete" if self.cut or (self.open == "call" and self.reader.cut) else "completed"
        if self.open == "call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            told = self._of_item("response.function_call_arguments.done", done)
        else:
            (part,) = item["content"]
            text = {"content_index": 0, "text": part["text"], "logprobs": []}
            told = self._of_item("response.output_text.done", text)
            told += self._of_item("response.content_part.done", {"content_index": 0, "part": part})
        return told + self._whole_item("response.output_item.done")

    def usage(self, usage: dict[str, Any]) -> bytes:
        kind = "response.incomplete" if self.cut else "response.completed"
        return self._event(kind, {"response": self._response(usage)})

    def error(self, error: ApiError) -> bytes:
        return self._event("error", {"code": error.code, "message": error.message, "param": error.param})

    def _begin(self, prefix: str, fields: dict[str, Any]) -> bytes:
        item_id = f"{prefix}_{self.job.origin.request_id}_{len(self.items)}"
        self.items.append({"id": item_id, "status": "in_progress", **fields})
        return self._whole_item("response.output_item.added")

    def _whole_item(self, kind: str) -> bytes:
        return self._event(kind, {"output_index": len(self.items) - 1, "item": self.items[-1]})

    def _of_item(self, kind: str, fields: dict[str, Any]) -> bytes:
        return self._event(kind, {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **fields})

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        self._number += 1
        return named_event(kind, {"sequence_number": self._number, **fields})

    def _response(self, usage: dict[str, Any] | None) -> dict[str, Any]:
        """The response object so far; ``usage`` is given when it is complete."""
        status = "in_progress" if self.finish is None else "incomplete" if self.cut else "completed"
        return self._head | {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if self.cut else None,
            "output": self.items,
            "usage": None if usage is None else _usage(usage),
        }


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": usage["prompt_tokens_details"]["cached_tokens"]},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }


def _head(fields: ResponsesRequest, job: Job) -> dict[str, Any]:
    """The fields that do not change while the answer grows: the request's settings with their defaults."""
    sampling = job.children[0].request.sampling
    form = None if fields.text is None else fields.text.format
    chosen = fields.tool_choice
    choice = {"type": "function", "name": chosen.name} if isinstance(chosen, NamedChoice) else chosen
    tools = [
        {"description": None, "parameters": None, "strict": None, **tool.model_dump(exclude_none=True)}
        for tool in fields.tools or []
    ]
    return {
        "id": f"resp_{job.origin.request_id}",
        "object": "response",
        "created_at": job.origin.created,
        "model": job.card.model_id,
        "error": None,
        "background": False,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "metadata": fields.metadata or {},
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": sampling.temperature,
        "text": {"format": {"type": "text"} if form is None else form.model_dump(by_alias=True, exclude_unset=True)},
        "tool_choice": choice or "auto",
        "tools": tools,
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "user": fields.user,
    }


DOOR: Final = Door(fields=ResponsesRequest, call=responses_call, writer=ResponseWriter)
