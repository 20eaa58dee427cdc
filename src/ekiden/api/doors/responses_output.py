"""The ``output`` list of a response while its answer grows, with the events that tell of each change."""

from typing import Any

from ekiden.api.tools.parser import CallArguments, CallBegin, Event, Text

Told = tuple[str, dict[str, Any]]
"""An event's type, and its fields beside type and number."""


class OutputItems:
    """Items in the order in which they begin: a message for text, one item for each call."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self.items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None

    def add(self, event: Event) -> list[Told]:
        match event:
            case Text(text):
                return self._add_text(text)
            case CallBegin(_, call_id, name):
                told = self._close("completed")
                item = self._begin("fc", {"type": "function_call", "call_id": call_id, "name": name, "arguments": ""})
                return [*told, self._added(item)]
            case CallArguments(_, text):
                assert self._open is not None
                self._open["arguments"] += text
                return [("response.function_call_arguments.delta", self._place(self._open) | {"delta": text})]

    def finish(self, *, whole: bool) -> list[Told]:
        """The answer has ended; what is still open is ``incomplete`` when it was cut."""
        return self._close("completed" if whole else "incomplete")

    def _add_text(self, text: str) -> list[Told]:
        told: list[Told] = []
        item = self._open
        if item is None or item["type"] != "message":
            told += self._close("completed")
            item = self._begin("msg", {"type": "message", "role": "assistant", "content": []})
            told.append(self._added(item))
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item["content"].append(part)
            told.append(("response.content_part.added", self._part(item) | {"part": dict(part)}))
        item["content"][0]["text"] += text
        told.append(("response.output_text.delta", self._part(item) | {"delta": text, "logprobs": []}))
        return told

    def _begin(self, prefix: str, fields: dict[str, Any]) -> dict[str, Any]:
        item = {"id": f"{prefix}_{self._request_id}_{len(self.items)}", "status": "in_progress", **fields}
        self.items.append(item)
        self._open = item
        return item

    def _added(self, item: dict[str, Any]) -> Told:
        copy = item | ({"content": []} if item["type"] == "message" else {})
        return "response.output_item.added", {"output_index": len(self.items) - 1, "item": copy}

    def _close(self, status: str) -> list[Told]:
        item, self._open = self._open, None
        if item is None:
            return []
        item["status"] = status
        told: list[Told] = []
        if item["type"] == "message":
            part = item["content"][0]
            told.append(("response.output_text.done", self._part(item) | {"text": part["text"], "logprobs": []}))
            told.append(("response.content_part.done", self._part(item) | {"part": part}))
        else:
            done = {"name": item["name"], "arguments": item["arguments"]}
            told.append(("response.function_call_arguments.done", self._place(item) | done))
        told.append(("response.output_item.done", {"output_index": len(self.items) - 1, "item": item}))
        return told

    def _place(self, item: dict[str, Any]) -> dict[str, Any]:
        return {"item_id": item["id"], "output_index": len(self.items) - 1}

    def _part(self, item: dict[str, Any]) -> dict[str, Any]:
        return self._place(item) | {"content_index": 0}
