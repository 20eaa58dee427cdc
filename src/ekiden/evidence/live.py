"""The state of a run as of its newest turn, and its last moments, from the ledger alone.

Rules: it reads the newest turns, the live requests and those that ended in the window, all by index, so that it costs
the same on a run of millions of turns; everything of one view is read in one snapshot; nothing is kept between views.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from ekiden.evidence.life import Cause, Phase, waiting_cause
from ekiden.evidence.live_view import (
    Away,
    Control,
    LiveView,
    Memory,
    Pace,
    Queue,
    Slot,
    SlotState,
    Spread,
    Tenant,
    Waiting,
)
from ekiden.evidence.reader import BriefRequest, BriefTurn, LedgerReader
from ekiden.evidence.recorded_requests import decisions_of
from ekiden.evidence.standing import Standing, merged, standings, within
from ekiden.ledger.records import LEFT_OUT_REASONS, PAUSE_BITS, WAIT_REASONS, TurnRow
from ekiden.ledger.retention import is_being_written

WINDOW_SECONDS = 10.0
SHOWN_WAITING = 12
SHOWN_AWAY = 12
SHOWN_TENANTS = 8
_PADDING_TURNS = 4_096
"""How far back the rows of a padded batch are looked for; they are written when they change."""
_STATES = {
    Phase.PREFILL: SlotState.PREFILLING,
    Phase.DECODE: SlotState.DECODING,
    Phase.RECOMPUTE: SlotState.RECOMPUTING,
    Phase.PREEMPTED: SlotState.PREEMPTED,
}
_HOLDING = (Phase.PREFILL, Phase.DECODE, Phase.RECOMPUTE)


def live_view(
    reader: LedgerReader,
    *,
    now: float | None = None,
    window_seconds: float = WINDOW_SECONDS,
    shown: int = SHOWN_WAITING,
) -> LiveView:
    """Look at a run, also while it is being written.

    ``now`` is Unix time; without it the view is taken at the end of the newest turn. ``shown`` bounds the list of those
    in line. An engine that has had no work has taken no turn: the view's ``turn`` is 0 then, and all is empty.
    Raises :class:`LedgerReadError` for a run that an earlier version recorded.
    """
    with reader.snapshot():
        return _Builder(reader, now, window_seconds, shown).view()


@dataclass(slots=True)
class _Served:
    """A tenant's share of the window."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    ended: int = 0
    refused: int = 0
    by_phase: Counter[Phase] = field(default_factory=Counter)


