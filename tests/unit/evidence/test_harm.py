"""Each signal on a run that was made for it, at any moment of it, and at a cost that does not grow with the run."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ekiden.config import LimitsConfig
from ekiden.evidence.harm import readings
from ekiden.evidence.moment import MOST_TURNS, SAMPLE, moment_of
from ekiden.evidence.reader import LedgerReader
from ekiden.guardrails.readings import SIGNALS, Objectives, Reading, Windows
from ekiden.ledger.records import EndRow, RequestRow, Rows, TurnRow
from ekiden.ledger.store import LedgerWriter
from ekiden.state.controls import TenantLimits
from ekiden.state.plan import BatchPlan, RowResult, StepOutput
from tests.unit.evidence.directed import BASE, PER_PREFILL_TOKEN, PER_ROW, Directed
from tests.unit.evidence.recorded import finished

GOAL = Objectives(ttft_seconds=0.5, tpot_seconds=0.02, attainment=0.9)
NEAR = Windows(near=1000.0, short=1000.0, long=1000.0)


def read(world: Directed, folder: Path, **how: object) -> dict[str, Reading]:
    folder.mkdir(exist_ok=True)
    with world.stored(folder) as reader:
        return readings(reader, **{"objectives": GOAL, "windows": NEAR, **how})  # type: ignore[arg-type]


def value(found: dict[str, Reading], name: str) -> float:
    known = found[name].value
    assert known is not None, name
    return known


def test_all_signals_are_read_and_each_gives_the_numbers_that_it_promises(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=1)
    world.submit("a", output=200, tenant="a")
    for number in range(4):
        world.submit(f"b{number}", output=2, tenant="b")
    world.step(120)
    found = read(world, tmp_path)
    assert set(found) == set(SIGNALS)
    for name, reading in found.items():
        assert reading.evidence, name
        if name in ("queue_age", "predicted_ttft_p90", "tenant_backlog"):
            assert set(reading.numbers) == set(SIGNALS[name].numbers), name


def test_a_run_without_turns_or_work_shows_no_harm(tmp_path: Path) -> None:
    quiet = {"queue_age": 0.0, "largest_gap": 0.0, "step_stall": 0.0}
    found = read(Directed(), tmp_path)
    assert {name: reading.value for name, reading in found.items() if reading.value is not None} == quiet


def test_the_queue(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=2)
    for number in range(8):
        world.submit(f"r{number}", output=200)
        world.step(10)
    world.step(50)
    found = read(world, tmp_path)
    waiting = list(world.core.population.queued.values())
    assert value(found, "queue_age") == pytest.approx(world.now - min(s.request.arrival_time for s in waiting))
    assert value(found, "queue_growth") > 0
    assert found["queue_age"].numbers["waiting"] == len(waiting) == 6
    # Nobody joined while others waited, so at most one did in that time: the last in line waits for six such times.
    assert value(found, "predicted_ttft_p90") > 5 * value(found, "queue_age")


def test_who_joins_per_second_counts_only_while_others_wait(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=1)
    world.submit("first", output=5)
    world.run()
    for number in range(40):
        world.submit(f"r{number}", output=10)
    world.step()
    while len(world.core.population.queued) > 10:
        world.step()
    found = read(world, tmp_path)
    each = 10 * (BASE + PER_ROW) + 4 * PER_PREFILL_TOKEN  # a prefill and 9 decodes
    assert found["queue_age"].numbers["joined_per_second"] == pytest.approx(1 / each, rel=0.1)
    assert value(found, "predicted_ttft_p90") == pytest.approx(value(found, "queue_age") + 9.1 * each, rel=0.1)


def test_latencies_are_those_of_the_turns_and_the_first_tokens(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=4)
    world.submit("a", prompt=20, output=30)
    world.step(5)
    world.submit("b", prompt=60, output=5)
    world.run()
    found = read(world, tmp_path)
    slow = BASE + 2 * PER_ROW + 60 * PER_PREFILL_TOKEN
    assert value(found, "largest_gap") == pytest.approx(slow, abs=0.004)
    assert value(found, "itl_p50") == pytest.approx(BASE + PER_ROW, abs=0.0005)
    assert value(found, "ttft_p99") == pytest.approx(slow, abs=0.03)
    assert value(found, "predicted_itl_p99") > 0


def test_a_gap_and_a_stall_go_on_while_no_turn_ends(tmp_path: Path) -> None:
    world = Directed()
    world.submit("a", output=50)
    world.step(10)
    for seconds in (0.0, 3.0, 30.0):
        found = read(world, tmp_path / str(seconds), at=world.now + seconds)
        assert value(found, "step_stall") == pytest.approx(seconds)
        assert value(found, "largest_gap") >= seconds
    world.run()
    found = read(world, tmp_path / "ended", at=world.now + 100.0)
    assert value(found, "step_stall") == 0.0
    assert value(found, "largest_gap") < 0.1


def test_blocks_that_nobody_can_hold(tmp_path: Path) -> None:
    world = Directed(num_blocks=100)
    for number in range(6):
        world.submit(f"r{number}", prompt=40, output=60)
    world.step(60)
    found = read(world, tmp_path / "sound")
    used = world.core.kv.pool.num_referenced / 100
    assert value(found, "kv_used") == pytest.approx(used)
    assert value(found, "kv_unaccounted") == 0.0
    world.core.kv.pool.allocate(40)
    world.step(3)
    assert 0.3 < value(read(world, tmp_path / "leak"), "kv_unaccounted") <= 0.4
    world.run()
    assert value(read(world, tmp_path / "idle"), "kv_unaccounted") == 0.4


def test_swapping_is_counted_in_pools_a_second(tmp_path: Path) -> None:
    world = Directed(num_blocks=12)
    for number in range(4):
        world.submit(f"r{number}", prompt=30, output=60)
    world.run()
    moved = sum(rows.turn.swapped for rows in world.kept.turns)
    assert moved > 0
    assert value(read(world, tmp_path), "swap_rate") == pytest.approx(moved / 12 / 1000.0)


def flood(**scheduler: Any) -> Directed:
    world = Directed(max_num_seqs=1, **scheduler)
    world.submit("begun", output=3, tenant="flood")
    for number in range(60):
        world.submit(f"f{number}", prompt=30, output=10, tenant="flood")
    world.submit("lone", output=4, tenant="lone")
    world.step(200)
    return world


def test_a_flood_is_named_with_its_tenant_and_a_fair_share(tmp_path: Path) -> None:
    found = read(flood(), tmp_path)
    backlog = found["tenant_backlog"]
    assert backlog.subject == "flood"
    assert value(found, "tenant_backlog") > 5
    assert backlog.numbers["fair_tokens_per_second"] > 0
    assert value(found, "fairness_gap") > 1


def test_a_fair_order_keeps_within_the_bound(tmp_path: Path) -> None:
    assert value(read(flood(scheduling_policy="fair"), tmp_path), "fairness_gap") < 0.5


def test_a_lone_tenant_floods_nobody(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=1)
    for number in range(60):
        world.submit(f"f{number}", output=10)
    world.step(200)
    found = read(world, tmp_path)
    assert value(found, "tenant_backlog") == 0.0
    assert found["fairness_gap"].value is None


def test_what_is_settled_good_bad_and_what_counts_for_neither(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=8, limits=LimitsConfig(max_num_queued_reqs=1000), tenants={"own": TenantLimits(
        tokens_per_second=1.0, burst_tokens=1.0)})  # fmt: skip
    for number in range(8):
        world.submit(f"good{number}", output=5, tenant="a")
    world.run()
    assert value(read(world, tmp_path / "good"), "worst_tenant_attainment") == 1.0
    for number in range(6):
        world.submit(f"late{number}", output=5, tenant="b")
    world.wait(1.0)
    world.run()
    found = read(world, tmp_path / "late")
    assert (found["worst_tenant_attainment"].value, found["worst_tenant_attainment"].subject) == (0.0, "b")
    assert value(found, "burn_rate_long") == pytest.approx(6 / 14 / 0.1)
    before = world.core.stats().refused_total
    assert not before
    for number in range(5):  # a tenant's own limit, and clients that left in time, count for neither
        world.submit(f"own{number}", prompt=50, tenant="own")
    world.submit("left", output=500, tenant="a")
    world.step(2)
    world.core.abort("left")
    world.run()
    assert world.core.stats().refused_total == {"tenant_rate": 4}
    found = read(world, tmp_path / "own")
    assert value(found, "burn_rate_long") <= 7 / 15 / 0.1
    assert value(found, "refusal_rate") == 0.0


def test_refusals_for_want_of_capacity_and_requests_that_are_overdue_are_bad(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=1, limits=LimitsConfig(max_num_queued_reqs=3))
    world.submit("long", output=400)
    world.step()
    for number in range(10):
        world.submit(f"r{number}", output=5)
    world.step(100)
    assert world.now > GOAL.ttft_seconds
    found = read(world, tmp_path)
    assert value(found, "refusal_rate") == pytest.approx(7 / 11)
    assert found["burn_rate_short"].evidence == "10 of 10 settled requests were bad"


def test_errors(tmp_path: Path) -> None:
    world = Directed()
    for number in range(6):
        world.submit(f"r{number}", output=5)
    world.run()
    assert value(read(world, tmp_path / "none"), "error_rate") == 0.0
    step = world.runner.execute

    def failing(plan: BatchPlan) -> StepOutput:
        output = step(plan)
        return msgspec.structs.replace(output, rows=[RowResult(error="planted") for _ in output.rows])

    world.runner.execute = failing  # type: ignore[method-assign]
    for number in range(4):
        world.submit(f"bad{number}", output=5)
    world.run()
    assert value(read(world, tmp_path / "some"), "error_rate") == pytest.approx(4 / 10)


def test_steps_that_slow_down_stay_slow_for_the_signal_though_the_model_follows(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=2)
    for number in range(40):
        world.submit(f"r{number}", output=20 + number % 7)
    world.step(300)
    with world.stored(tmp_path) as reader:
        assert readings(reader, windows=Windows(near=1.0))["step_slowdown"].value == pytest.approx(1.0, abs=0.1)
    began, step = world.now, world.runner.execute

    def slow(plan: BatchPlan) -> StepOutput:
        before = world.now
        output = step(plan)
        world.now += world.now - before
        return output

    world.runner.execute = slow  # type: ignore[method-assign]
    world.step(400)
    windows = Windows(near=3.0)
    (tmp_path / "slow").mkdir()
    with world.stored(tmp_path / "slow") as reader:
        soon = readings(reader, at=began + 1.0, windows=windows)
        later = readings(reader, at=world.now, windows=windows)
    assert value(soon, "step_slowdown") == pytest.approx(2.0, abs=0.2)
    assert value(later, "step_slowdown") > 1.4
    assert value(later, "step_time_drift") == pytest.approx(1.0, abs=0.1), "it has learnt"


# --- at any moment


def file_of(folder: Path, turns: list[Rows], header: object, name: str) -> Path:
    path = folder / f"{name}.sqlite"
    writer = LedgerWriter(path, header)  # type: ignore[arg-type]
    for rows in turns:
        writer.put(rows)
    writer.close()
    return path


def test_a_past_moment_reads_as_it_did_when_it_was_now(tmp_path: Path) -> None:
    """Of drawn worlds with preemptions, refusals, failures and aborts."""
    assert sum(compared_moments(tmp_path, seed) for seed in range(5)) > 25


def compared_moments(folder: Path, seed: int) -> int:
    simulation = finished(seed)
    turns = simulation.kept.turns
    windows = Windows(near=1.0, short=2.0, long=4.0)
    whole = file_of(folder, turns, simulation.header, f"whole-{seed}")
    compared = 0
    with LedgerReader(whole) as reader:
        for number in range(1, len(turns), max(1, len(turns) // 8)):
            at = turns[number - 1].turn.end / 1e6
            if turns[number].turn.end == turns[number - 1].turn.end:
                continue  # the later turn had ended by then as well
            with LedgerReader(file_of(folder, turns[:number], simulation.header, f"cut-{seed}-{number}")) as cut:
                then = readings(cut, at=at, objectives=GOAL, windows=windows)
            later = readings(reader, at=at, objectives=GOAL, windows=windows)
            for name in SIGNALS:
                assert later[name] == then[name], (number, name)
            compared += 1
    return compared


# --- its cost


def long_run(turns: int) -> Iterator[Rows]:
    """Steps of 10 ms; each second a request comes, and one of 20 tokens ends."""
    for number in range(1, turns + 1):
        row = TurnRow(
            turn=number, start=number * 10_000, took=9_000, wait_start=None, head_start=None, wait=None, head=None,
            waiting=0, running=1, free_blocks=10, decode_rows=1, decode_context=10 + number % 7, prefill_tokens=0,
            prefill_pairs=0, p10=8_000, p50=9_000, p90=9_500, prefill_time=0, swapped=0, tokens=1, inputs=b"",
            decisions=b"", epoch=0,
        )  # fmt: skip
        requests, ends = [], []
        if number % 100 == 0:
            key = number // 100
            requests = [RequestRow(key, f"r{key}", "t", number, number * 10_000, 5, 20, 0, None, b"")]
            if key > 1:
                at = row.end
                first = (number - 99) * 10_000
                ends = [EndRow(key - 1, number, at, at - first, "length", 20, 0, 0, first, first, 1, b"")]
        yield Rows(row, [], requests, ends, [])


def test_a_reading_costs_the_same_on_a_run_ten_times_as_long(tmp_path: Path) -> None:
    """Counted in rows that SQLite gives and in the steps of its virtual machine."""
    header = finished(0).header
    counted = []
    for turns in (7_000, 28_000):
        path = file_of(tmp_path, list(long_run(turns)), msgspec.structs.replace(header, run_id=str(turns)), str(turns))
        with LedgerReader(path) as reader:
            for at in (None, turns * 0.005):
                instructions = 0

                def count() -> int:
                    nonlocal instructions
                    instructions += 1
                    return 0

                connection: sqlite3.Connection = reader._connection
                connection.set_progress_handler(count, 100)
                moment = moment_of(reader, at, GOAL, Windows(near=10.0, short=20.0, long=30.0))
                connection.set_progress_handler(None, 100)
                assert len(moment.steps) == pytest.approx(1_000, abs=1)
                assert len(moment.before) == SAMPLE
                counted.append(instructions)
    short_now, short_then, long_now, long_then = counted
    assert long_now <= 1.2 * short_now + 20
    assert long_then <= 1.2 * short_then + 20
    assert MOST_TURNS >= 1_000
