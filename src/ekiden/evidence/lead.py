"""What rules would have done on a recorded run, and how long before the objectives were missed each would have fired.

The ledger is read as the guard would have read it, once a second of the run, and the ladder takes its steps. Nothing
that it would have changed is changed: the run goes on as it was recorded, so steps after the first tell how far a rule
would have gone had its actions not helped.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator

import msgspec

from ekiden.evidence.harm import readings
from ekiden.evidence.moment import CAPACITY
from ekiden.evidence.reader import LedgerReader
from ekiden.guardrails.ladder import RuleState, Step, step
from ekiden.guardrails.readings import DEFAULT_WINDOWS, Objectives, Windows
from ekiden.guardrails.rules import Rules
from ekiden.ledger.records import ENGINE_ENDED, REFUSED
from ekiden.measure.figures import time_per_output_token
from ekiden.state.request import FinishReason

_WHOLE = (FinishReason.STOP.value, FinishReason.LENGTH.value)


class Misses(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests of a run were not good. ``times``: when each was known not to be, in order, in seconds of the run.
    ``missed_at``: when they were more than the objective allows of all ``offered``; None if it never came to that."""

    offered: int
    allowed: int
    times: list[float]

    @property
    def missed_at(self) -> float | None:
        return self.times[self.allowed] if len(self.times) > self.allowed else None

    def first_after(self, at: float) -> float | None:
        """The first miss after a time."""
        place = bisect_right(self.times, at)
        return self.times[place] if place < len(self.times) else None


class Lead(msgspec.Struct, frozen=True, kw_only=True):
    """What one rule would have done. ``fired_at``: its first step up, in seconds of the run; None if it took none.
    ``lead_seconds``: from then until the objective was missed; below 0 if it was missed before."""

    rule: str
    signal: str
    owner: str
    fired_at: float | None
    lead_seconds: float | None
    steps: list[Step]


class Leads(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    seconds: float
    objectives: Objectives
    misses: Misses
    rules: list[Lead]


def leads(
    reader: LedgerReader,
    rules: Rules,
    *,
    every: float = 1.0,
    windows: Windows = DEFAULT_WINDOWS,
    on_look: Callable[[float], None] = lambda at: None,
) -> Leads:
    """Step the rules through a recorded run. ``on_look`` is told the time of the run after each look."""
    taken: list[Step] = []
    state: dict[str, RuleState] = {}
    last = 0.0
    for at in _times(reader, every):
        found = readings(reader, at=at, objectives=rules.objectives, windows=windows)
        state, steps = step(rules, state, found, at)
        taken += steps
        last = at
        on_look(at)
    misses = misses_of(reader, rules.objectives)
    missed = misses.missed_at
    told = []
    for rule in rules.rules:
        own = [each for each in taken if each.rule == rule.name]
        fired = next((each.at for each in own if each.up), None)
        lead = None if fired is None or missed is None else missed - fired
        told.append(
            Lead(
                rule=rule.name,
                signal=rule.signal,
                owner=rule.owner,
                fired_at=fired,
                lead_seconds=lead,
                steps=own,
            )
        )
    return Leads(run_id=reader.header.run_id, seconds=last, objectives=rules.objectives, misses=misses, rules=told)


def misses_of(reader: LedgerReader, objectives: Objectives) -> Misses:
    """Requests that ended, with what the client left, or an engine that ended took along, apart."""
    times: list[float] = []
    offered = 0
    refusals = {row.request: row.refusal for row in reader.all_requests() if row.refusal is not None}
    for end in reader.all_ends():
        arrival, at = (end.at - end.e2e) / 1e6, end.at / 1e6
        first = at if end.first_token is None else end.first_token / 1e6
        late = first - arrival > objectives.ttft_seconds
        if end.reason == ENGINE_ENDED or (end.reason == FinishReason.ABORT.value and not late):
            continue
        if end.reason == REFUSED and refusals.get(end.request) not in CAPACITY:
            continue
        offered += 1
        pace = time_per_output_token(first, at, end.output_tokens) or 0.0
        if end.reason == REFUSED:
            times.append(at)
        elif late:
            times.append(min(at, arrival + objectives.ttft_seconds))
        elif end.reason not in (*_WHOLE, FinishReason.ABORT.value) or pace > objectives.tpot_seconds:
            times.append(at)
    allowed = int((1.0 - objectives.attainment) * offered + 1e-9)
    return Misses(offered=offered, allowed=allowed, times=sorted(times))


def _times(reader: LedgerReader, every: float) -> Iterator[float]:
    """From the first stored turn to the last, a whole number of steps of ``every`` seconds since the run began."""
    first, last = (reader.turn(number) for number in reader.bounds())
    if first is None or last is None:
        return
    number = int(first.start / 1e6 / every)
    while (number - 1) * every < last.end / 1e6:
        yield number * every
        number += 1
