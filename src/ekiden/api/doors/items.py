"""What the writers of responses and messages share: an answer is a list of items, each reasoning, a text or a tool
call."""

from abc import ABC, abstractmethod
from typing import Any, Literal

from ekiden.api.doors.door import Job
from ekiden.api.generation import Child
from ekiden.api.sse import KEEP_ALIVE
from ekiden.api.text_output import Piece
from ekiden.api.tools.parser import CallArguments, CallBegin, Event, Text
from ekiden.api.tools.reply import ReplyReader
from ekiden.state.request import Finish, FinishReason

Kind = Literal["thought", "text", "call"]


class ItemsWriter(ABC):
    """Builds the items while the answer grows, with the events that tell of each change.

    Only the last item can be open. A whole answer is read as a single piece.
    """

    end = b""
    keep_alive = KEEP_ALIVE

    def __init__(self, job: Job) -> None:
        self.job = job
        self.reader = ReplyReader(job.plan)
        self.items: list[dict[str, Any]] = []
        self.open: Kind | None = None
        self.finish: Finish | None = None

    @property
    def cut(self) -> bool:
        return self.finish is not None and self.finish.reason is FinishReason.LENGTH

    @abstractmethod
    def begin_thought(self) -> bytes:
        """Adds an item of reasoning."""

    @abstractmethod
    def begin_text(self) -> bytes:
        """Adds a text item."""

    @abstractmethod
    def begin_call(self, call_id: str, name: str) -> bytes:
        """Adds a tool call."""

    @abstractmethod
    def grow(self, text: str) -> bytes:
        """Adds text to the last item: to its reasoning, its text or its arguments."""

    @abstractmethod
    def close(self) -> bytes:
        """Completes the last item."""

    def piece(self, child: Child, piece: Piece) -> bytes:
        told: list[bytes] = []
        if piece.reasoning:
            if self.open != "thought":
                told.append(self._turn_to("thought") + self.begin_thought())
            told.append(self.grow(piece.reasoning))
        told += [self._add(event) for event in self.reader.read(piece.text, last=piece.finish is not None)]
        if piece.finish is not None:
            self.finish = piece.finish
            told.append(self._turn_to(None))
        return b"".join(told)

    def _add(self, event: Event) -> bytes:
        match event:
            case Text(text):
                begun = b"" if self.open == "text" else self._turn_to("text") + self.begin_text()
                return begun + self.grow(text)
            case CallBegin(_, call_id, name):
                return self._turn_to("call") + self.begin_call(call_id, name)
            case CallArguments(_, text):
                return self.grow(text)

    def _turn_to(self, kind: Kind | None) -> bytes:
        """Close the open item before one of this kind begins."""
        told = b"" if self.open is None else self.close()
        self.open = kind
        return told
