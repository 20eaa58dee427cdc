"""The state of a run as of its newest turn, and its last moments, from the ledger alone.

Rules: it reads the newest turns, the live requests and those that ended in the window, all by index, so that it costs
the same on a run of millions of turns; everything of one view is read in one snapshot; nothing is kept between views.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import msgspec

from ekiden.evidence.breakdown import waiting_cause
from ekiden.evidence.causes import Cause
from ekiden.evidence.following import Following
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
from ekiden.evidence.reader import LedgerReader, decisions_of, inputs_of
from ekiden.evidence.timeline import RUNNING, Phase, Timeline, merged, timelines
from ekiden.ledger.records import LEFT_OUT_REASONS, PAUSE_BITS, EndRow, RequestRow, TurnRow
from ekiden.ledger.retention import is_being_written
from ekiden.state.controls import TenantLimits
from ekiden.state.request import DEFAULT_TENANT

WINDOW_SECONDS = 10.0
SHOWN_WAITING = 12
SHOWN_AWAY = 12
SHOWN_TENANTS = 8
_PADDING_TURNS = 4_096
"""How far back the rows of a padded batch are looked for; they are written when they change."""


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
    return look(reader, now=now, window_seconds=window_seconds, shown=shown).view


class Look(NamedTuple):
    """A view with what it was made of: the requests in the engine, and those that ran and ended in the window with
    their ends, by number; its turns, in order. ``now``: microseconds of the run."""

    view: LiveView
    live: list[Timeline]
    gone: list[Timeline]
    ends: dict[int, EndRow]
    turns: list[TurnRow]
    now: int


def look(
    reader: LedgerReader,
    *,
    now: float | None = None,
    window_seconds: float = WINDOW_SECONDS,
    shown: int = SHOWN_WAITING,
    known: Following | None = None,
) -> Look:
    """As :func:`live_view`, for who shows more of the same moment. ``known``: what an earlier look has read."""
    with reader.snapshot():
        return _Builder(reader, now, window_seconds, shown, known or Following()).look()


class _Builder:
    def __init__(
        self, reader: LedgerReader, now: float | None, window_seconds: float, shown: int, known: Following
    ) -> None:
        last = reader.turn(reader.bounds()[1]) or _before_the_first(reader.header.num_blocks)
        self._reader, self._last, self._shown, self._window = reader, last, shown, window_seconds
        asked = last.end if now is None else round((now - reader.header.started) * 1e6)
        self._now = max(last.end, asked)
        self._since = max(0, self._now - round(window_seconds * 1e6))
        self._turns = reader.newest_turns(self._since)
        self._first_turn = self._turns[0].turn if self._turns else last.turn + 1
        self._ended = reader.ended_since(self._first_turn)
        live = reader.live_requests()
        gone = [request for request, end in self._ended if end.admitted is not None]
        self._known, there = known, known.update(reader, (*live, *gone), last.turn)
        self._live, self._gone = ([there[each.request] for each in part] for part in (live, gone))
        self._order = self._setting("scheduling_policy")
        self._output = self._output_tokens()

    def look(self) -> Look:
        ends = {end.request: end for _, end in self._ended}
        return Look(self._view(), self._live, self._gone, ends, self._turns, self._now)

    def _view(self) -> LiveView:
        header, last = self._reader.header, self._last
        running = [one for one in self._live if one.phase in RUNNING]
        waiting = [one for one in self._live if one.phase is Phase.WAITING]
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
            age_seconds=self._ago(last.end),
            window_seconds=self._window,
            exact=known and whole,
            running=len(running),
            slots=self._slots(),
            queue=self._queue(waiting),
            paused=sum(one.phase is Phase.PAUSED for one in self._live),
            away=self._away(),
            memory=self._memory(),
            pace=self._pace(),
            tenants=tenants,
            other_tenants=others,
            ended=_counted(end.reason for request, end in self._ended if request.refusal is None),
            refused=_counted(request.refusal for request, _ in self._ended if request.refusal is not None),
            controls=self._controls(),
            order=self._order,
            epoch=last.epoch or 0,
        )

    def _setting(self, name: str) -> str:
        return self._reader.history(name).at(self._last.turn)

    def _ago(self, at: int) -> float:
        return max(0, self._now - at) / 1e6

    # --- slots

    def _slots(self) -> list[Slot]:
        """Also those that are held beyond the number there is to be."""
        slots = {index: Slot(slot=index) for index in range(int(self._setting("max_num_seqs")))}
        holders = sorted((one for one in self._live if one.slot_turn), key=lambda one: one.slot_turn)
        for request, place in self._padding():
            slots[place] = Slot(
                slot=place, state=SlotState.PADDING, request_id=request.request_id, tenant=request.tenant
            )
        found = self._known.slots_of(self._reader, holders)
        for one in holders:  # the newest last: where an end was lost, the slot is its successor's
            index = found.get(one.number)
            if index is not None:
                slots[index] = self._slot(index, one)
        return [slots[index] for index in sorted(slots)]

    def _slot(self, index: int, one: Timeline) -> Slot:
        request, since = one.request, None if one.admitted is None else one.admitted.at
        return Slot(
            slot=index,
            state=SlotState[one.phase.name],
            request_id=request.request_id,
            tenant=request.tenant,
            prompt_tokens=request.prompt_tokens,
            computed_tokens=one.computed,
            output_tokens=self._output[one.number],
            max_tokens=request.max_tokens,
            seconds=0.0 if since is None else self._ago(since),
            left_out=LEFT_OUT_REASONS[one.left_out].value if one.left_out else None,
        )

    def _padding(self) -> list[tuple[RequestRow, int]]:
        """Finished rows that are still computed, and their slots."""
        if not self._setting("batching").endswith("padded") or not self._last.running:
            return []
        rows = self._computed_rows() - {one.number for one in self._live}
        requests = self._reader.requests_numbered(sorted(rows))
        there = timelines(requests, (event for request in requests for event in self._reader.events(request.request)))
        found = Following().slots_of(self._reader, there)
        return [(request, found[request.request]) for request in requests if request.request in found]

    def _computed_rows(self) -> set[int]:
        """The requests in the newest plan. The rows of one token are written when they change."""
        rows: set[int] = set()
        newest = True
        for row in self._reader.turns_backwards(self._last.turn, _PADDING_TURNS):
            decisions = decisions_of(row)
            if newest and decisions.budget:
                rows.update(number for number, _ in decisions.prefills)
                newest = False
            if decisions.decodes is not None:
                return rows.union(decisions.decodes)
        return rows

    # --- the queue

    def _queue(self, waiting: list[Timeline]) -> Queue:
        if not waiting:
            return Queue()
        holders = [one.number for one in self._live if one.phase in RUNNING or one.phase is Phase.PREEMPTED]
        newest_holder = max(holders, default=0)
        wait, head, order = self._last.wait, self._last.head, self._order
        causes: dict[int, tuple[Cause, int | None]] = {}
        for one in waiting:  # as ``explain`` would charge the time from here on
            own, holder = one.number, newest_holder if newest_holder > one.number else None
            causes[own] = waiting_cause(wait, own, head=head, holder=holder, blocked=one.blocked, order=order)
        line = sorted(waiting, key=lambda one: (one.number != self._last.head, not one.blocked, one.number))
        names = {one.number: one.request.request_id for one in self._live}
        return Queue(
            waiting=len(waiting),
            by_cause=_counted(cause.value for cause, _ in causes.values()),
            oldest_seconds=self._ago(min(one.request.arrival for one in waiting)),
            prompt_tokens=sum(one.request.prompt_tokens for one in waiting),
            first=[
                Waiting(
                    request_id=one.request.request_id,
                    tenant=one.request.tenant,
                    prompt_tokens=one.request.prompt_tokens,
                    seconds=self._ago(one.request.arrival),
                    cause=causes[one.number][0].value,
                    behind=names.get(causes[one.number][1] or 0),
                    passed_over=one.blocked,
                )
                for one in line[: self._shown]
            ],
        )

    def _away(self) -> list[Away]:
        found = [one for one in self._live if one.phase in (Phase.PAUSED, Phase.RESUMING)]
        return [
            Away(
                request_id=one.request.request_id,
                tenant=one.request.tenant,
                why=[reason.value for reason, bit in PAUSE_BITS.items() if one.pauses & bit],
                output_tokens=self._output[one.number],
            )
            for one in found[:SHOWN_AWAY]
        ]

    # --- memory and pace

    def _memory(self) -> Memory:
        header, free = self._reader.header, self._last.free_blocks
        preempted = [one for one in self._live if one.phase in (Phase.PREEMPTED, Phase.RESUMING)]
        times = [turn for one in (*self._live, *self._gone) for turn in one.preempted_turns]
        return Memory(
            used=header.num_blocks - free,
            free=free,
            total=header.num_blocks,
            block_size=header.block_size,
            swap_total=header.num_swap_blocks,
            preempted=len(preempted),
            preempted_blocks=sum(one.swapped for one in preempted),
            moved=sum(turn.swapped for turn in self._turns),
            preemptions=sum(turn >= self._first_turn for turn in times),
        )

    def _pace(self) -> Pace:
        turns, seconds = self._turns, max((self._now - self._since) / 1e6, 1e-6)
        steps = [turn for turn in turns if turn.decode_rows or turn.prefill_tokens]
        drafts, accepted = self._drafts()
        output, prompt = sum(turn.tokens for turn in turns), sum(turn.prefill_tokens for turn in turns)
        return Pace(
            steps=len(steps),
            output_tokens=output,
            prompt_tokens=prompt,
            output_tokens_per_second=output / seconds,
            prompt_tokens_per_second=prompt / seconds,
            rows_per_step=sum(turn.decode_rows for turn in steps) / max(1, len(steps)),
            ttft=Spread.of((micros, 1) for _, micros in self._first_tokens()),
            itl=Spread.of(_gaps(turns)),
            step=Spread.of((turn.took, 1) for turn in steps),
            drafts=drafts,
            accepted_drafts=accepted,
        )

    def _first_tokens(self) -> list[tuple[str, int]]:
        """Those of the window: whose each is, and the microseconds since the request arrived."""
        return [
            (one.request.tenant, first.at - one.request.arrival)
            for one in (*self._live, *self._gone)
            if (first := one.first_token) is not None and first.at is not None and first.turn >= self._first_turn
        ]

    def _drafts(self) -> tuple[int, int]:
        """Tokens guessed ahead in the window, and how many of them were right."""
        if not self._reader.header.max_drafts:
            return 0, 0
        drafts = accepted = 0
        for turn in self._reader.turns_backwards(self._last.turn, self._last.turn - self._first_turn + 1):
            drafts += sum(count for _, count in decisions_of(turn).drafts)
            accepted += sum(max(0, row.tokens - 1) for row in inputs_of(turn).drafts)
        return drafts, accepted

    def _output_tokens(self) -> dict[int, int]:
        """How many tokens each live request has, by its number."""
        last = self._last.turn
        silent: list[int] = []
        for first, end in merged(stretch for one in self._live for stretch in one.stretches_until(last)):
            silent += self._reader.silent_turns(first, end)
        return {one.number: one.output_tokens(1, last, silent) + (one.request.carried or 0) for one in self._live}

    # --- tenants and controls

    def _tenants(self) -> tuple[list[Tenant], Tenant | None]:
        """What each tenant has now and had in the window; the first few, and the sum over the others."""
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        first, last = self._first_turn, self._last.turn
        decoding = {turn.turn for turn in self._turns if turn.decode_rows and turn.tokens}
        silent = [turn for turn in range(first, last + 1) if turn not in decoding]
        for one in (*self._live, *self._gone):
            count = counts[one.request.tenant]
            count["prompt_tokens"] += sum(tokens for turn, tokens in one.chunks.items() if turn >= first)
            count["output_tokens"] += one.output_tokens(first, last, silent)
        oldest: dict[str, float] = {}
        for one in self._live:
            where = "waiting" if one.phase is Phase.WAITING else "running" if one.phase in RUNNING else "away"
            counts[one.request.tenant][where] += 1
            if where == "waiting":
                oldest.setdefault(one.request.tenant, self._ago(one.request.arrival))
        firsts: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for name, micros in self._first_tokens():
            firsts[name].append((micros, 1))
        for request, _ in self._ended:
            counts[request.tenant]["ended" if request.refusal is None else "refused"] += 1
        control = self._reader.controls(last).get("tenants")
        if control is None:
            limits = msgspec.convert(self._reader.header.tenants, dict[str, TenantLimits])
        else:
            limits = msgspec.json.decode(control.value, type=dict[str, TenantLimits])
        others = limits.get(DEFAULT_TENANT, TenantLimits())
        tenants = [
            Tenant(
                tenant=name,
                weight=limits.get(name, others).weight,
                ttft_p50=Spread.of(firsts[name]).p50,
                oldest_seconds=oldest.get(name),
                **count,
            )
            for name, count in counts.items()
        ]
        tenants.sort(key=lambda t: (-t.prompt_tokens - t.output_tokens, -t.running - t.waiting - t.away, t.tenant))
        rest = tenants[SHOWN_TENANTS:]
        return tenants[:SHOWN_TENANTS], Tenant.sum_of(rest) if rest else None

    def _controls(self) -> list[Control]:
        """The rules in force. Pauses count while their requests are in the engine."""
        paused = {f"pause {one.request.request_id}" for one in self._live if one.pauses}
        found = []
        for name, row in self._reader.controls(self._last.turn).items():
            if row.value not in ("off", "") and (not name.startswith("pause ") or name in paused):
                told = {"name": name, "value": row.value, "set_by": row.set_by, "who": row.who, "why": row.why}
                left = None if row.expires is None else max(0, row.expires - self._now) / 1e6
                found.append(Control(**told, seconds=self._ago(row.at), expires_in_seconds=left))
        return found


def _before_the_first(num_blocks: int) -> TurnRow:
    """The state of an engine that has taken no turn."""
    numbers = dict.fromkeys(TurnRow._fields, 0) | {"free_blocks": num_blocks}
    return TurnRow(**{**numbers, "wait": None, "head": None, "inputs": b"", "decisions": b""})  # type: ignore[arg-type]


def _counted(names: Iterable[str | None]) -> dict[str, int]:
    """The most frequent first."""
    return {str(name): count for name, count in Counter(names).most_common()}


def _gaps(turns: list[TurnRow]) -> Iterable[tuple[int, int]]:
    """The time between the ends of neighbouring turns, with the rows of one token of the later one."""
    for before, turn in pairwise(turns):
        if turn.decode_rows and turn.turn == before.turn + 1:
            yield turn.end - before.end, turn.decode_rows
