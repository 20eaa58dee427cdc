"""From turns to the points of the page's curves. Percentiles are by the rule of :mod:`ekiden.measure.percentiles`."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ekiden.dashboard.shapes import Point
from ekiden.evidence.period_rows import StepOf
from ekiden.evidence.timeline import Timeline
from ekiden.measure.percentiles import percentiles

SHOWN_TENANTS: Final = 8
OTHERS: Final = "(others)"

Sums = Mapping[int, tuple[int, int, int]]
"""Turns, output tokens and computed prompt tokens, by the number of the bin."""


def points(
    steps: Sequence[StepOf],
    firsts: Iterable[tuple[int, int]],
    *,
    since: int,
    width: int,
    count: int,
    blocks: int,
    before: StepOf | None = None,
    sums: Sums | None = None,
    tenants: Mapping[int, Mapping[str, float]] | None = None,
) -> list[Point]:
    """``count`` points of ``width`` microseconds each, the first from ``since`` on.

    ``steps`` are the turns that ended in that time, in order; ``before`` the one before them, which tells of who ran
    until another turn ended. ``firsts``: times of first tokens, and how long each took. ``sums`` count what ``steps``
    does not, where that has not every turn. ``tenants``: tokens by tenant, by the number of the bin.
    """
    took: dict[int, list[int]] = {}
    for at, ttft in firsts:
        took.setdefault((at - since - 1) // width, []).append(ttft)
    ends = [step.end for step in steps]
    found, last = [], before
    for bin in range(count):
        begin = since + bin * width
        first, after = bisect_left(ends, begin + 1), bisect_left(ends, begin + width + 1)
        own = steps[first:after]
        last = own[-1] if own else last
        found.append(
            _point(
                own,
                last,
                took.get(bin, []),
                at=begin + width,
                width=width,
                blocks=blocks,
                sums=None if sums is None else sums.get(bin, (0, 0, 0)),
                tenants={} if tenants is None else tenants.get(bin, {}),
            )
        )
    return found


def _point(
    own: Sequence[StepOf],
    last: StepOf | None,
    ttft: list[int],
    *,
    at: int,
    width: int,
    blocks: int,
    sums: tuple[int, int, int] | None,
    tenants: Mapping[str, float],
) -> Point:
    seconds = width / 1e6
    if sums is None:
        sums = len(own), sum(step.tokens for step in own), sum(step.prefill_tokens for step in own)
    computed = [step for step in own if step.decode_rows or step.prefill_tokens]
    gaps = [(step.gap, step.decode_rows) for step in own if step.gap is not None and step.decode_rows]
    predicted = [step for step in computed if step.p50]
    itl: list[float | None] = [None, None]
    if gaps:
        itl = [*percentiles([gap for gap, _ in gaps], (50, 99), counts=[rows for _, rows in gaps])]
    first: list[float | None] = [*percentiles(ttft, (50, 95))] if ttft else [None, None]
    return Point(
        t=at / 1e6,
        seconds=seconds,
        turns=sums[0],
        tokens_per_second=sums[1] / seconds,
        prompt_tokens_per_second=sums[2] / seconds,
        running=0 if last is None else last.running,
        waiting=0 if last is None else last.waiting,
        kv_used=0.0 if last is None or not blocks else (blocks - last.free_blocks) / blocks,
        ttft_p50=_seconds(first[0]),
        ttft_p95=_seconds(first[1]),
        itl_p50=_seconds(itl[0]),
        itl_p99=_seconds(itl[1]),
        step_seconds=_median([step.took for step in computed]),
        step_predicted_p50=_median([step.p50 for step in predicted]),
        step_predicted_p90=_median([step.p90 for step in predicted]),
        tenants={tenant: tokens / seconds for tenant, tokens in tenants.items()},
    )


def _seconds(micros: float | None) -> float | None:
    return None if micros is None else micros / 1e6


def _median(micros: list[int]) -> float | None:
    return percentiles(micros, (50,))[0] / 1e6 if micros else None


def tenants_tokens(
    timelines: Iterable[Timeline], steps: Sequence[StepOf], *, since: int, width: int, count: int
) -> dict[int, dict[str, float]]:
    """The tokens that each tenant's requests had computed or given, by the number of the bin.

    ``steps``: every turn of the time. The tenants with most of them have names, the others are one.
    """
    ends = [step.end for step in steps]
    bounds: list[tuple[int, int, int]] = []
    for bin in range(count):
        first, after = (bisect_left(ends, since + place * width + 1) for place in (bin, bin + 1))
        if first < after:
            bounds.append((bin, steps[first].turn, steps[after - 1].turn))
    silent = [step.turn for step in steps if not step.decode_rows or not step.tokens]
    found: dict[int, Counter[str]] = {}
    lasts = [last for _, _, last in bounds]
    for one in timelines:
        if one.admitted is None:
            continue
        for bin, first, last in bounds[bisect_left(lasts, one.admitted.turn) :]:
            tokens = one.output_tokens(first, last, silent)
            tokens += sum(chunk for turn, chunk in one.chunks.items() if first <= turn <= last)
            if tokens:
                found.setdefault(bin, Counter())[one.request.tenant] += tokens
            elif not one.open and one.spans and one.spans[-1].end.turn < first:
                break
    return named_few(found)


def named_few(tokens: Mapping[int, Mapping[str, float]]) -> dict[int, dict[str, float]]:
    """The same with few tenants named; the sum over the others is that of :data:`OTHERS`."""
    total: Counter[str] = Counter()
    for each in tokens.values():
        total.update(each)
    named = {tenant for tenant, _ in total.most_common(SHOWN_TENANTS)}
    found: dict[int, dict[str, float]] = {}
    for bin, each in tokens.items():
        own: dict[str, float] = {}
        for tenant, count in each.items():
            name = tenant if tenant in named else OTHERS
            own[name] = own.get(name, 0.0) + count
        found[bin] = own
    return found
