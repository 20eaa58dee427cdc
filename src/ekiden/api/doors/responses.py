"""``POST /v1/responses``: OpenAI's newer shape of a conversation, without state on the server."""

from typing import Any, Final

from ekiden.api.call import NamedChoice
from ekiden.api.doors.door import Door, Job
from ekiden.api.doors.responses_output import OutputItems
from ekiden.api.doors.responses_request import ResponsesRequest, responses_call
from ekiden.api.errors import ApiError
from ekiden.api.generation import Child
from ekiden.api.sse import named_event
from ekiden.api.text_output import Piece, WholeAnswer
from ekiden.api.tools.reply import ReplyReader
from ekiden.state.request import Finish, FinishReason


class ResponseWriter:
    """The response object and its events as the answer grows; a whole answer is read as a single piece."""

    end = b""

    def __init__(self, fields: ResponsesRequest, job: Job) -> None:
        self._reader = ReplyReader(job.plan)
        self._items = OutputItems(job.origin.request_id)
        self._finish: Finish | None = None
        self._number = -1
        self._started = False
        self._head = _head(fields, job)
        self._child = job.children[0]

    def whole(self, answers: list[WholeAnswer], usage: dict[str, Any]) -> dict[str, Any]:
        (answer,) = answers
        self.piece(self._child, Piece(answer.text, finish=answer.finish))
        return self._response(usage)

    def opening(self, child: Child) -> bytes:
        return b""  # sent with the first piece, so that sequence numbers rise in the order of events

    def piece(self, child: Child, piece: Piece) -> bytes:
        last = piece.finish is not None
        begun = b""
        if not self._started:
            self._started = True
            started = {"response": self._response(None)}
            begun = self._event("response.created", started) + self._event("response.in_progress", started)
        events = [each for part in self._reader.read(piece.text, last=last) for each in self._items.add(part)]
        if last:
            self._finish = piece.finish
            events += self._items.finish(whole=not self._cut)
        return begun + b"".join(self._event(kind, fields) for kind, fields in events)

    def usage(self, usage: dict[str, Any]) -> bytes:
        kind = "response.incomplete" if self._cut else "response.completed"
        return self._event(kind, {"response": self._response(usage)})

    def error(self, error: ApiError) -> bytes:
        return self._event("error", {"code": error.code, "message": error.message, "param": error.param})

    @property
    def _cut(self) -> bool:
        return self._finish is not None and self._finish.reason is FinishReason.LENGTH

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        self._number += 1
        return named_event(kind, {"sequence_number": self._number, **fields})

    def _response(self, usage: dict[str, Any] | None) -> dict[str, Any]:
        """The response object so far; ``usage`` is given when it is complete."""
        status = "in_progress" if self._finish is None else "incomplete" if self._cut else "completed"
        return self._head | {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if self._cut else None,
            "output": self._items.items,
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
