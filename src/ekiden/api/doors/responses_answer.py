"""How ``/v1/responses`` writes an answer: the response object, and the events that tell how it grew."""

from collections.abc import Iterable
from typing import Any

from ekiden.api.doors.door import Job
from ekiden.api.doors.items import ItemsWriter
from ekiden.api.doors.responses_tools import Offered, custom_input
from ekiden.api.errors import ApiError
from ekiden.api.generation import Child
from ekiden.api.sse import named_event
from ekiden.api.text_output import Piece


class ResponseWriter(ItemsWriter):
    """The response object and its events."""

    def __init__(self, head: dict[str, Any], tools: Iterable[Offered], job: Job) -> None:
        """``head``: the fields of the response that do not change while the answer grows."""
        super().__init__(job)
        self._number = -1
        self._head = head
        self._offered = {tool.function.name: tool for tool in tools}
        self._arguments = ""

    def whole(self, answers: list[Piece], usage: dict[str, Any]) -> dict[str, Any]:
        self.piece(self.job.children[0], answers[0])
        return self._response(usage)

    def opening(self, child: Child, first: Piece) -> bytes:
        started = {"response": self._response(None)}
        return self._event("response.created", started) + self._event("response.in_progress", started)

    def begin_thought(self) -> bytes:
        return self._begin_part("rs", {"type": "reasoning", "summary": []}, {"type": "reasoning_text", "text": ""})

    def begin_text(self) -> bytes:
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return self._begin_part("msg", {"type": "message", "role": "assistant"}, part)

    def begin_call(self, call_id: str, name: str) -> bytes:
        tool = self._offered[name]
        fields = {"call_id": call_id, "name": tool.name}
        if tool.namespace is not None:
            fields["namespace"] = tool.namespace
        self._arguments = ""
        if tool.custom:
            return self._begin("ctc", {"type": "custom_tool_call", **fields, "input": ""})
        return self._begin("fc", {"type": "function_call", **fields, "arguments": ""})

    def grow(self, text: str) -> bytes:
        item = self.items[-1]
        if self.open == "call":
            self._arguments += text
            # The input of a custom tool is a string within the arguments, so it is told when it is whole.
            is_custom = item["type"] == "custom_tool_call"
            return b"" if is_custom else self._of_item("response.function_call_arguments.delta", {"delta": text})
        item["content"][0]["text"] += text
        if self.open == "thought":
            return self._of_item("response.reasoning_text.delta", {"content_index": 0, "delta": text})
        return self._of_item("response.output_text.delta", {"content_index": 0, "delta": text, "logprobs": []})

    def close(self) -> bytes:
        """What is still open when the answer is cut is ``incomplete``."""
        item = self.items[-1]
        item["status"] = "incomplete" if self.cut or (self.open == "call" and self.reader.cut) else "completed"
        if item["type"] == "custom_tool_call":
            item["input"] = custom_input(self._arguments)
            told = self._of_item("response.custom_tool_call_input.delta", {"delta": item["input"]})
            told += self._of_item("response.custom_tool_call_input.done", {"input": item["input"]})
        elif item["type"] == "function_call":
            item["arguments"] = self._arguments
            done = {"name": item["name"], "arguments": item["arguments"]}
            told = self._of_item("response.function_call_arguments.done", done)
        else:
            (part,) = item["content"]
            text = {"content_index": 0, "text": part["text"]}
            if self.open == "thought":
                told = self._of_item("response.reasoning_text.done", text)
            else:
                told = self._of_item("response.output_text.done", text | {"logprobs": []})
            told += self._of_item("response.content_part.done", {"content_index": 0, "part": part})
        return told + self._whole_item("response.output_item.done")

    def usage(self, usage: dict[str, Any]) -> bytes:
        kind = "response.incomplete" if self.cut else "response.completed"
        return self._event(kind, {"response": self._response(usage)})

    def error(self, error: ApiError) -> bytes:
        """Clients of the two kinds exist: some look for the event ``error``, others wait for the response's own end."""
        told = self._event("error", {"code": error.code, "message": error.message, "param": error.param})
        why = {"code": "server_error", "message": error.message}  # the reference has no finer code for our faults
        failed = self._response(None) | {"status": "failed", "error": why}
        return told + self._event("response.failed", {"response": failed})

    def _begin_part(self, prefix: str, fields: dict[str, Any], part: dict[str, Any]) -> bytes:
        """An item whose content is one part."""
        added = self._begin(prefix, fields | {"content": []})
        self.items[-1]["content"].append(part)
        return added + self._of_item("response.content_part.added", {"content_index": 0, "part": part})

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
    thought = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},  # nobody pays for writing here
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": usage["total_tokens"],
    }
