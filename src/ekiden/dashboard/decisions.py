"""The decisions about one request, in order: what was chosen, and what was passed over for it or instead of it."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from ekiden.dashboard.shapes import Considered
from ekiden.evidence.breakdown import Breakdown
from ekiden.evidence.reader import Event, LedgerReader, decisions_of, request_detail_of
from ekiden.evidence.words import seconds
from ekiden.ledger.blobs import TurnDecisions
from ekiden.ledger.records import LEFT_OUT_REASONS, PAUSE_BITS, WAIT_REASONS, EventKind, Resumed, TurnRow

MOST_DECISIONS: Final = 80
_NAMED: Final = 12
_BACK: Final = 256
"""How many turns back the list of those passed over is looked for; it is written when it changes."""
_TOLD: Final = frozenset(
    {
        EventKind.ARRIVED, EventKind.CARRIED, EventKind.REFUSED, EventKind.ADMITTED, EventKind.LEFT_OUT,
        EventKind.BLOCKED, EventKind.PREEMPTED, EventKind.RESUMED, EventKind.PAUSED, EventKind.ENDED,
    }
)  # fmt: skip


def decisions_about(reader: LedgerReader, found: Breakdown) -> list[Considered]:
    """The first and the last ones where there are more than :data:`MOST_DECISIONS`."""
    events = [event for event in found.events if event.kind in _TOLD and event.at is not None]
    if len(events) > MOST_DECISIONS:
        events = [*events[: MOST_DECISIONS // 2], *events[-MOST_DECISIONS // 2 :]]
    teller = _Teller(reader, found)
    return [told for event in events if (told := teller.told(event)) is not None]


class _Teller:
    def __init__(self, reader: LedgerReader, found: Breakdown) -> None:
        self._reader, self._found = reader, found
        self._own = found.request.request

    def told(self, event: Event) -> Considered | None:
        row = self._reader.turn(event.turn)
        if row is None or event.at is None:
            return None
        match event.kind:
            case EventKind.ARRIVED | EventKind.CARRIED | EventKind.REFUSED:
                return self._intake(event)
            case EventKind.ADMITTED:
                return self._admitted(event, row)
            case EventKind.BLOCKED:
                return self._blocked(event, row)
            case EventKind.LEFT_OUT:
                return self._left_out(event, row)
            case EventKind.PREEMPTED:
                return self._preempted(event, row)
            case EventKind.RESUMED:
                return self._resumed(event)
            case EventKind.PAUSED:
                return self._paused(event)
            case _:
                return self._ended(event)

    def _one(
        self,
        event: Event,
        stage: str,
        words: str,
        *,
        chosen: Iterable[int] = (),
        passed_over: Iterable[int] = (),
        **facts: Any,
    ) -> Considered:
        assert event.at is not None
        return Considered(
            turn=event.turn,
            at=event.at / 1e6,
            stage=stage,
            words=words,
            chosen=self._names(chosen),
            passed_over=self._names(passed_over),
            facts=facts,
        )

    def _names(self, numbers: Iterable[int]) -> list[str]:
        """The ids of the first few."""
        few = list(dict.fromkeys(numbers))[:_NAMED]
        names = {row.request: row.request_id for row in self._reader.requests_numbered(few)} if few else {}
        return [names[number] for number in few if number in names]

    def _intake(self, event: Event) -> Considered:
        request, detail = self._found.request, request_detail_of(self._found.request)
        facts: dict[str, Any] = {
            "waiting_requests": detail.num_waiting,
            "waiting_tokens": detail.waiting_tokens,
            "worst_case_blocks": detail.worst_case_blocks,
            "expected_output": detail.expected_output,
            "expected_wait": detail.expected_wait,
        }
        if request.refusal is not None:
            return self._one(event, "intake", f"refused: {detail.message}", reason=request.refusal, **facts)
        words = f"taken in behind {detail.num_waiting} others with {detail.waiting_tokens} prompt tokens"
        if detail.expected_wait is not None:
            words += f"; a wait of {seconds(detail.expected_wait)} was expected"
        return self._one(event, "intake", words, **facts)

    def _admitted(self, event: Event, row: TurnRow) -> Considered:
        decisions = decisions_of(row)
        given = decisions.admitted if event.late else decisions.admitted_start
        own = next((each for each in given if each[0] == self._own), None)
        over = [number for number in self._passed_over(row) if number != self._own]
        cached = f", {event.value} prompt tokens found in the prefix cache" if event.value else ""
        words = "got a slot and its KV blocks" if own is None else f"got slot {own[1]} and {own[2]} KV blocks"
        facts: dict[str, Any] = {"free_blocks": row.free_blocks, "waiting": row.waiting, "cached_tokens": event.value}
        if own is not None:
            facts |= {"slot": own[1], "blocks": own[2], "standing": own[4]}
        facts["order"] = self._reader.history("scheduling_policy").at(event.turn)
        chosen = [each[0] for each in given]
        return self._one(event, "refill", words + cached, chosen=chosen, passed_over=over, **facts)

    def _blocked(self, event: Event, row: TurnRow) -> Considered:
        decisions = decisions_of(row)
        chosen = [each[0] for each in (*decisions.admitted_start, *decisions.admitted)]
        if not event.value:
            return self._one(event, "refill", "no longer held up by the KV pool", free_blocks=row.free_blocks)
        words = f"looked at for admission and did not fit: {row.free_blocks} KV blocks were free"
        return self._one(
            event, "refill", words, chosen=chosen, passed_over=self._passed_over(row), free_blocks=row.free_blocks,
            reason=None if row.wait is None else WAIT_REASONS[row.wait].value,
        )  # fmt: skip

    def _passed_over(self, row: TurnRow) -> Sequence[int]:
        """Who was looked at and did not fit, as of a turn."""
        own = decisions_of(row).passed_over
        if own is not None:
            return own
        for earlier in self._reader.turns_backwards(row.turn - 1, _BACK):
            known = decisions_of(earlier).passed_over
            if known is not None:
                return known
        return ()

    def _left_out(self, event: Event, row: TurnRow) -> Considered:
        decisions: TurnDecisions = decisions_of(row)
        if not event.value:
            return self._one(event, "formation", "in the steps again")
        reason = LEFT_OUT_REASONS[event.value].value
        chosen = [number for number, _ in decisions.prefills]
        words = f"has a slot and got no tokens of the step: {reason}"
        out = [number for number, _ in decisions.left_out]
        return self._one(
            event, "formation", words, chosen=chosen, passed_over=out, reason=reason, token_budget=decisions.budget
        )

    def _preempted(self, event: Event, row: TurnRow) -> Considered:
        victims = dict(decisions_of(row).victims)
        runner_up = victims.get(self._own, 0)
        kept = f"{event.value} blocks were moved aside" if event.value else "its blocks were dropped"
        words = f"a KV block was needed and none was free: it was preempted, {kept}"
        return self._one(
            event, "formation", words, chosen=victims, passed_over=[runner_up] if runner_up else [],
            blocks_moved=event.value, free_blocks=row.free_blocks, running=row.running,
        )  # fmt: skip

    def _resumed(self, event: Event) -> Considered:
        slot, whole = Resumed.of(event.value)
        words = f"back in slot {slot}" + ("" if whole else ", to be computed again")
        return self._one(event, "refill", words, slot=slot, whole=whole)

    def _paused(self, event: Event) -> Considered:
        names = [reason.value for reason, bit in PAUSE_BITS.items() if event.value & bit]
        name = f"pause {self._found.request.request_id}"
        row = self._reader.controls(event.turn).get(name)
        by: dict[str, Any] = {} if row is None else {"set_by": row.set_by, "who": row.who, "why": row.why}
        words = f"paused: {', '.join(names)}" if names else "the pause was withdrawn"
        return self._one(event, "retirement", words, **by)

    def _ended(self, event: Event) -> Considered:
        end = self._found.end
        if end is None:
            return self._one(event, "retirement", "ended")
        words = f"ended ({end.reason}) with {end.output_tokens} tokens; {end.blocks} KV blocks given back"
        return self._one(event, "retirement", words, reason=end.reason, blocks=end.blocks, tokens=end.output_tokens)
