"""The state of a request, folded from its recorded events. Nothing else knows what an event changes.

A :class:`Timeline` takes the events of one request in the order in which they happened. After each it knows where the
request stands (phase, slot, tokens), and it keeps the spans of time between the changes. What reads a ledger builds on
it: :mod:`ekiden.evidence.breakdown` splits the spans by cause, :mod:`ekiden.evidence.live` shows where requests stand.

All is exact but ``computed``: it is not recorded which prompt tokens were taken over from another request's prefill,
nor whether a pause in the middle of a prompt kept its blocks. Events of turns that the ledger lost are missing.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import groupby
from typing import NamedTuple

from ekiden.evidence.reader import Event
from ekiden.ledger.records import EventKind, RequestRow, Resumed


class Phase(Enum):
    WAITING = auto()
    PREFILL = auto()
    DECODE = auto()
    RECOMPUTE = auto()
    """What was dropped when it was preempted or paused is being computed again, or what an engine that ended had
    computed."""
    PREEMPTED = auto()
    RESUMING = auto()
    """Its pause is over and it waits for a slot."""
    PAUSED = auto()


RUNNING = (Phase.PREFILL, Phase.DECODE, Phase.RECOMPUTE)


class Moment(NamedTuple):
    """The start (``late`` 0) or the end (1) of a turn, and its time in microseconds of the run."""

    turn: int
    late: int
    at: int


class Span(NamedTuple):
    """A time in one phase. ``left_out``: a code of LEFT_OUT_CODES; ``blocked``: it did not fit; ``pauses``: bits."""

    phase: Phase
    left_out: int
    blocked: bool
    pauses: int
    begin: Moment
    end: Moment


@dataclass(slots=True)
class Timeline:
    """One request after its newest event. Turns count from 1."""

    request: RequestRow
    phase: Phase = Phase.WAITING
    left_out: int = 0
    """Why it runs and gets no tokens: a code of LEFT_OUT_CODES."""
    blocked: bool = False
    """It was looked at for admission and did not fit."""
    pauses: int = 0
    """What pauses it, as bits of PAUSE_BITS."""
    slot_turn: int = 0
    """The turn in which it last got a slot; 0: it has none."""
    slot: int | None = None
    """Known only when it came back to a slot; otherwise the decisions of the turn of ``admitted`` have it."""
    slots: list[tuple[int, int | None]] = field(default_factory=list)
    """The slots that it has had, each with the turn that gave it; None where the decisions of that turn have it."""
    admitted: Event | None = None
    first_token: Event | None = None
    computed: int = 0
    """Prompt tokens whose keys and values it has."""
    swapped: int = 0
    """Blocks that it has in the swap space because it was preempted."""
    preempted_turns: list[int] = field(default_factory=list)
    chunks: dict[int, int] = field(default_factory=dict)
    """The prompt tokens computed in a turn, by turn."""
    spans: list[Span] = field(default_factory=list)
    """The spans that have ended, without gaps from arrival on; none when the turn of its arrival is no longer kept."""
    _since: Moment | None = None
    """When the span that goes on began."""
    _stretches: list[tuple[int, int]] = field(default_factory=list)
    """First and last turns between which every step that decoded gave it a token."""
    _decoding_from: int | None = None
    _several: dict[int, int] = field(default_factory=dict)
    """How many tokens it got in turns that gave it more than one."""

    @property
    def number(self) -> int:
        return self.request.request

    def take(self, event: Event) -> None:
        """Change what one event changes."""
        before = self._state
        self._apply(event)
        moment = None if event.at is None else Moment(event.turn, event.late, event.at)
        ended = event.kind is EventKind.ENDED
        if event.kind in (EventKind.ARRIVED, EventKind.CARRIED):
            self._since = moment
        elif self._since is None or moment is None:  # the turn of its arrival is no longer kept
            return
        elif ended or before != self._state:
            self.spans.append(Span(*before, self._since, moment))
            self._since = None if ended else moment

    @property
    def open(self) -> bool:
        """Whether no turn has ended it."""
        return self._since is not None

    @property
    def _state(self) -> tuple[Phase, int, bool, int]:
        """What a span tells beside its times."""
        return self.phase, self.left_out, self.blocked, self.pauses

    def _apply(self, event: Event) -> None:
        turn, value = event.turn, event.value
        match event.kind:
            case EventKind.ADMITTED:
                self.phase = Phase.RECOMPUTE if self.request.carried else Phase.PREFILL
                self.admitted, self.slot_turn, self.blocked = event, turn, False
                self.slots.append((turn, None))
                self.computed = value
            case EventKind.PREFILL:
                self.chunks[turn] = value
                self.computed = min(self.computed + value, self.request.prompt_tokens)
            case EventKind.FIRST_TOKEN:
                self.phase, self.first_token, self.computed = Phase.DECODE, event, self.request.prompt_tokens
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
                self._resume(event)
            case EventKind.CAUGHT_UP:
                self.phase, self.computed = Phase.DECODE, self.request.prompt_tokens
                self._decode_from(turn + 1)
            case EventKind.PAUSED:
                self._pause(turn, value)
            case EventKind.TOKENS:
                self._several[turn] = value
            case EventKind.ENDED:
                self._decode_until(turn if event.late and not value else turn - 1)

    def _resume(self, event: Event) -> None:
        slot, whole = Resumed.of(event.value)
        if self.first_token is None and not self.request.carried:
            self.phase = Phase.PREFILL
        else:
            self.phase = Phase.DECODE if whole else Phase.RECOMPUTE
            if not whole and self.computed == self.request.prompt_tokens:
                self.computed = 0  # a pause dropped it
        self.slot_turn, self.slot, self.swapped = event.turn, slot, 0
        self.slots.append((event.turn, slot))
        self._decode_from(event.turn + event.late)

    def _pause(self, turn: int, bits: int) -> None:
        if bits and not self.pauses:
            self._decode_until(turn - 1)
            self.phase, self.left_out = Phase.PAUSED, 0
            self.slot_turn, self.slot, self.swapped = 0, None, 0
        elif self.pauses and not bits:
            self.phase = Phase.WAITING if self.admitted is None else Phase.RESUMING
        self.pauses = bits

    def _decode_from(self, turn: int) -> None:
        if self.phase is Phase.DECODE and not self.left_out and self._decoding_from is None:
            self._decoding_from = turn

    def _decode_until(self, turn: int) -> None:
        """``turn`` is the last that may have given it a token."""
        if self._decoding_from is not None:
            if turn >= self._decoding_from:
                self._stretches.append((self._decoding_from, turn))
            self._decoding_from = None

    def spans_until(self, now: Moment) -> list[Span]:
        """All spans; of a request that has not ended, the one that goes on ends now."""
        if self._since is None:
            return self.spans
        return [*self.spans, Span(*self._state, self._since, now)]

    def stretches_until(self, turn: int) -> Iterator[tuple[int, int]]:
        """First and last turns between which every step that decoded gave it a token, up to a turn."""
        yield from self._stretches
        if self._decoding_from is not None and self._decoding_from <= turn:
            yield self._decoding_from, turn

    def output_tokens(self, first: int, last: int, silent: Sequence[int]) -> int:
        """The tokens that it got in the turns ``first`` to ``last``.

        ``silent`` are the turns of that range that gave no running answer a token, in order.
        """
        count = int(self.first_token is not None and first <= self.first_token.turn <= last)
        for stretch in self.stretches_until(last):
            begin, end = max(stretch[0], first), min(stretch[1], last)
            if begin <= end:
                count += end - begin + 1 - (bisect_right(silent, end) - bisect_left(silent, begin))
        return count + sum(tokens - 1 for turn, tokens in self._several.items() if first <= turn <= last)


def timelines(requests: Iterable[RequestRow], events: Iterable[Event]) -> list[Timeline]:
    """Both in order of the requests' numbers, each request's events in the order in which they happened."""
    found = {request.request: Timeline(request) for request in requests}
    for number, group in groupby(events, key=lambda event: event.request):
        if number in found:
            for event in group:
                found[number].take(event)
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
