"""Where each request stands: its phase, its slot and its tokens, folded from its events.

Exact but for ``computed``: it is not recorded which prompt tokens were taken over from another request's prefill, nor
whether a pause in the middle of a prompt kept its blocks. What the ledger lost is missing here too.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from ekiden.evidence.life import Phase
from ekiden.evidence.reader import BriefRequest
from ekiden.ledger.records import EventKind, EventRow


@dataclass(slots=True)
class Standing:
    """One request after its newest event. Turns count from 1."""

    request: BriefRequest
    phase: Phase = Phase.WAITING
    slot_turn: int = 0
    """The turn in which it last got a slot; 0: it has none."""
    slot: int | None = None
    """Known here only when it came back to one; otherwise the decisions of ``admitted``'s turn have it."""
    admitted: tuple[int, int] | None = None
    """The turn of its admission, and 1 when that was at the turn's end."""
    cached: int = 0
    computed: int = 0
    """Prompt tokens whose keys and values it has."""
    swapped: int = 0
    """Blocks that it has in the swap space because it was preempted."""
    left_out: int = 0
    blocked: bool = False
    pauses: int = 0
    first_token: int | None = None
    """The turn of its first token."""
    chunks: list[tuple[int, int]] = field(default_factory=list)
    """Turn and prompt tokens of each prefill chunk."""
    stretches: list[tuple[int, int]] = field(default_factory=list)
    """First and last turns between which every step that decoded gave it a token."""
    extra_tokens: list[tuple[int, int]] = field(default_factory=list)
    """Turns in which accepted drafts gave it more than one token, and how many more."""
    decoding_from: int | None = None
    preempted_turns: list[int] = field(default_factory=list)

    @property
    def number(self) -> int:
        return self.request.request

    @property
    def holds_slot(self) -> bool:
        return self.slot_turn > 0

    def _decode_from(self, turn: int) -> None:
        if self.phase is Phase.DECODE and not self.left_out and self.decoding_from is None:
            self.decoding_from = turn

    def _decode_until(self, turn: int) -> None:
        """``turn`` is the last that may have given it a token."""
        if self.decoding_from is not None:
            if turn >= self.decoding_from:
                self.stretches.append((self.decoding_from, turn))
            self.decoding_from = None

    def take(self, event: EventRow) -> None:
        """What one event changes."""
        kind, turn, value = EventKind(event.kind), event.turn, event.value
        from_turn = turn + event.late
        match kind:
            case EventKind.ADMITTED:
                self.phase, self.admitted, self.slot_turn, self.blocked = Phase.PREFILL, (turn, event.late), turn, False
                self.cached = self.computed = value
            case EventKind.PREFILL:
                self.chunks.append((turn, value))
                self.computed = min(self.computed + value, self.request.prompt_tokens)
            case EventKind.FIRST_TOKEN:
                self.phase, self.first_token, self.computed = Phase.DECODE, turn, self.request.prompt_tokens
                self._decode_from(turn + 1)
            case EventKind.LEFT_OUT:
                self.left_out = value
                if value:
                    self._decode_until(turn - 1)
                else:
                    self._decode_from(turn)
            case EventKind.BLOCKED:
                self.blocked = bool(value)
            case EventKind.PREEMPTED:
                self._decode_until(turn - 1)
                self.phase, self.left_out, self.swapped = Phase.PREEMPTED, 0, value
                self.computed = self.computed if value else 0
                self.preempted_turns.append(turn)
            case EventKind.RESUMED:
                whole = Phase.DECODE if value > 0 else Phase.RECOMPUTE
                self.phase = whole if self.first_token is not None else Phase.PREFILL
                if self.phase is Phase.RECOMPUTE and self.computed == self.request.prompt_tokens:
                    self.computed = 0  # a pause dropped it
                self.slot_turn, self.slot, self.swapped = turn, abs(value) - 1, 0
                self._decode_from(from_turn)
            case EventKind.CAUGHT_UP:
                self.phase, self.computed = Phase.DECODE, self.request.prompt_tokens
                self._decode_from(turn + 1)
            case EventKind.PAUSED:
                self._pause(turn, value)
            case EventKind.TOKENS:
                self.extra_tokens.append((turn, value - 1))
            case EventKind.ENDED:
                self._decode_until(turn if event.late else turn - 1)
            case EventKind.ARRIVED | EventKind.REFUSED:
                pass

    def _pause(self, turn: int, bits: int) -> None:
        if bits and not self.pauses:
            self._decode_until(turn - 1)
            self.phase, self.left_out, self.blocked = Phase.PAUSED, 0, False
            self.slot_turn, self.slot, self.swapped = 0, None, 0
        elif self.pauses and not bits:
            self.phase = Phase.WAITING if self.admitted is None else Phase.RESUMING
        self.pauses = bits

    def stretches_until(self, turn: int) -> Iterator[tuple[int, int]]:
        """All stretches up to a turn, the one that goes on included."""
        yield from self.stretches
        if self.decoding_from is not None and self.decoding_from <= turn:
            yield self.decoding_from, turn


def standings(requests: Iterable[BriefRequest], events: Iterable[EventRow]) -> list[Standing]:
    """Both in order of the requests' numbers, each request's events in the order in which they happened."""
    found = {request.request: Standing(request) for request in requests}
    for number, group in groupby(events, key=lambda event: event.request):
        standing = found.get(number)
        if standing is not None:
            for event in group:
                standing.take(event)
    return list(found.values())


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same turns as ranges that do not touch, in order."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def within(ordered: list[int], first: int, last: int) -> int:
    """How many of the ordered numbers lie from ``first`` to ``last``."""
    return max(0, bisect_right(ordered, last) - bisect_left(ordered, first))
