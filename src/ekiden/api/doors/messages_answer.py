"""How ``/v1/messages`` writes an answer: the message, and the events that tell how it grew."""

import base64
import hashlib
import json
from typing import Any

from ekiden.api.doors.door import Job
from ekiden.api.doors.items import ItemsWriter
from ekiden.api.errors import ApiError, messages_body
from ekiden.api.generation import Child
from ekiden.api.sse import named_event
from ekiden.api.text_output import Piece


class MessageWriter(ItemsWriter):
    """The message and its events; its items are called blocks."""

    keep_alive = named_event("ping", {})  # clients of this protocol count events, and no comments

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._arguments = ""

    def opening(self, child: Child, first: Piece) -> bytes:
        usage = _usage({"prompt_tokens": len(child.prompt.token_ids), "completion_tokens": 0}, cached=0)
        return named_event("message_start", {"message": self._message(usage)})

    def begin_thought(self) -> bytes:
        return self._begin({"type": "thinking", "thinking": "", "signature": ""})

    def begin_text(self) -> bytes:
        return self._begin({"type": "text", "text": ""})

    def begin_call(self, call_id: str, name: str) -> bytes:
        self._arguments = ""
        return self._begin({"type": "tool_use", "id": call_id, "name": name, "input": {}})

    def grow(self, text: str) -> bytes:
        if self.open == "call":
            self._arguments += text
            delta = {"type": "input_json_delta", "partial_json": text}
        elif self.open == "thought":
            self.items[-1]["thinking"] += text
            delta = {"type": "thinking_delta", "thinking": text}
        else:
            self.items[-1]["text"] += text
            delta = {"type": "text_delta", "text": text}
        return self._block_event("content_block_delta", {"delta": delta})

    def close(self) -> bytes:
        told, block = b"", self.items[-1]
        if self.open == "call":
            block["input"] = _object(self._arguments)
        elif self.open == "thought":
            block["signature"] = _signature(block["thinking"])
            delta = {"type": "signature_delta", "signature": block["signature"]}
            told = self._block_event("content_block_delta", {"delta": delta})
        return told + self._block_event("content_block_stop", {})

    def usage(self, usage: dict[str, Any]) -> bytes:
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        fields = {"delta": self._stop(), "usage": _usage(usage, cached=cached)}
        return named_event("message_delta", fields) + named_event("message_stop", {})

    def error(self, error: ApiError) -> bytes:
        return b"event: error\ndata: " + messages_body(error) + b"\n\n"

    def whole(self, answers: list[Piece], usage: dict[str, Any]) -> dict[str, Any]:
        """A tool call that was cut off is left out, because half an object is not valid as its input."""
        self.piece(self.job.children[0], answers[0])
        message = self._message(_usage(usage, cached=usage["prompt_tokens_details"]["cached_tokens"]))
        content = [block for block in self.items if block.get("input", {}) is not None]
        return message | self._stop() | {"content": content}

    def _message(self, usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": f"msg_{self.job.origin.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self.job.card.model_id,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _stop(self) -> dict[str, Any]:
        assert self.finish is not None
        stopped = self.finish.stop_reason
        if self.cut:
            limit = self.job.call.sampling.max_tokens
            full = limit is not None and self.finish.num_output_tokens < limit
            return {"stop_reason": "model_context_window_exceeded" if full else "max_tokens", "stop_sequence": None}
        if isinstance(stopped, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stopped}
        return {"stop_reason": "tool_use" if self.reader.called else "end_turn", "stop_sequence": None}

    def _begin(self, block: dict[str, Any]) -> bytes:
        self.items.append(block)
        return self._block_event("content_block_start", {"content_block": block})

    def _block_event(self, kind: str, fields: dict[str, Any]) -> bytes:
        return named_event(kind, {"index": len(self.items) - 1, **fields})


def _usage(usage: dict[str, Any], *, cached: int) -> dict[str, Any]:
    """In this protocol, input tokens do not include those found in the prefix cache."""
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
    }


def _signature(thought: str) -> str:
    """Clients send back only reasoning that is signed. Nobody checks it here, so it is a digest of the text."""
    return base64.b64encode(hashlib.sha256(thought.encode()).digest()).decode()


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
