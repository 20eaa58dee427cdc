"""Signals of harm about the requests that wait: how long, how many more, until when, and whether one tenant floods."""

from bisect import bisect_left
from collections import Counter
from itertools import pairwise
from typing import Final

import numpy as np

from ekiden.evidence.moment import Asked, Moment
from ekiden.guardrails.readings import Objectives, Reading
from ekiden.measure.percentiles import median, percentiles

_LEAST_BACKLOG: Final = 1.0
"""Seconds of waiting after which it is known how fast requests join."""
_FLOOD_SHARE: Final = 0.6
"""Of those who wait, from which on one tenant floods the queue."""


def queue_readings(moment: Moment, objectives: Objectives) -> dict[str, Reading]:
    """All signals of the queue, by name."""
    line = [asked for asked in moment.requests if asked.waiting]
    rate, joined, seconds = _joining(moment)
    numbers = {"waiting": float(len(line))} | ({} if rate is None else {"joined_per_second": rate})
    pace = f"{joined} joined in {seconds:.1f} s of waiting"
    oldest = max((_age(moment, asked) for asked in line), default=0.0)
    steps = moment.steps
    grown = steps[-1].waiting - steps[0].waiting if steps else 0
    span = (steps[-1].end - steps[0].end) / 1e6 if steps else 0.0
    found = {
        "queue_age": Reading(value=oldest, evidence=f"{len(line)} wait, {pace}", numbers=numbers),
        "queue_growth": Reading(
            value=grown / span if span >= 1.0 else None, evidence=f"{len(line)} wait, {pace}", numbers=numbers
        ),
        "predicted_ttft_p90": Reading(value=None, evidence="none waits", numbers=numbers),
        "tenant_backlog": _tenant_backlog(moment, line, rate, objectives, numbers),
    }
    if line:
        known = [a.first - a.admitted for a in moment.with_first if a.first and a.admitted is not None]
        prefill = median(known) / 1e6 if known else 0.0
        ages = np.array([_age(moment, asked) for asked in sorted(line, key=lambda asked: asked.arrival)])
        waits = ages + prefill + (0.0 if rate is None else np.arange(1, len(ages) + 1) / rate)
        told = f"{len(line)} wait, the oldest for {oldest:.1f} s; {pace}, prefill takes {prefill:.2f} s"
        found["predicted_ttft_p90"] = Reading(value=percentiles(waits, (90,))[0], evidence=told, numbers=numbers)
    return found


def _age(moment: Moment, asked: Asked) -> float:
    return max(0, moment.at - asked.arrival) / 1e6


def _joining(moment: Moment) -> tuple[float | None, int, float]:
    """Requests that join per second while others wait, how many did, and for how long others waited in the window. None
    joined: at most one would have in that time. The rate is None while nothing is known."""
    steps, seconds = moment.steps, 0.0
    for before, after in pairwise(steps):
        seconds += (after.end - before.end) / 1e6 if before.waiting else 0.0
    if steps and steps[-1].waiting:
        seconds += (moment.at - steps[-1].end) / 1e6
    ends = [step.end for step in steps]
    joined = 0
    for asked in moment.requests:
        if asked.admitted is not None and steps and asked.admitted > ends[0]:
            place = bisect_left(ends, asked.admitted)
            joined += bool(steps[place - 1].waiting)
    if seconds < _LEAST_BACKLOG:
        return None, joined, seconds
    return max(joined, 1) / seconds, joined, seconds


def _tenant_backlog(
    moment: Moment, line: list[Asked], rate: float | None, objectives: Objectives, numbers: dict[str, float]
) -> Reading:
    counts = Counter(asked.tenant for asked in line)
    others = {a.tenant for a in moment.requests if a.live or a.arrival >= moment.since}
    if not counts or rate is None:
        return Reading(value=None, evidence="too few wait", numbers=numbers)
    ((tenant, count),) = counts.most_common(1)
    if count < _FLOOD_SHARE * len(line) or len(others) < 2:
        told = f"{len(line)} requests of {len(counts)} tenants wait, {count} of them of {tenant}"
        return Reading(value=0.0, evidence=told, numbers=numbers)
    served = sum(step.prefill_tokens + step.tokens for step in moment.steps)
    span = max((moment.at - moment.since) / 1e6, 1e-6)
    fair = served / span / len(others)
    return Reading(
        value=count / rate / objectives.ttft_seconds,
        evidence=f"{count} of {len(line)} waiting requests are of {tenant}, {len(others)} tenants send",
        subject=tenant,
        numbers=numbers | {"fair_tokens_per_second": fair},
    )
