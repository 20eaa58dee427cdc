"""The body of ``POST /v1/responses``, and the call that it amounts to.

Nothing is kept between calls: ``store: true`` and whatever refers to an earlier response is refused.
"""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from ekiden.api.call import AnswerFormat, Call, Conversation, Message, ToolChoice, earlier_call
from ekiden.api.errors import invalid, shown
from ekiden.api.fields import (
    HINT_FATES,
    MAX_MESSAGES,
    MAX_TOOLS,
    OPENAI_FATES,
    ConversationHints,
    FunctionDefinition,
    FunctionTyped,
    JsonSchemaFormat,
    MaxTokens,
    OpenAIFields,
    choice_reader,
    choice_schema,
    sampling_of,
    tool_of,
)
from ekiden.api.schema_base import Fate, Strict, joined_text, no_effect, only_fields, refused, rule, string_field
from ekiden.api.structured import json_format, schema_format
from ekiden.state.sampling_params import SamplingParams

_STATE: Final = "this server keeps nothing between calls; send the whole conversation in input"
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


def _check_input(value: Any) -> list[Message]:
    """The messages of a text or a list of items."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise rule(f"is {shown(value)}; it must be a string or a list of 1 to {MAX_MESSAGES} items")
    messages: list[Message] = []
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
    call = earlier_call(string_field(item, "call_id", where), name, arguments)
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})


def _text(value: Any, where: str) -> str:
    kinds, extra = ("input_text", "output_text", "text"), ("annotations", "logprobs")
    return joined_text(value, where, kinds=kinds, extra=extra)


_ITEM_SCHEMA: Final = {"type": "object", "properties": {"type": {"type": "string"}}}
_INPUT_SCHEMA: Final = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": _ITEM_SCHEMA, "minItems": 1, "maxItems": MAX_MESSAGES},
    ]
}


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
    include_obfuscation: bool | None = None


class ResponsesRequest(OpenAIFields, ConversationHints):
    fates: ClassVar[dict[str, Fate]] = {
        **OPENAI_FATES,
        **HINT_FATES,
        "truncation": no_effect("'disabled' only"),
        "background": no_effect("false only"),
        "include": no_effect("an empty list"),
        "top_logprobs": no_effect("0 only"),
        "stream_options": no_effect("include_obfuscation: streams carry no padding"),
        "previous_response_id": refused(_STATE),
        "conversation": refused(_STATE),
        "prompt": refused("no prompts are stored here; send the text in input"),
        "reasoning": refused("the model has no reasoning setting"),
        "max_tool_calls": refused("there are no tools that the server itself would call"),
        "context_management": refused("a conversation is taken as it is"),
        "moderation": refused("nothing is moderated here"),
    }

    input: Annotated[list[Message], PlainValidator(_check_input), WithJsonSchema(_INPUT_SCHEMA)]
    instructions: str | None = None
    max_output_tokens: MaxTokens | None = None
    text: TextSettings | None = None
    tools: Annotated[list[ResponseTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: (
        Annotated[ToolChoice, PlainValidator(choice_reader(nested=False)), WithJsonSchema(choice_schema(nested=False))]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    # Without effect: see ``fates``.
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    include: Include | None = None
    top_logprobs: TopLogprobs | None = None
    stream_options: ResponsesStreamOptions | None = None
    store: bool | None = None


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
