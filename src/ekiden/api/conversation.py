"""A conversation's request made ready for the engine: what every door to chat shares."""

from dataclasses import dataclass, replace

from ekiden.api.context import ApiContext
from ekiden.api.errors import invalid
from ekiden.api.prompts import chat_prompt
from ekiden.api.sampling_fields import Call, Child, build_children, build_sampling
from ekiden.api.schemas import ChatRequest
from ekiden.api.tools.plan import ToolPlan, plan_tools


@dataclass(frozen=True, slots=True)
class Conversation:
    """The answers that the engine is asked for, and how tool calls in them are read."""

    children: list[Child]
    plan: ToolPlan | None


async def prepare(context: ApiContext, call: Call, fields: ChatRequest, *, beginning: str = "") -> Conversation:
    """Raises :class:`ApiError` 400 for what cannot work. ``beginning`` is where the model goes on from."""
    name = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
    limit = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
    plan, grammar = await plan_tools(context, fields)
    params = build_sampling(context, fields, max_tokens=(name, limit), logprobs=_logprobs(fields), grammar=grammar)
    tools = None if plan is None else plan.tools
    prompt = await chat_prompt(context, fields.messages, tools=tools, beginning=beginning)
    children = build_children(context, call, [prompt], params, fields)
    if plan is not None:
        children = [replace(child, shown=plan.shown) for child in children]
    return Conversation(children, plan)


def _logprobs(fields: ChatRequest) -> int | None:
    if fields.logprobs:
        return fields.top_logprobs or 0
    if fields.top_logprobs is not None:
        raise invalid("top_logprobs", f"top_logprobs is {fields.top_logprobs}; it is allowed only with logprobs: true.")
    return None
