"""``POST /v1/responses``: OpenAI's newer shape of a conversation, without state on the server."""

from typing import Any, Final

from ekiden.api.call import NamedChoice
from ekiden.api.doors.door import Door, Job
from ekiden.api.doors.items import ItemsWriter
from ekiden.api.doors.responses_request import ResponsesRequest, responses_call
from ekiden.api.errors import ApiError
from ekiden.api.generation import Child
from ekiden.api.sse import named_event
from ekiden.api.text_output import Piece


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
        item["status"] = "incomplete" if self.cut else "completed"
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
