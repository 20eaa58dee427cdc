"""Splits an answer into text and tool calls, whole or piece by piece."""

from typing import Any

from ekiden.api.text_output import finish_fields
from ekiden.api.tools.parser import CallArguments, CallBegin, Event, Text
from ekiden.api.tools.plan import ToolPlan
from ekiden.state.request import Finish, FinishReason


class ReplyReader:
    """Reads one answer; without a plan all of it is text."""

    def __init__(self, plan: ToolPlan | None) -> None:
        self._parser = None if plan is None else plan.parser()

    def read(self, text: str, *, last: bool) -> list[Event]:
        """The events of the next piece of text, in order."""
        if self._parser is None:
            return [Text(text)] if text else []
        events = self._parser.feed(text)
        return events + self._parser.finish() if last else events

    @property
    def called(self) -> bool:
        """Whether the answer holds calls, all of them whole."""
        return self._parser is not None and self._parser.num_calls > 0 and not self._parser.cut

    @property
    def cut(self) -> bool:
        """Whether the answer ended inside a call that was given out as it was written."""
        return self._parser is not None and self._parser.cut


def chat_finish_fields(finish: Finish | None, called: bool) -> dict[str, Any]:
    """OpenAI's ``finish_reason`` is ``tool_calls`` only for whole calls in an answer that was not cut short."""
    fields = finish_fields(finish)
    calls = called and finish is not None and finish.reason is FinishReason.STOP
    return fields | {"finish_reason": "tool_calls"} if calls else fields


def chat_message(reader: ReplyReader, text: str) -> dict[str, Any]:
    """The ``message`` of a chat choice, from the text of its answer."""
    content, calls = "", list[dict[str, Any]]()
    for event in reader.read(text, last=True):
        match event:
            case Text(piece):
                content += piece
            case CallBegin(_, call_id, name):
                calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}})
            case CallArguments(index, piece):
                calls[index]["function"]["arguments"] += piece
    message = {"role": "assistant", "content": content, "refusal": None}
    return message | {"content": content or None, "tool_calls": calls} if calls else message


def chat_delta(event: Event) -> dict[str, Any]:
    """The ``delta`` of a chat chunk."""
    match event:
        case Text(text):
            return {"content": text}
        case CallBegin(index, call_id, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
