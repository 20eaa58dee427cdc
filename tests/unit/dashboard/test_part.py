"""Bars and curves agree with the engine core whose turns they are drawn from, over drawn worlds and case by case."""

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from ekiden.dashboard.part import curves, read_part
from ekiden.dashboard.period import MOST_POINTS, period
from ekiden.dashboard.shapes import PHASES, Bar, Point
from ekiden.engine.engine_core import StepResult
from ekiden.evidence import period_rows
from ekiden.evidence.reader import LedgerReader
from ekiden.state.sequence import Sequence
from tests.simulation.simulator import draw_world
from tests.unit.dashboard.growing import write
from tests.unit.evidence.directed import Directed
from tests.unit.evidence.recorded import RecordedSimulation
from tests.unit.evidence.test_live import state_of

SEEDS = 4


class Watching(RecordedSimulation):
    """Notes after each step who holds which slot, by the engine's own record."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.held: dict[int, dict[int, tuple[str, str]]] = {}
        """By the end of the turn in microseconds; the last turn of a moment counts."""

    def _after_step(self, result: StepResult) -> None:
        super()._after_step(result)
        population = self.core.population
        holders: list[Sequence] = [*population.running, *population.preempted, *population.padding]
        at = self.kept.turns[-1].turn.end
        self.held[at] = {s.slot: (s.request_id, state_of(s).name.lower()) for s in holders if s.slot is not None}


def test_bars_are_who_held_which_slot(tmp_path: Path) -> None:
    """Small pools, pauses, failures, every batching policy and order."""
    phases: set[str] = set()
    padding: Counter[bool] = Counter()
    padded = [seed for seed in range(30 * SEEDS) if draw_world(random.Random(seed)).batching == "static-padded"]
    for seed in dict.fromkeys([*range(SEEDS), *padded[:3]]):
        simulation = Watching(seed)
        simulation.run()
        with LedgerReader(write(tmp_path / f"{seed}.sqlite", simulation.header, simulation.kept.turns)) as reader:
            whole = period(reader, 0.0, None)
        assert whole.whole
        assert [bar for bar in whole.bars if bar.end is None] == []
        phases |= {phase for bar in whole.bars for phase, _, _ in bar.segments}
        for at, held in simulation.held.items():
            shown = holders(whole.bars, at)
            assert without_padding(shown) == without_padding(held), (seed, at)
            padding[shown.items() - held.items() == held.items() - shown.items()] += 1
    assert phases == set(PHASES)
    # That a padded row gave up its place before its batch ended is not recorded.
    assert padding[False] < 0.02 * padding[True]


def without_padding(held: dict[int, tuple[str, str]]) -> dict[int, tuple[str, str]]:
    return {slot: told for slot, told in held.items() if told[1] != "padding"}


def holders(bars: list[Bar], at: int) -> dict[int, tuple[str, str]]:
    """Who holds which slot right after a time, and in which phase."""
    found: dict[int, tuple[str, str]] = {}
    for bar in bars:
        for phase, begin, end in bar.segments:
            if bar.slot is not None and round(begin * 1e6) <= at and (end is None or at < round(end * 1e6)):
                assert bar.slot not in found, (bar, found[bar.slot])
                found[bar.slot] = bar.request_id, phase
    return found


# --- one situation at a time


def test_a_pause_takes_the_slot_and_a_stay_may_go_on(tmp_path: Path) -> None:
    """Its slot, what it did there, and that it gave it back for a pause."""
    world = Directed(num_blocks=20, max_num_seqs=2)
    world.submit("first", prompt=60, output=60)
    world.submit("second", prompt=60, output=60)
    world.step(12)
    world.core.pause("first", by="anna")
    world.step(2)
    world.core.resume("first", by="anna")
    world.step(6)
    with world.stored(tmp_path) as reader:
        whole = period(reader, 0.0, None)
    first = [bar for bar in whole.bars if bar.request_id == "first"]
    assert [(bar.slot is None, bar.state) for bar in first][:2] == [(False, "left"), (True, "left")]
    assert {phase for bar in first for phase, _, _ in bar.segments if bar.slot is None} == {"paused"}
    assert first[-1].end is None
    assert first[-1].segments[-1][2] is None
    for bar in whole.bars:
        assert bar.start == bar.segments[0][1]
        assert bar.end == bar.segments[-1][2]
        assert all(before[2] == after[1] for before, after in pairwise(bar.segments))
    assert any(control.name == "pause first" and control.who == "anna" for control in whole.controls)


def curve_of(reader: LedgerReader, width: int) -> list[Point]:
    with reader.snapshot():
        last = reader.turn(reader.bounds()[1])
        assert last is not None
        part = read_part(reader, 0, last.end)
        return curves(part, reader, 0, width, -(-last.end // width))


def two_tenants(folder: Path) -> LedgerReader:
    world = Directed(max_num_seqs=3, prefix_caching=True)
    for index in range(8):
        world.submit(f"r{index}", prompt=20 + index, output=9, tenant="ours" if index % 3 else "theirs")
        world.step(2)
    world.run()
    return world.stored(folder)


@pytest.mark.parametrize("width", [10_000, 50_000, 1_000_000])
def test_points_add_up_to_the_run(tmp_path: Path, width: int) -> None:
    with two_tenants(tmp_path) as reader:
        found, turns, ends = curve_of(reader, width), list(reader.all_turns()), reader.all_ends()
        tenants = {row.request: row.tenant for row in reader.all_requests()}
        prompts = {row.request: row.prompt_tokens for row in reader.all_requests()}
    seconds = width / 1e6
    assert sum(point.turns for point in found) == len(turns)
    assert sum(point.tokens_per_second for point in found) * seconds == pytest.approx(sum(t.tokens for t in turns))
    prompt = sum(point.prompt_tokens_per_second for point in found) * seconds
    assert prompt == pytest.approx(sum(t.prefill_tokens for t in turns))
    for tenant in ("ours", "theirs"):
        own = [end for end in ends if tenants[end.request] == tenant]
        tokens = sum(end.output_tokens + prompts[end.request] - end.cached_tokens for end in own)
        assert sum(point.tenants.get(tenant, 0.0) for point in found) * seconds == pytest.approx(tokens)
    assert sum(point.ttft_p50 is not None for point in found) <= len(ends)
    assert found[-1].running == 0


def test_a_long_part_is_read_in_strides_and_its_sums_are_whole(tmp_path: Path, monkeypatch) -> None:
    with two_tenants(tmp_path) as reader:
        whole = curve_of(reader, 100_000)
        monkeypatch.setattr(period_rows, "MOST_STEPS", 10)
        few = curve_of(reader, 100_000)
    assert [point.turns for point in few] == [point.turns for point in whole]
    assert [point.tokens_per_second for point in few] == [point.tokens_per_second for point in whole]
    of_tenants = [sum(p.tenants.get(name, 0.0) for p in few) for name in ("ours", "theirs")]
    assert of_tenants == pytest.approx([sum(p.tenants.get(name, 0.0) for p in whole) for name in ("ours", "theirs")])
    assert any(a != b for a, b in zip(few, whole, strict=True)), "quantiles are of fewer turns"


def test_a_period_is_bounded_and_says_what_it_lacks(tmp_path: Path) -> None:
    with two_tenants(tmp_path) as reader:
        whole = period(reader, 0.0, None)
        part = period(reader, 0.1, 0.2)
        beyond = period(reader, 50.0, 60.0)
    assert len(whole.series) <= MOST_POINTS
    assert (whole.gaps, whole.whole) == ([], True)
    assert {bar.id for bar in part.bars} < {bar.id for bar in whole.bars}
    assert all(bar.start <= 0.2 and (bar.end is None or bar.end >= 0.1) for bar in part.bars)
    assert (beyond.bars, beyond.queue, sum(point.turns for point in beyond.series)) == ([], [], 0)
    assert [wait.request_id for wait in whole.queue] == [f"r{index}" for index in range(8)]
    assert all(wait.end is not None and wait.start <= wait.end for wait in whole.queue)


def test_lost_turns_are_told(tmp_path: Path) -> None:
    world = Directed()
    for index in range(4):
        world.submit(f"r{index}", output=20)
        world.step(5)
    turns = [rows for rows in world.kept.turns if rows.turn.turn not in (7, 8, 9)]
    with LedgerReader(write(tmp_path / "run.sqlite", world.header, turns)) as reader:
        (gap,) = period(reader, 0.0, None).gaps
    assert gap.turns == 3
    assert gap.start == world.kept.turns[5].turn.end / 1e6
    assert gap.end == world.kept.turns[9].turn.start / 1e6


def test_a_run_without_a_turn(tmp_path: Path) -> None:
    world = Directed()
    with LedgerReader(write(tmp_path / "run.sqlite", world.header, [])) as reader:
        found = period(reader, None, None)
    assert (found.bars, found.series, found.queue, found.run_end) == ([], [], [], 0.0)
    assert msgspec.json.encode(found)
