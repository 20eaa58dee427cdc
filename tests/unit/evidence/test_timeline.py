"""The one fold of a request's events: its spans, its tokens, and that explain and the live view tell the same of it."""

from pathlib import Path

import pytest

from ekiden.evidence.breakdown import breakdown
from ekiden.evidence.live import live_view
from ekiden.evidence.live_view import LiveView, SlotState
from ekiden.evidence.reader import Event, LedgerReader
from ekiden.evidence.timeline import Moment, Phase, Timeline, timelines
from ekiden.ledger.records import REFUSED, EventKind, RequestRow
from tests.unit.evidence.recorded import RecordedSimulation, finished, stored

SEEDS = (0, 11, 86, 112, 247, 256)
"""Worlds with pauses, preemption with and without swap space, failed steps, every kind of order but one."""
_PHASES = {
    SlotState.PREFILL: Phase.PREFILL,
    SlotState.DECODE: Phase.DECODE,
    SlotState.RECOMPUTE: Phase.RECOMPUTE,
    SlotState.PREEMPTED: Phase.PREEMPTED,
}


@pytest.fixture(scope="module")
def worlds() -> list[RecordedSimulation]:
    return [finished(seed) for seed in SEEDS]


def shown(view: LiveView) -> dict[str, Phase]:
    """The phase of each request, by the live view."""
    found = {slot.request_id: _PHASES[slot.state] for slot in view.slots if slot.request_id and slot.state in _PHASES}
    found |= {waiting.request_id: Phase.WAITING for waiting in view.queue.first}
    found |= {away.request_id: Phase.PAUSED if away.why else Phase.RESUMING for away in view.away}
    return found


def test_explain_tells_the_phases_that_the_live_view_showed(tmp_path: Path, worlds: list[RecordedSimulation]) -> None:
    """The view of a run that has come so far, against the spans of the same requests when the run is over."""
    seen: set[Phase] = set()
    for world in worlds:
        with LedgerReader(stored(world, tmp_path)) as reader:
            spans = {
                row.request_id: breakdown(reader, row).timeline.spans
                for row in reader.all_requests()
                if row.refusal is None
            }
        turns = world.kept.turns
        for count in range(1, len(turns), 23):
            part = tmp_path / f"{world.header.run_id}-{count}"
            part.mkdir()
            world.kept.turns = turns[:count]
            with LedgerReader(stored(world, part)) as reader:
                view = live_view(reader, shown=1000)
            for name, phase in shown(view).items():
                there = [span for span in spans[name] if span.begin[:2] <= (count, 1) < span.end[:2]]
                assert [span.phase for span in there] == [phase], f"seed {world.header.run_id}, turn {count}: {name}"
                seen.add(phase)
        world.kept.turns = turns
    assert seen == set(Phase)


def test_spans_cover_a_request_from_arrival_to_end(tmp_path: Path, worlds: list[RecordedSimulation]) -> None:
    for world in worlds:
        with LedgerReader(stored(world, tmp_path)) as reader:
            for timeline in timelines(reader.all_requests(), reader.all_events()):
                end = reader.end(timeline.number)
                assert end is not None
                if end.reason != REFUSED:
                    assert [s.end for s in timeline.spans[:-1]] == [s.begin for s in timeline.spans[1:]]
                    assert timeline.spans[0].begin.turn == timeline.request.turn
                    assert timeline.spans[-1].end.at == end.at
                assert timeline.spans_until(Moment(10**6, 1, 10**9)) == timeline.spans


def test_tokens_are_those_of_the_ends(tmp_path: Path, worlds: list[RecordedSimulation]) -> None:
    counted = 0
    for world in worlds:
        with LedgerReader(stored(world, tmp_path)) as reader:
            last = reader.bounds()[1]
            silent, middle = reader.silent_turns(1, last), last // 2
            for timeline in timelines(reader.all_requests(), reader.all_events()):
                end = reader.end(timeline.number)
                assert end is not None
                total = timeline.output_tokens(1, last, silent)
                assert total + (timeline.request.carried or 0) == end.output_tokens, timeline
                parts = (timeline.output_tokens(*part, silent) for part in ((1, middle), (middle + 1, last)))
                assert sum(parts) == total
                counted += total
    assert counted > 500


REQUEST = RequestRow(1, "r", "default", 1, 0, 8, 40, 0, None, b"")


def folded(*events: tuple[int, EventKind, int]) -> Timeline:
    """Of (turn, kind, value); a turn takes ten microseconds, and events are at its start but for those of tokens."""
    timeline = Timeline(REQUEST)
    for turn, kind, value in events:
        late = int(kind in (EventKind.FIRST_TOKEN, EventKind.TOKENS, EventKind.ENDED))
        timeline.take(Event(1, turn, late, kind, value, 10 * (turn + late)))
    return timeline


STARTED = ((1, EventKind.ARRIVED, 0), (1, EventKind.ADMITTED, 0), (1, EventKind.FIRST_TOKEN, 0))


def test_rows_of_several_tokens_count_as_they_were() -> None:
    timeline = folded(*STARTED, (3, EventKind.TOKENS, 4), (5, EventKind.TOKENS, 2))
    assert timeline.output_tokens(1, 5, silent=[4]) == 1 + 1 + 4 + 0 + 2
    assert timeline.output_tokens(3, 3, silent=[4]) == 4
    assert timeline.output_tokens(4, 5, silent=[4]) == 2
    assert [span.phase for span in timeline.spans_until(Moment(5, 1, 60))] == [
        Phase.WAITING,
        Phase.PREFILL,
        Phase.DECODE,
    ]


def test_a_turn_left_out_gives_no_token() -> None:
    timeline = folded(*STARTED, (3, EventKind.LEFT_OUT, 4), (6, EventKind.LEFT_OUT, 0), (8, EventKind.ENDED, 0))
    assert list(timeline.stretches_until(100)) == [(2, 2), (6, 8)]
    assert timeline.output_tokens(1, 8, silent=[]) == 5
    assert [(span.phase, span.left_out) for span in timeline.spans] == [
        (Phase.WAITING, 0),
        (Phase.PREFILL, 0),
        (Phase.DECODE, 0),
        (Phase.DECODE, 4),
        (Phase.DECODE, 0),
    ]


def test_a_request_whose_arrival_is_past_the_retention_has_no_spans() -> None:
    timeline = Timeline(REQUEST)
    timeline.take(Event(1, 1, 0, EventKind.ARRIVED, 0, None))
    timeline.take(Event(1, 2, 0, EventKind.ADMITTED, 0, 20))
    timeline.take(Event(1, 3, 1, EventKind.FIRST_TOKEN, 0, 30))
    assert (timeline.phase, timeline.spans) == (Phase.DECODE, [])
