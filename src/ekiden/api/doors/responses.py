"""``POST /v1/responses``: OpenAI's newer shape of a conversation, without state on the server.

Nothing is kept between calls: whatever refers to an earlier response is refused.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from ekiden.api.call import AnswerFormat, Call, Conversation, Message
from ekiden.api.constraint_fields import ConstraintFields, JsonSchemaFormat
from ekiden.api.doors.door import Door, Job
from ekiden.api.doors.responses_answer import ResponseWriter
from ekiden.api.doors.responses_input import INPUT_SCHEMA, INPUT_SHAPE, Input, read_input
from ekiden.api.doors.responses_tools import (
    Choice,
    OneTool,
    Placed,
    ResponseTools,
    chosen,
    has_format,
    offered,
    told_back,
)
from ekiden.api.errors import invalid, shown
from ekiden.api.fields import ConversationHints, MaxTokens, OpenAIFields, SamplingFields, sampling_of
from ekiden.api.hand_checks import rule
from ekiden.api.ignored import Ignored
from ekiden.api.json_schema import TEXT, array
from ekiden.api.reasoning import wish_of_effort
from ekiden.api.schema_base import ReadBy, Strict
from ekiden.api.shape import Fate, ignored, refused
from ekiden.api.structured import json_format, schema_format
from ekiden.api.template_fields import TemplateKwargs
from ekiden.state.sampling_params import SamplingParams

_STATE: Final = "this server keeps nothing between calls; send the whole conversation in input"
_LOGPROBS: Final = "message.output_text.logprobs"
_NO_LOGPROBS: Final = "log-probabilities are given by /v1/chat/completions and /v1/completions"


class TextFormat(JsonSchemaFormat):
    """A format whose type stands beside its name; types other than ``json_schema`` have no further fields."""

    name: str | None = None  # type: ignore[assignment]  # required for one of the types only
    type: Literal["text", "json_object", "json_schema"]


class TextSettings(Strict):
    fates: ClassVar[Mapping[str, Fate]] = {"verbosity": ignored("the model has no such setting", fine=("medium",))}

    format: TextFormat | None = None


def _read_include(value: Any) -> list[str]:
    """Raises a :func:`rule` for what would be missed; there is nothing else to include."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise rule(f"is {shown(value)}; it must be a list of strings")
    if _LOGPROBS in value:
        raise rule(f"holds {_LOGPROBS!r}; leave it out: {_NO_LOGPROBS}")
    return value


class Reasoning(Strict):
    fates: ClassVar[Mapping[str, Fate]] = {
        "summary": ignored("reasoning is given as it is"),
        "generate_summary": ignored("reasoning is given as it is"),
    }

    effort: str | None = None


class ResponsesRequest(OpenAIFields, SamplingFields, ConversationHints):
    fates: ClassVar[Mapping[str, Fate]] = {
        "previous_response_id": refused(_STATE),
        "conversation": refused(_STATE),
        "prompt": refused("no prompts are stored here; send the text in input"),
        "background": refused("an answer is given to the connection that asked for it", fine=(False,)),
        "moderation": refused("nothing is moderated here"),
        "top_logprobs": refused(_NO_LOGPROBS, fine=(0,)),
        "max_tokens": refused("send max_output_tokens"),
        "max_completion_tokens": refused("send max_output_tokens"),
        "messages": refused("send input, or use /v1/chat/completions"),
        "n": refused("there is one answer here; use /v1/chat/completions", fine=(1,)),
        **dict.fromkeys(ConstraintFields.model_fields, refused("send text.format")),
        "store": ignored("answers are not stored", fine=(False,)),
        "truncation": ignored("a prompt that is too long is refused, and never cut", fine=("disabled",)),
        "max_tool_calls": ignored("there are no tools that the server itself would call"),
        "context_management": ignored("a conversation is taken as it is"),
        "client_metadata": ignored("nothing is done with it"),
        "stream_options": ignored("streams carry no padding"),
    }

    input: Annotated[Input, ReadBy(read_input, INPUT_SCHEMA, INPUT_SHAPE)]
    instructions: str | None = None
    max_output_tokens: MaxTokens | None = None
    text: TextSettings | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    tools: ResponseTools | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    include: Annotated[list[str], ReadBy(_read_include, array(TEXT, None))] | None = None
    # What the response says back.
    metadata: dict[str, Any] | None = None
    user: str | None = None

    @property
    def tool_lists(self) -> list[Placed]:
        return [Placed("tools", self.tools or []), *self.input.tools]


def responses_call(fields: ResponsesRequest, defaults: SamplingParams) -> Call:
    system: list[Message] = []
    if fields.instructions is not None:
        system = [{"role": "system", "content": fields.instructions}]
    tools = offered(fields.tool_lists)
    effort = None if fields.reasoning is None else fields.reasoning.effort
    asked = {"include": fields.include, "tools[].format": any(has_format(each.tools) for each in fields.tool_lists)}
    return Call(
        model=fields.model,
        prompt=Conversation(
            messages=[*system, *fields.input.messages],
            param="input",
            tools=[tool.function for tool in tools],
            tool_choice=chosen(fields.tool_choice, tools),
            parallel_tool_calls=fields.parallel_tool_calls is not False,
            template_kwargs=fields.chat_template_kwargs or {},
            wish=wish_of_effort(effort, "reasoning"),
            thought_param="input[type=reasoning]",
        ),
        sampling=sampling_of(fields, defaults, max_tokens=fields.max_output_tokens),
        names={"max_tokens": "max_output_tokens"},
        answer_format=_answer_format(fields),
        priority=fields.priority or 0,
        stream=bool(fields.stream),
        ignored=[Ignored(name) for name, given in asked.items() if given],
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


def _writer(fields: ResponsesRequest, job: Job) -> ResponseWriter:
    return ResponseWriter(_head(fields, job), offered(fields.tool_lists), job)


def _head(fields: ResponsesRequest, job: Job) -> dict[str, Any]:
    """The fields that do not change while the answer grows: the request's settings with their defaults."""
    sampling = job.children[0].request.sampling
    form = None if fields.text is None else fields.text.format
    choice = fields.tool_choice
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
        "reasoning": {"effort": None if fields.reasoning is None else fields.reasoning.effort, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": sampling.temperature,
        "text": {"format": {"type": "text"} if form is None else form.model_dump(by_alias=True, exclude_unset=True)},
        "tool_choice": choice._asdict() if isinstance(choice, OneTool) else choice or "auto",
        "tools": [told for each in fields.tool_lists for told in told_back(each.tools)],
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "user": fields.user,
    }


DOOR: Final = Door(fields=ResponsesRequest, call=responses_call, writer=_writer)
