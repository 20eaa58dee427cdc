"""Signals of harm at one moment of a run: each a pure function of ledger records, by the formula that
:data:`~ekiden.guardrails.readings.SIGNALS` has for it.

So they can be read of a recorded run at any moment of it. What a ledger cannot tell is not seen: a request that came
while a step never ends is written with that step, and the newest rows of a running engine are up to 0.2 s old.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, pairwise
from operator import attrgetter
from typing import Final

import numpy as np
import numpy.typing as npt

from ekiden.engine.step_time import fitted, usual
from ekiden.evidence.harm_queue import queue_readings
from ekiden.evidence.moment import CAPACITY, Asked, Moment, Settled, StepRow, moment_of
from ekiden.evidence.reader import LedgerReader
from ekiden.guardrails.readings import DEFAULT_OBJECTIVES, DEFAULT_WINDOWS, Objectives, Reading, Windows
from ekiden.ledger.records import REFUSED, RunHeader
from ekiden.measure.percentiles import median, percentiles
from ekiden.measure.service import OUTPUT_WEIGHT, PROMPT_WEIGHT, Service, bound, difference, merged
from ekiden.state.policy import StepLoad
from ekiden.state.request import FinishReason

_LEAST_SETTLED: Final = 5
"""Settled requests of a tenant, before its attainment says anything."""
_LEAST_ERRORS: Final = 3
_MOST_TENANTS: Final = 4
_RECENT_STEPS: Final = 32
_LEAST_REFERENCE: Final = 64

Floats = npt.NDArray[np.float64]


def readings(
    reader: LedgerReader,
    *,
    at: float | None = None,
    objectives: Objectives = DEFAULT_OBJECTIVES,
    windows: Windows = DEFAULT_WINDOWS,
) -> dict[str, Reading]:
    """All signals at ``at``, in seconds since the run began (:attr:`RunHeader.started`); None: at the newest turn.

    Raises :class:`~ekiden.evidence.reader.LedgerReadError` or sqlite3.Error for a ledger that cannot be read.
    """
    return readings_of(moment_of(reader, at, objectives, windows), reader.header, objectives, windows)


def readings_of(moment: Moment, header: RunHeader, objectives: Objectives, windows: Windows) -> dict[str, Reading]:
    """As :func:`readings`, from rows that were read."""
    return {
        **queue_readings(moment, objectives),
        **_first_tokens(moment),
        **_gaps(moment),
        **_memory(moment, header, windows),
        "fairness_gap": _fairness(moment, header),
        **_outcomes(moment),
        **_attainment(moment, objectives),
        **_steps(moment),
    }


# --- latencies


def _first_tokens(moment: Moment) -> dict[str, Reading]:
    times = [(a.first - a.arrival) / 1e6 for a in moment.with_first if a.first is not None]
    told = f"{len(times)} first tokens"
    p50, p99 = percentiles(times, (50, 99)) if times else (None, None)
    return {"ttft_p50": Reading(value=p50, evidence=told), "ttft_p99": Reading(value=p99, evidence=told)}


def _gaps(moment: Moment) -> dict[str, Reading]:
    pairs = [(a, b) for a, b in pairwise(moment.steps) if b.decode_rows and b.turn == a.turn + 1]
    gaps, rows = [(b.end - a.end) / 1e6 for a, b in pairs], [b.decode_rows for _, b in pairs]
    told = f"{sum(rows)} gaps in {len(rows)} steps"
    p50, p99 = percentiles(gaps, (50, 99), counts=rows) if gaps else (None, None)
    expected = [(step.p50 / 1e6, step.decode_rows) for step in moment.steps if step.p50 and step.decode_rows]
    predicted = None
    if expected:
        values, counts = zip(*expected, strict=True)
        predicted = percentiles(values, (99,), counts=counts)[0]
    last = moment.last
    going_on = (moment.at - last.end) / 1e6 if last is not None and last.decode_rows and last.running else 0.0
    largest = max([*gaps, going_on], default=0.0)
    return {
        "itl_p50": Reading(value=p50, evidence=told),
        "itl_p99": Reading(value=p99, evidence=told),
        "predicted_itl_p99": Reading(value=predicted, evidence=f"{len(expected)} steps with streams"),
        "largest_gap": Reading(value=largest, evidence=f"{told}; the one that goes on is {going_on:.2f} s"),
    }


# --- memory


def _memory(moment: Moment, header: RunHeader, windows: Windows) -> dict[str, Reading]:
    last, total = moment.last, header.num_blocks
    if last is None:
        nothing = Reading(value=None, evidence="no turn yet")
        return {"kv_used": nothing, "kv_unaccounted": nothing, "swap_rate": nothing}
    used, moved = total - last.free_blocks, sum(step.swapped for step in moment.steps)
    holders = [asked for asked in moment.requests if asked.live and asked.admitted is not None]
    most = sum(_most_blocks(moment, asked, header) for asked in holders)
    told = f"{used} of {total} blocks are in use"
    lost = None if moment.padded else max(0, used - most) / total
    return {
        "kv_used": Reading(value=used / total, evidence=told),
        "kv_unaccounted": Reading(
            value=lost, evidence=f"{told}, {len(holders)} requests can hold {most} of them at most"
        ),
        "swap_rate": Reading(
            value=moved / total / windows.near, evidence=f"{moved} blocks moved in {windows.near:g} s, pool of {total}"
        ),
    }


_end_of = attrgetter("end")


def _most_blocks(moment: Moment, asked: Asked, header: RunHeader) -> int:
    """The blocks that a request can hold at most: for its prompt, a token from each step since it was admitted, drafts
    included, and one to come."""
    answer = asked.max_tokens
    steps = moment.steps
    if asked.admitted is not None and steps and asked.admitted >= steps[0].end:
        since = len(steps) - bisect_right(steps, asked.admitted, key=_end_of) + 1
        answer = min(answer, (asked.carried or 0) + since * (1 + header.max_drafts))
    return -(-(asked.prompt_tokens + answer) // header.block_size) + 1


# --- fairness


def _fairness(moment: Moment, header: RunHeader) -> Reading:
    waits = Counter(a.tenant for a in moment.requests if a.refusal is None)
    tenants = [tenant for tenant, _ in waits.most_common(_MOST_TENANTS)]
    if len(tenants) < 2 or not moment.steps:
        return Reading(value=None, evidence="fewer than two tenants")
    ends = np.array([step.end for step in moment.steps], np.float64)
    streams = np.array([step.decode_rows > 0 for step in moment.steps], np.float64)
    services = {tenant: _service(moment, tenant, ends, streams) for tenant in tenants}
    gaps = [(difference(services[p], services[q]), p, q) for p, q in combinations(tenants, 2)]
    largest, p, q = max(gaps)
    served = [asked for asked in moment.requests if asked.refusal is None]
    slots = max(int(header.scheduler.get("max_num_seqs", 1)), max(step.running for step in moment.steps))
    longest = max((asked.prompt_tokens + asked.max_tokens for asked in served), default=0)
    batch = min(header.num_blocks * header.block_size, slots * longest)
    limit = bound(max((asked.prompt_tokens for asked in served), default=0), batch)
    told = f"service of {p} and {q} differs by {largest:.0f} weighted tokens, {limit:.0f} is the bound"
    return Reading(value=largest / limit, evidence=told)


def _service(moment: Moment, tenant: str, ends: Floats, streams: Floats) -> Service:
    """A tenant's service in the window, as if each step with streams had given a token to each of its requests that had
    their first."""
    change = np.zeros(len(ends) + 1)
    received = np.zeros(len(ends))
    waits = []
    for asked in moment.requests:
        if asked.tenant != tenant or asked.refusal is not None:
            continue
        until = moment.at if asked.ended is None else asked.ended
        first = asked.first
        waits.append((max(asked.arrival, moment.since), until if first is None else first))
        if first is not None and not asked.carried:
            begin, end = np.searchsorted(ends, (first, until), side="right")
            change[begin] += 1
            change[end] -= 1
            place = int(np.searchsorted(ends, first))
            if moment.since <= first and place < len(ends):
                received[place] += PROMPT_WEIGHT * asked.prompt_tokens + OUTPUT_WEIGHT
    received += OUTPUT_WEIGHT * np.cumsum(change)[:-1] * streams
    return Service(
        times=ends, received=np.cumsum(received), backlogged=merged([wait for wait in waits if wait[0] < wait[1]])
    )


# --- outcomes


def _outcomes(moment: Moment) -> dict[str, Reading]:
    ended = [a for a in moment.requests if a.ended is not None and a.reason != REFUSED]
    failed = sum(asked.reason == FinishReason.ERROR.value for asked in ended)
    came = [asked for asked in moment.requests if asked.arrival >= moment.since]
    refused = sum(asked.refusal in CAPACITY for asked in came)
    share = failed / len(ended) if failed >= _LEAST_ERRORS else 0.0
    return {
        "error_rate": Reading(
            value=share if ended else None, evidence=f"{failed} of {len(ended)} answers ended in an error"
        ),
        "refusal_rate": Reading(
            value=refused / len(came) if came else None,
            evidence=f"{refused} of {len(came)} arrivals were refused for want of capacity",
        ),
    }


def _attainment(moment: Moment, objectives: Objectives) -> dict[str, Reading]:
    late = [asked for asked in moment.requests if asked.live and _is_late(moment, asked, objectives)]
    tenants = dict(moment.by_tenant)
    for asked in late:
        good, bad = tenants.get(asked.tenant, Settled())
        tenants[asked.tenant] = Settled(good, bad + 1)
    known = {tenant: each.good / each.all for tenant, each in tenants.items() if each.all >= _LEAST_SETTLED}
    worst = min(known, key=lambda tenant: known[tenant], default=None)
    short = Settled(sum(each.good for each in tenants.values()), sum(each.bad for each in tenants.values()))
    long = Settled(moment.long.good, moment.long.bad + len(late))
    allowed = 1.0 - objectives.attainment
    rates = [each.bad / each.all / allowed if each.all >= _LEAST_SETTLED else None for each in (short, long)]
    told = [f"{each.bad} of {each.all} settled requests were bad" for each in (short, long)]
    both = [rate for rate in rates if rate is not None]
    return {
        "worst_tenant_attainment": Reading(
            value=None if worst is None else known[worst],
            evidence="too few settled" if worst is None else f"{tenants[worst].good} of {tenants[worst].all} were good",
            subject=worst,
        ),
        "burn_rate_short": Reading(value=rates[0], evidence=told[0]),
        "burn_rate_long": Reading(value=rates[1], evidence=told[1]),
        "burn_rate": Reading(value=min(both) if len(both) == 2 else None, evidence="; ".join(told)),
    }


def _is_late(moment: Moment, asked: Asked, objectives: Objectives) -> bool:
    """Whether it is known already that its first token was too late."""
    until = moment.at if asked.first is None else asked.first
    return not asked.carried and until - asked.arrival > objectives.ttft_seconds * 1e6


# --- steps


def _steps(moment: Moment) -> dict[str, Reading]:
    last = moment.last
    working = last is not None and bool(last.running or last.waiting)
    stall = (moment.at - last.end) / 1e6 if last is not None and working else 0.0
    work = _worked(moment.steps)
    drift = median([step.took / step.p50 for step in work]) if work else None
    recent, before = work[-_RECENT_STEPS:], _worked(moment.before)
    slowdown = None
    if recent and len(before) >= _LEAST_REFERENCE:
        cost = fitted([_load(step) for step in before], [step.took / 1e6 for step in before])
        slowdown = median([step.took / 1e6 / max(1e-6, cost.seconds(_load(step))) for step in recent])
    told = "no turn yet" if last is None else f"{last.running} run and {last.waiting} wait since turn {last.turn}"
    return {
        "step_stall": Reading(value=stall, evidence=told),
        "step_time_drift": Reading(value=drift, evidence=f"{len(work)} steps"),
        "step_slowdown": Reading(
            value=slowdown, evidence=f"{len(recent)} steps against {len(before)} of the run before"
        ),
    }


def _worked(steps: Sequence[StepRow]) -> list[StepRow]:
    """Those that computed, but for some that took longer, once."""
    worked = [step for step in steps if step.p50 > 0 and step.took > 0]
    return [worked[i] for i in usual([_load(step) for step in worked], [step.new_sizes > 0 for step in worked])]


def _load(step: StepRow) -> StepLoad:
    return StepLoad(step.decode_rows, step.decode_context, step.prefill_tokens, step.prefill_pairs)
