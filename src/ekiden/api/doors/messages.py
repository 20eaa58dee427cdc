"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's shape of a conversation."""

import json
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from ekiden.api.asgi import send_json
from ekiden.api.doors.door import Door, Doors, Job
from ekiden.api.doors.messages_request import CountRequest, MessagesRequest, messages_call
from ekiden.api.errors import ApiError, messages_body
from ekiden.api.generation import Child
from ekiden.api.sse import named_event
from ekiden.api.text_output import Piece, WholeAnswer
from ekiden.api.tools.parser import CallArguments, CallBegin, Event, Text
from ekiden.api.tools.reply import ReplyReader
from ekiden.state.request import Finish, FinishReason


async def count_tokens(doors: Doors, scope: Scope, receive: Receive, send: Send) -> None:
    """``{"input_tokens"}`` of a conversation. Raises :class:`ApiError`."""
    _, job = await doors.ready(COUNTING, scope, receive)
    await send_json(send, {"input_tokens": len(job.children[0].prompt.token_ids)})


class MessageWriter:
    """The message and its events as the answer grows; a whole answer is read as a single piece."""

    end = b""

    def __init__(self, fields: CountRequest, job: Job) -> None:
        self._reader = ReplyReader(job.plan)
        self._id = f"msg_{job.origin.request_id}"
        self._model = job.card.model_id
        self._child = job.children[0]
        self._blocks: list[dict[str, Any]] = []
        self._arguments = ""
        self._open = False
        self._finish: Finish | None = None

    def opening(self, child: Child) -> bytes:
        usage = _usage({"prompt_tokens": len(child.prompt.token_ids), "completion_tokens": 0}, cached=0)
        return named_event("message_start", {"message": self._message(usage)})

    def piece(self, child: Child, piece: Piece) -> bytes:
        last = piece.finish is not None
        told = [self._add(event) for event in self._reader.read(piece.text, last=last)]
        if last:
            self._finish = piece.finish
            told.append(self._close())
        return b"".join(told)

    def usage(self, usage: dict[str, Any]) -> bytes:
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        fields = {"delta": self._stop(), "usage": _usage(usage, cached=cached)}
        return named_event("message_delta", fields) + named_event("message_stop", {})

    def error(self, error: ApiError) -> bytes:
        return b"event: error\ndata: " + messages_body(error) + b"\n\n"

    def whole(self, answers: list[WholeAnswer], usage: dict[str, Any]) -> dict[str, Any]:
        """A tool call that was cut off is left out, because half an object is not valid as its input."""
        (answer,) = answers
        self.piece(self._child, Piece(answer.text, finish=answer.finish))
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return (
            self._message(_usage(usage, cached=cached))
            | self._stop()
            | {"content": [block for block in self._blocks if block.get("input", {}) is not None]}
        )

    def _message(self, usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _stop(self) -> dict[str, Any]:
        assert self._finish is not None
        stopped = self._finish.stop_reason
        if self._finish.reason is FinishReason.LENGTH:
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if isinstance(stopped, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stopped}
        return {"stop_reason": "tool_use" if self._reader.called else "end_turn", "stop_sequence": None}

    def _add(self, event: Event) -> bytes:
        match event:
            case Text(text):
                told = b""
                if not self._open or self._blocks[-1]["type"] != "text":
                    told = self._close() + self._begin({"type": "text", "text": ""})
                self._blocks[-1]["text"] += text
                return told + self._delta({"type": "text_delta", "text": text})
            case CallBegin(_, call_id, name):
                return self._close() + self._begin({"type": "tool_use", "id": call_id, "name": name, "input": {}})
            case CallArguments(_, text):
                self._arguments += text
                return self._delta({"type": "input_json_delta", "partial_json": text})

    def _begin(self, block: dict[str, Any]) -> bytes:
        self._blocks.append(block)
        self._open = True
        self._arguments = ""
        return named_event("content_block_start", {"index": len(self._blocks) - 1, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return named_event("content_block_delta", {"index": len(self._blocks) - 1, "delta": delta})

    def _close(self) -> bytes:
        if not self._open:
            return b""
        self._open = False
        block = self._blocks[-1]
        if block["type"] == "tool_use":
            block["input"] = _object(self._arguments)
        return named_event("content_block_stop", {"index": len(self._blocks) - 1})


def _usage(usage: dict[str, Any], *, cached: int) -> dict[str, Any]:
    """In this protocol, input tokens do not include those found in the prefix cache."""
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
    }


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


DOOR: Final = Door(fields=MessagesRequest, call=messages_call, writer=MessageWriter)
COUNTING: Final = Door(fields=CountRequest, call=messages_call, writer=MessageWriter)
