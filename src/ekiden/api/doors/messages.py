"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's shape of a conversation."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from ekiden.api.asgi import JsonBytes
from ekiden.api.call import AnswerFormat, Call, Conversation, Message, NamedChoice, Tool, ToolChoice
from ekiden.api.constraint_fields import ConstraintFields
from ekiden.api.doors.client_tools import CLIENT_TOOLS
from ekiden.api.doors.door import Door, Doors, Job
from ekiden.api.doors.messages_answer import MessageWriter
from ekiden.api.doors.messages_input import (
    BLOCKS_SCHEMA,
    MESSAGES_SCHEMA,
    MESSAGES_SHAPE,
    SYSTEM_SHAPE,
    System,
    read_messages,
    read_system,
)
from ekiden.api.errors import invalid
from ekiden.api.fields import (
    FOUND_BY_CONTENT,
    NOT_STORED,
    ONE_TIER,
    MaxTokens,
    MinP,
    Priority,
    RepetitionPenalty,
    SamplingFields,
    Seed,
    StopList,
    TopK,
    TopP,
    sampling_of,
)
from ekiden.api.ignored import Ignored
from ekiden.api.reasoning import Wish
from ekiden.api.schema_base import ReadBy, Strict, Within
from ekiden.api.shape import Fate, ignored, refused
from ekiden.api.structured import json_format
from ekiden.api.template_fields import TemplateKwargs
from ekiden.api.tool_fields import FunctionName, LeftOut, OfTypes, Tools, kept
from ekiden.state.sampling_params import Bound, SamplingParams


class MessagesTool(Strict):
    """``input_schema`` is required for a tool of the client's own, which has no type or the type 'custom'."""

    fates: ClassVar[Mapping[str, Fate]] = {
        "cache_control": ignored(FOUND_BY_CONTENT),
        "defer_loading": ignored("all tools are offered from the beginning"),
        "eager_input_streaming": ignored("arguments are streamed as they come"),
        "input_examples": ignored("models have no place for them"),
    }

    type: str | None = None
    name: FunctionName
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


MessagesTools = Tools[Annotated[MessagesTool | LeftOut, OfTypes(MessagesTool, "custom", *CLIENT_TOOLS)]]


class MessagesChoice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(Strict):
    type: Literal["json_schema"]
    definition: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Strict):
    fates: ClassVar[Mapping[str, Fate]] = {
        "task_budget": ignored("the model is told of no budget"),
    }

    format: OutputFormat | None = None
    effort: str | None = None


class Thinking(Strict):
    """Whether the model is to think before it answers. Without it, or ``disabled``, no reasoning is given out."""

    fates: ClassVar[Mapping[str, Fate]] = {
        "budget_tokens": ignored("reasoning has no limit of its own"),
    }

    type: str
    display: str | None = None


class CountRequest(Strict):
    """What ``/v1/messages/count_tokens`` takes. ``output_format`` is the earlier place of ``output_config.format``."""

    fates: ClassVar[Mapping[str, Fate]] = {
        "cache_control": ignored(FOUND_BY_CONTENT),
        "context_management": ignored("a conversation is taken as it is"),
        "mcp_servers": ignored("the server calls nobody else, so tools of the type 'mcp_toolset' are left out"),
        "container": ignored("the server runs no code, so tools that would are left out"),
    }

    model: str
    messages: Annotated[list[Message], ReadBy(read_messages, MESSAGES_SCHEMA, MESSAGES_SHAPE)]
    system: Annotated[System, ReadBy(read_system, BLOCKS_SCHEMA, SYSTEM_SHAPE)] | None = None
    tools: MessagesTools | None = None
    tool_choice: MessagesChoice | None = None
    thinking: Thinking | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None