class _Builder:
    def __init__(self, reader: LedgerReader, now: float | None, window_seconds: float, shown: int) -> None:
        last = reader.turn(reader.bounds()[1]) or _before_the_first(reader.header.num_blocks)
        self._reader, self._last, self._shown, self._window = reader, last, shown, window_seconds
        self._newest = last.start + last.took
        asked = self._newest if now is None else round((now - reader.header.started) * 1e6)
        self._now = max(self._newest, asked)
        self._since = max(0, self._now - round(window_seconds * 1e6))
        self._turns = reader.newest_turns(self._since)
        self._first_turn = self._turns[0].turn if self._turns else last.turn + 1
        self._live = standings(reader.live_requests(), reader.live_events())
        self._ended = reader.ended_since(self._first_turn)
        self._gone = standings(
            (request for request, end in self._ended if end.admitted is not None),
            reader.events_of_ended_since(self._first_turn),
        )
        self._output = self._output_tokens()

    def view(self) -> LiveView:
        header, last = self._reader.header, self._last
        running = [s for s in self._live if s.phase in _HOLDING]
        waiting = [s for s in self._live if s.phase is Phase.WAITING]
        tenants, others = self._tenants()
        known = len(running) == last.running and len(waiting) == last.waiting
        whole = not self._turns or len(self._turns) == last.turn - self._first_turn + 1
        return LiveView(
            run_id=header.run_id,
            model=header.model_id,
            version=header.version,
            lineage=header.lineage.digest,
            recording=is_being_written(self._reader.path),
            turn=last.turn,
            age_seconds=(self._now - self._newest) / 1e6,
            window_seconds=self._window,
            exact=known and whole,
            running=len(running),
            slots=self._slots(),
            queue=self._queue(waiting),
            paused=sum(s.phase is Phase.PAUSED for s in self._live),
            away=self._away(),
            memory=self._memory(),
            pace=self._pace(),
            tenants=tenants,
            other_tenants=others,
            ended=_counted(end.reason for request, end in self._ended if request.refusal is None),
            refused=_counted(request.refusal for request, _ in self._ended if request.refusal is not None),
            controls=self._controls(),
            order=self._order,
        )

    @property
    def _order(self) -> str:
        return str(self._reader.header.scheduler.get("scheduling_policy", "fcfs"))

    def _ago(self, at: int) -> float:
        return max(0, self._now - at) / 1e6

    # --- slots

    def _slots(self) -> list[Slot]:
        count = int(self._reader.header.scheduler["max_num_seqs"])
        holders = sorted((s for s in self._live if s.holds_slot), key=lambda s: s.slot_turn)
        admissions = [s.admitted for s in holders if s.admitted is not None]
        times = self._reader.times(sorted({turn for turn, _ in admissions}))
        given = self._given_slots(s for s in holders if s.slot is None)
        slots = [Slot(slot=index) for index in range(count)]
        for request, place in self._padding():
            slots[place] = Slot(
                slot=place, state=SlotState.PADDING, request_id=request.request_id, tenant=request.tenant
            )
        for standing in holders:  # the newest last: where an end was lost, the slot is its successor's
            index = given.get(standing.number) if standing.slot is None else standing.slot
            if index is not None and index < count:
                slots[index] = self._slot(index, standing, times)
        return slots

    def _slot(self, index: int, standing: Standing, times: dict[int, tuple[int, int]]) -> Slot:
        request = standing.request
        turn, late = standing.admitted or (0, 0)
        return Slot(
            slot=index,
            state=_STATES[standing.phase],
            request_id=request.request_id,
            tenant=request.tenant,
            prompt_tokens=request.prompt_tokens,
            computed_tokens=standing.computed,
            output_tokens=self._output[standing.number],
            max_tokens=request.max_tokens,
            seconds=self._ago(times[turn][late]) if turn in times else 0.0,
            left_out=LEFT_OUT_REASONS[standing.left_out].value if standing.left_out else None,
        )

    def _given_slots(self, admitted: Iterable[Standing]) -> dict[int, int]:
        """The slots that the decisions gave to requests when they were admitted, by the requests' numbers."""
        wanted = {s.number: s.admitted[0] for s in admitted if s.admitted is not None}
        found: dict[int, int] = {}
        for turn in set(wanted.values()):
            row = self._reader.turn(turn)
            if row is not None:
                decisions = decisions_of(row)
                given = (*decisions.admitted_start, *decisions.admitted)
                found |= {number: slot for number, slot, *_ in given if wanted.get(number) == turn}
        return found

    def _padding(self) -> list[tuple[BriefRequest, int]]:
        """Finished rows that are still computed, and their slots."""
        if not str(self._reader.header.scheduler.get("batching", "")).endswith("padded") or not self._last.running:
            return []
        live = {standing.number for standing in self._live}
        rows = [number for number in self._computed_rows() if number not in live]
        requests = self._reader.brief_requests(rows)
        there = standings(requests, [event for number in rows for event in self._reader.events(number)])
        slots = self._given_slots(s for s in there if s.slot is None)
        slots |= {s.number: s.slot for s in there if s.slot is not None}
        return [(request, slots[request.request]) for request in requests if request.request in slots]

    def _computed_rows(self) -> list[int]:
        """Who was in the newest plan. The rows of one token are written when they change."""
        rows: set[int] = set()
        newest = True
        for row in self._reader.turns_backwards(self._last.turn, _PADDING_TURNS):
            decisions = decisions_of(row)
            if newest and decisions.budget:
                rows.update(number for number, _ in decisions.prefills)
                newest = False
            if decisions.decodes is not None:
                return sorted(rows.union(decisions.decodes))
        return sorted(rows)

    # --- the queue

    def _queue(self, waiting: list[Standing]) -> Queue:
        if not waiting:
            return Queue()
        head = self._last.head
        holders = [s.number for s in self._live if s.phase in _HOLDING or s.phase is Phase.PREEMPTED]
        newest_holder = max(holders, default=0)
        told = {}
        for standing in waiting:
            holder = newest_holder if newest_holder > standing.number else None
            told[standing.number] = self._waits_for(standing, holder)
        line = sorted(waiting, key=lambda s: (s.number != head, not s.blocked, s.number))
        names = {s.number: s.request.request_id for s in self._live}
        return Queue(
            waiting=len(waiting),
            by_cause=_counted(cause.value for cause, _ in told.values()),
            oldest_seconds=self._ago(min(s.request.arrival for s in waiting)),
            prompt_tokens=sum(s.request.prompt_tokens for s in waiting),
            first=[
                Waiting(
                    request_id=s.request.request_id,
                    tenant=s.request.tenant,
                    prompt_tokens=s.request.prompt_tokens,
                    seconds=self._ago(s.request.arrival),
                    cause=told[s.number][0].value,
                    behind=names.get(told[s.number][1] or 0),
                    passed_over=s.blocked,
                )
                for s in line[: self._shown]
            ],
        )

    def _waits_for(self, standing: Standing, holder: int | None) -> tuple[Cause, int | None]:
        """As ``explain`` would charge the time from here on."""
        if self._last.wait is None:
            return Cause.STEP_BOUNDARY, None
        return waiting_cause(
            WAIT_REASONS[self._last.wait],
            standing.number,
            head=self._last.head,
            holder=holder,
            blocked=standing.blocked,
            order=self._order,
        )

    def _away(self) -> list[Away]:
        found = [s for s in self._live if s.phase in (Phase.PAUSED, Phase.RESUMING)]
        return [
            Away(
                request_id=s.request.request_id,
                tenant=s.request.tenant,
                why=[reason.value for reason, bit in PAUSE_BITS.items() if s.pauses & bit],
                output_tokens=self._output[s.number],
            )
            for s in found[:SHOWN_AWAY]
        ]

    # --- memory and pace

    def _memory(self) -> Memory:
        header, free = self._reader.header, self._last.free_blocks
        preempted = [s for s in self._live if s.phase in (Phase.PREEMPTED, Phase.RESUMING)]
        return Memory(
            used=header.num_blocks - free,
            free=free,
            total=header.num_blocks,
            block_size=header.block_size,
            swap_total=header.num_swap_blocks,
            preempted=len(preempted),
            preempted_blocks=sum(s.swapped for s in preempted),
            moved=sum(turn.swapped for turn in self._turns),
            preemptions=sum(turn >= self._first_turn for s in (*self._live, *self._gone) for turn in s.preempted_turns),
        )

    def _pace(self) -> Pace:
        turns, seconds = self._turns, max((self._now - self._since) / 1e6, 1e-6)
        steps = [turn for turn in turns if turn.decode_rows or turn.prefill_tokens]
        output, prompt = sum(turn.tokens for turn in turns), sum(turn.prefill_tokens for turn in turns)
        return Pace(
            steps=len(steps),
            output_tokens=output,
            prompt_tokens=prompt,
            output_tokens_per_second=output / seconds,
            prompt_tokens_per_second=prompt / seconds,
            rows_per_step=sum(turn.decode_rows for turn in steps) / max(1, len(steps)),
            ttft=Spread.of((micros, 1) for micros in self._first_tokens()),
            itl=Spread.of(_gaps(turns)),
            step=Spread.of((turn.took, 1) for turn in steps),
        )

    def _first_tokens(self) -> Iterable[int]:
        """Time to first token of those that got it in the window."""
        ends = {turn.turn: turn.end for turn in self._turns}
        for standing in (*self._live, *self._gone):
            if standing.first_token in ends:
                yield ends[standing.first_token] - standing.request.arrival

    def _output_tokens(self) -> dict[int, int]:
        """How many tokens each live request has, by its number."""
        last = self._last.turn
        stretches = {s.number: list(s.stretches_until(last)) for s in self._live}
        without: list[int] = []
        for first, end in merged(stretch for found in stretches.values() for stretch in found):
            without += self._reader.turns_without_decodes(first, end)
        made = {s.number: (s.first_token is not None) + sum(n for _, n in s.extra_tokens) for s in self._live}
        for number, found in stretches.items():
            made[number] += sum(end - first + 1 - within(without, first, end) for first, end in found)
        return made

    # --- tenants and controls

    def _tenants(self) -> tuple[list[Tenant], Tenant | None]:
        served: dict[str, _Served] = {}
        decoding = [turn.turn for turn in self._turns if turn.decode_rows and turn.tokens]
        for standing in (*self._live, *self._gone):
            one = served.setdefault(standing.request.tenant, _Served())
            one.prompt_tokens += sum(tokens for turn, tokens in standing.chunks if turn >= self._first_turn)
            one.output_tokens += (standing.first_token or 0) >= self._first_turn
            for first, end in standing.stretches_until(self._last.turn):
                one.output_tokens += within(decoding, first, end)
            one.output_tokens += sum(tokens for turn, tokens in standing.extra_tokens if turn >= self._first_turn)
        for standing in self._live:
            served[standing.request.tenant].by_phase[standing.phase] += 1
        for request, _ in self._ended:
            one = served.setdefault(request.tenant, _Served())
            one.ended += request.refusal is None
            one.refused += request.refusal is not None
        told = [self._tenant(name, one) for name, one in served.items()]
        told.sort(key=lambda t: (-t.prompt_tokens - t.output_tokens, -t.running - t.waiting - t.away, t.tenant))
        rest = told[SHOWN_TENANTS:]
        return told[:SHOWN_TENANTS], Tenant.sum_of(rest) if rest else None

    def _tenant(self, name: str, served: _Served) -> Tenant:
        weight = self._reader.header.tenants.get(name, {}).get("weight")
        phases = served.by_phase
        return Tenant(
            tenant=name,
            weight=1.0 if weight is None else weight,
            running=sum(phases[phase] for phase in _HOLDING),
            waiting=phases[Phase.WAITING],
            away=phases[Phase.PAUSED] + phases[Phase.RESUMING] + phases[Phase.PREEMPTED],
            prompt_tokens=served.prompt_tokens,
            output_tokens=served.output_tokens,
            ended=served.ended,
            refused=served.refused,
        )

    def _controls(self) -> list[Control]:
        """The rules in force. Pauses count while their requests are in the engine."""
        paused = {f"pause {s.request.request_id}" for s in self._live if s.pauses}
        found = []
        for name, row in self._reader.controls(self._last.turn).items():
            if row.value != "off" and (not name.startswith("pause ") or name in paused):
                seconds = self._ago(row.at)
                found.append(Control(name=name, value=row.value, set_by=row.set_by, who=row.who, seconds=seconds))
        return found


def _before_the_first(num_blocks: int) -> TurnRow:
    """The state of an engine that has taken no turn."""
    numbers = dict.fromkeys(TurnRow._fields, 0) | {"free_blocks": num_blocks}
    return TurnRow(**{**numbers, "wait": None, "head": None, "inputs": b"", "decisions": b""})  # type: ignore[arg-type]


def _counted(names: Iterable[str | None]) -> dict[str, int]:
    """The most frequent first."""
    return {str(name): count for name, count in Counter(names).most_common()}


def _gaps(turns: list[BriefTurn]) -> Iterable[tuple[int, int]]:
    """The time between the ends of neighbouring turns, with the rows of one token of the later one."""
    for before, turn in pairwise(turns):
        if turn.decode_rows and turn.turn == before.turn + 1:
            yield turn.end - before.end, turn.decode_rows
