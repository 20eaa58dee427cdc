"""One neutral call: what a client asks for, whichever protocol it used.

A door reads its own protocol's body straight into a :class:`Call`; what follows (prompt, tools, grammar, sampling,
engine requests) knows no protocol. Where something can still turn out to be wrong, the call names the client's own
field (``param``), so that the error does too.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NotRequired, TypedDict

from starlette.datastructures import Headers
from starlette.types import Scope

from ekiden.api.errors import invalid, shown
from ekiden.api.identity import EXTERNAL_ID, REQUEST_ID, TRACEPARENT
from ekiden.api.ignored import Ignored
from ekiden.api.reasoning import NO_WISH, Wish
from ekiden.state.request import DEFAULT_TENANT, Pooling, Request
from ekiden.state.sampling_params import Grammar, SamplingParams

DEADLINE_HEADER: Final = "x-request-deadline-ms"
FINISH_REASONS_HEADER: Final = "x-ekiden-finish-reasons"
"""``extended``: an answer cut short comes with ``finish_reason`` abort, error or deadline in place of an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who sent a call and when, its ids, and what its headers ask for."""

    request_id: str
    arrival_time: float
    created: int
    tenant: str = DEFAULT_TENANT
    external_id: str | None = None
    traceparent: str | None = None
    deadline: float | None = None
    extended_finish_reasons: bool = False

    @classmethod
    def of(cls, scope: Scope, tenant: str = DEFAULT_TENANT) -> "Origin":
        """The origin of a call that arrives now. It never raises, because refused calls have an origin too."""
        return cls(
            request_id=scope[REQUEST_ID],
            arrival_time=time.monotonic(),
            created=int(time.time()),
            tenant=tenant,
            external_id=scope.get(EXTERNAL_ID),
            traceparent=scope.get(TRACEPARENT),
        )

    def request(self, **own: Any) -> Request:
        """An engine request of this call."""
        return Request(
            arrival_time=self.arrival_time,
            tenant=self.tenant,
            external_id=self.external_id,
            traceparent=self.traceparent,
            takes_partial=self.extended_finish_reasons,
            **own,
        )

    def with_headers(self, scope: Scope, request_timeout: float | None) -> "Origin":
        """Adds the deadline: the client's or the server's, whichever is earlier. Raises :class:`ApiError` 400."""
        headers = Headers(scope=scope)
        limits = [] if request_timeout is None else [request_timeout]
        text = headers.get(DEADLINE_HEADER)
        if text is not None:
            if not (text.isascii() and text.isdecimal() and 1 <= int(text[:20]) <= 10**12):
                rule = "it must be a positive number of milliseconds"
                raise invalid(DEADLINE_HEADER, f"{DEADLINE_HEADER} is {shown(text)}; {rule}.")
            limits.append(int(text) / 1000)
        return replace(
            self,
            deadline=self.arrival_time + min(limits) if limits else None,
            extended_finish_reasons=headers.get(FINISH_REASONS_HEADER) == "extended",
        )


class CalledFunction(TypedDict):
    name: str
    arguments: str | None


class EarlierCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class Message(TypedDict):
    """A message as chat templates expect it."""

    role: str
    content: str
    name: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[EarlierCall]]
    tool_call_id: NotRequired[str]


def earlier_call(call_id: str, name: str, arguments: str | None) -> EarlierCall:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. ``where`` is its path in the body, ``key`` the field of its schema there."""

    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None
    where: str
    key: str = "parameters"

    def as_object(self) -> dict[str, Any]:
        """As chat templates expect it."""
        optional = {"description": self.description, "parameters": self.parameters, "strict": self.strict}
        given = {key: value for key, value in optional.items() if value is not None}
        return {"type": "function", "function": {"name": self.name, **given}}


@dataclass(frozen=True, slots=True)
class NamedChoice:
    """The answer must call this function. ``param`` is the field that names it."""

    name: str
    param: str


ToolChoice = Literal["auto", "none", "required"] | NamedChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """``beginning`` is the start of the answer, written by the client; the model continues it. Without
    ``add_generation_prompt`` the prompt ends with the last message. ``template_kwargs`` are variables for the chat
    template; ``thought_param`` is where earlier reasoning stands in the body. ``counted``: the prompt is counted and
    not answered, so it may be longer than the context."""

    messages: list[Message]
    param: str = "messages"
    tools: list[Tool] = field(default_factory=list)
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    beginning: str = ""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wish: Wish = NO_WISH
    thought_param: str = "messages[].reasoning_content"
    add_generation_prompt: bool = True
    counted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Prompts to continue or to read: texts, or token ids. ``single``: the client sent one and not a list of them.

    ``decoded``: the texts of token ids are wanted too. ``add_special``: texts get what the tokenizer puts around them.
    ``keep_last``: of a longer prompt only so many tokens count, the last ones; -1 is what the context holds.
    """

    texts: list[str] | None = None
    token_lists: list[list[int]] = field(default_factory=list)
    single: bool = True
    decoded: bool = False
    add_special: bool = True
    param: str = "prompt"
    keep_last: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Texts to be scored against others: ``wanted[i]`` is the index of a query and that of a document.

    ``keep_first``: of a longer document only so many tokens count. ``names`` are the client's fields of the queries and
    of the documents; ``single_document``: the client sent one and not a list of them.
    """

    queries: list[str]
    documents: list[str]
    wanted: list[tuple[int, int]]
    names: tuple[str, str]
    single_document: bool = False
    keep_first: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """What vector is wanted of each prompt; ``dimensions``: only so many of its numbers, the first ones."""

    pooling: Pooling
    dimensions: int | None = None


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The grammar that an answer must match. ``schema`` is set for JSON only, which can be combined with tools.

    ``strict`` False: keywords of the schema that cannot be enforced are passed over.
    """

    param: str
    grammar: Grammar
    schema: dict[str, Any] | None = None
    strict: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """``sampling`` has defaults filled in and no grammar; ``names`` are the client's names of its fields, where they
    differ. ``n`` answers are made for each prompt.

    ``shows_reasoning``: the client is given the model's reasoning, if there is any.
    ``shows_special_tokens``: special tokens are part of the text, except for one that ends it.
    ``embedding`` and :class:`Pairs`: prompts are only read.
    """

    model: str
    prompt: Conversation | Texts | Pairs
    sampling: SamplingParams
    names: Mapping[str, str] = field(default_factory=dict)
    answer_format: AnswerFormat | None = None
    n: int = 1
    priority: int = 0
    stream: bool = False
    include_usage: bool = False
    shows_reasoning: bool = True
    shows_special_tokens: bool = False
    ignored: list[Ignored] = field(default_factory=list)
    """What the client is told was taken without effect. Whoever prepares the call may add to it."""
    embedding: Embedding | None = None

    @property
    def answered(self) -> bool:
        """Whether the engine generates tokens, for which the context must have room."""
        return self.embedding is None and not isinstance(self.prompt, Pairs)