class MessagesRequest(CountRequest, SamplingFields):
    fates: ClassVar[Mapping[str, Fate]] = {
        "thread": refused("this server keeps nothing between calls; send the whole conversation in messages"),
        "max_completion_tokens": refused("send max_tokens"),
        "n": refused("there is one answer here; use /v1/chat/completions", fine=(1,)),
        **dict.fromkeys(ConstraintFields.model_fields, refused("send output_config.format")),
        "metadata": ignored(NOT_STORED),
        "service_tier": ignored(ONE_TIER, fine=("auto", "standard_only")),
        "inference_geo": ignored("the server is where it is"),
        "speed": ignored("there is one speed", fine=("standard",)),
    }

    max_tokens: MaxTokens
    temperature: Annotated[float, Within(Bound(0, 1, "between 0 and 1"))] | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    stop_sequences: StopList | None = None
    stream: bool | None = None
    # Extensions common elsewhere, as the other routes have them.
    seed: Seed | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    priority: Priority | None = None


def messages_call(fields: CountRequest, defaults: SamplingParams) -> Call:
    counted = not isinstance(fields, MessagesRequest)
    messages, beginning = fields.messages, ""
    last = messages[-1]
    if last["role"] == "assistant" and "tool_calls" not in last and not (counted and len(messages) == 1):
        messages, beginning = messages[:-1], last["content"]
        if not messages:
            raise invalid("messages", "messages holds only the beginning of an answer; it needs a message of the user.")
        if beginning.rstrip() != beginning and not counted:
            raise invalid(
                "messages", "messages ends with a beginning of the answer that ends with white space; leave that out."
            )
    system = fields.system or System("", False)
    if system.text:
        messages = [{"role": "system", "content": system.text}, *messages]
    choice, stops = fields.tool_choice, getattr(fields, "stop_sequences", None)
    return Call(
        model=fields.model,
        prompt=Conversation(
            messages=messages,
            tools=list(_tools(fields)),
            tool_choice="auto" if choice is None else _choice(choice),
            parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
            beginning=beginning,
            counted=counted,
            template_kwargs=fields.chat_template_kwargs or {},
            wish=_wish(fields),
            thought_param="messages[].content[type=thinking]",
        ),
        sampling=sampling_of(fields, defaults, stop=stops or getattr(fields, "stop", None)),
        names={"stop": "stop_sequences"} if stops else {},
        answer_format=_answer_format(fields),
        priority=getattr(fields, "priority", None) or 0,
        stream=not counted and bool(getattr(fields, "stream", None)),
        shows_reasoning=_shows_reasoning(fields.thinking),
        ignored=[Ignored("system[x-anthropic-billing-header]")] if system.billed else [],
    )


def _wish(fields: CountRequest) -> Wish:
    """In this protocol a model thinks only when it is asked to; adaptive leaves it to the model."""
    thinking, effort = fields.thinking, None if fields.output_config is None else fields.output_config.effort
    kind = None if thinking is None else thinking.type
    think = True if kind == "enabled" else None if kind == "adaptive" else False
    return Wish(think, effort, "thinking" if thinking else "", "output_config.effort" if effort else "")


def _shows_reasoning(thinking: Thinking | None) -> bool:
    return thinking is not None and thinking.type != "disabled" and thinking.display != "omitted"


def _tools(fields: CountRequest) -> Iterator[Tool]:
    for index, tool in kept(fields.tools):
        where, known = f"tools[{index}]", CLIENT_TOOLS.get(tool.type or "custom")
        if known is not None:
            yield Tool(tool.name, known.description, known.schema, tool.strict, where)
        elif tool.input_schema is None:
            name = f"{where}.input_schema"
            raise invalid(name, f"{name} is required.", code="missing_parameter")
        else:
            yield Tool(tool.name, tool.description, tool.input_schema, tool.strict, where, "input_schema")


def _answer_format(fields: CountRequest) -> AnswerFormat | None:
    param, form = "output_config.format", None if fields.output_config is None else fields.output_config.format
    if form is None:
        param, form = "output_format", fields.output_format
    return None if form is None else json_format(f"{param}.schema", form.definition)


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


def _writer(fields: CountRequest, job: Job) -> MessageWriter:
    return MessageWriter(job)


DOOR: Final = Door(fields=MessagesRequest, call=messages_call, writer=_writer)
COUNTING: Final = Door(fields=CountRequest, call=messages_call, writer=_writer)
