"""Splits an answer into text and tool calls, whole or piece by piece."""

from dataclasses import dataclass, field
from typing import Any

from ekiden.api.text_output import PLAIN_REASONS, finish_fields
from ekiden.api.tools.parser import CallArguments, CallBegin, Event, Text
from ekiden.api.tools.plan import ToolPlan
from ekiden.state.request import Finish, FinishReason


@dataclass(slots=True)
class Call:
    call_id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Reply:
    text: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, event: Event) -> None:
        match event:
            case Text(text):
                self.text += text
            case CallBegin(_, call_id, name):
                self.calls.append(Call(call_id, name))
            case CallArguments(index, text):
                self.calls[index].arguments += text


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
        return self._parser is not None and self._parser.num_calls > 0


def read_whole(plan: ToolPlan | None, text: str) -> Reply:
    reply = Reply()
    for event in ReplyReader(plan).read(text, last=True):
        reply.add(event)
    return reply


def finish_reason(finish: Finish, called: bool) -> str:
    """OpenAI's ``finish_reason``: ``tool_calls`` only for an answer that was not cut short."""
    if called and finish.reason is FinishReason.STOP:
        return "tool_calls"
    return PLAIN_REASONS.get(finish.reason, finish.reason.value)


def chat_finish_fields(finish: Finish | None, called: bool) -> dict[str, Any]:
    fields = finish_fields(finish)
    return fields if finish is None else fields | {"finish_reason": finish_reason(finish, called)}


def chat_message(reply: Reply) -> dict[str, Any]:
    """The ``message`` of a chat choice."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
    if reply.calls:
        message["content"] = reply.text or None
        message["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.calls
        ]
    return message


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
