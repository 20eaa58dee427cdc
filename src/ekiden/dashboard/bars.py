"""From the timelines of requests to bars: one for each stay in a slot, and one for each pause."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from ekiden.dashboard.padding import Padding
from ekiden.dashboard.shapes import Bar, Segment
from ekiden.evidence.timeline import Moment, Phase, Span, Timeline
from ekiden.ledger.records import EndRow
from ekiden.state.request import FinishReason

_IN_SLOT: Final = {
    Phase.PREFILL: "prefill",
    Phase.DECODE: "decode",
    Phase.RECOMPUTE: "recompute",
    Phase.PREEMPTED: "preempted",
}
_RUNNING: Final = frozenset({"prefill", "decode", "recompute"})
_PAUSED: Final = frozenset({Phase.PAUSED, Phase.RESUMING})
LEFT: Final = "left"
"""The state of a stay after which the request went on elsewhere."""


def bars_of(
    timeline: Timeline,
    *,
    slot: int | None,
    end: EndRow | None,
    now: Moment,
    padding: Padding,
) -> list[Bar]:
    """The bars of one request, in order. ``slot`` is what its admission gave it; ``end`` is None while it is in the
    engine, and ``now`` when that is looked at."""
    open_end = end is None
    stays = _stays(timeline.spans_until(now) if open_end else timeline.spans, timeline, slot)
    found = []
    for place, (where, spans) in enumerate(stays):
        last = place == len(stays) - 1
        segments = _segments(spans)
        begin, until = segments[0][1], segments[-1][2]
        if last and open_end:
            phase, since, _ = segments[-1]
            segments[-1], until = (phase, since, None), None
        state = LEFT if not last else segments[-1][0] if end is None else end.reason
        if last and end is not None and where is not None and _may_be_padded(segments[-1][0], end):
            padded = padding.until(end)
            if padded is None or padded > end.at:
                until = None if padded is None else padded / 1e6
                segments.append(("padding", end.at / 1e6, until))
        found.append(
            Bar(
                id=f"{timeline.number}.{place}",
                request_id=timeline.request.request_id,
                tenant=timeline.request.tenant,
                slot=where,
                segments=segments,
                start=begin,
                end=until,
                state=state,
            )
        )
    return found


def all_bars(
    timelines: Iterable[Timeline],
    slots: Mapping[int, int],
    ends: Mapping[int, EndRow],
    now: Moment,
    padding: Padding,
) -> list[Bar]:
    """The bars of many requests. ``slots`` are what their admissions gave, by number."""
    found: list[Bar] = []
    for one in timelines:
        slot, end = slots.get(one.number), ends.get(one.number)
        found += bars_of(one, slot=slot, end=end, now=now, padding=padding)
    return _without_overlaps(found) if padding.known else found


def _may_be_padded(phase: str, end: EndRow) -> bool:
    """Whether the row of a request that ended so may have been kept: it ran, and nothing of ours had failed."""
    made = end.output_tokens > 0 or phase == "prefill"
    return phase in _RUNNING and made and end.reason != FinishReason.ERROR


def _without_overlaps(bars: list[Bar]) -> list[Bar]:
    """Padding gives its slot up to one that comes back to it."""
    found, following = {bar.id: bar for bar in bars}, dict[int, Bar]()
    for bar in sorted((bar for bar in bars if bar.slot is not None), key=lambda bar: -bar.start):
        assert bar.slot is not None
        phase, begin, end = bar.segments[-1]
        after = following.get(bar.slot)
        if phase == "padding" and after is not None and (end is None or end > after.start):
            segments: list[Segment] = [*bar.segments[:-1], (phase, begin, after.start)]
            found[bar.id] = msgspec.structs.replace(bar, segments=segments, end=after.start)
        following[bar.slot] = bar
    return list(found.values())


def _stays(spans: Iterable[Span], timeline: Timeline, admitted: int | None) -> list[tuple[int | None, list[Span]]]:
    """The spans of each stay with its slot; None for a pause."""
    found: list[tuple[int | None, list[Span]]] = []
    kind: tuple[bool, int] | None = None
    for span in spans:
        if span.phase is Phase.WAITING:
            kind = None
            continue
        paused = span.phase in _PAUSED
        given = [place for place, (turn, _) in enumerate(timeline.slots) if turn <= span.begin.turn]
        which = given[-1] if given and not paused else -1
        if kind != (paused, which):
            where = None if paused or which < 0 else timeline.slots[which][1]
            if not paused and which >= 0 and timeline.slots[which][1] is None:
                where = admitted
            if not (found and kind is not None and not paused and not kind[0] and found[-1][0] == where):
                found.append((where, []))
            kind = (paused, which)
        found[-1][1].append(span)
    return found


def _segments(spans: Iterable[Span]) -> list[Segment]:
    """Spans that differ in their phase only."""
    found: list[Segment] = []
    for span in spans:
        phase = _IN_SLOT.get(span.phase, "paused")
        begin, end = span.begin.at / 1e6, span.end.at / 1e6
        if found and begin == end:
            continue  # a phase that the same turn began and ended
        if found and found[-1][0] == phase:
            found[-1] = (phase, found[-1][1], end)
        else:
            found.append((phase, begin, end))
    return found
