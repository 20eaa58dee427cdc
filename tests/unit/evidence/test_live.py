"""The live view agrees with the engine core whose turns it reads: slots, queue, memory, tokens, at any turn."""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ekiden.config import LimitsConfig
from ekiden.engine.engine_core import EngineCore, StepResult
from ekiden.evidence.explain import explain
from ekiden.evidence.live import live_view
from ekiden.evidence.live_rates import SHOWN_TENANTS
from ekiden.evidence.live_view import LiveView, SlotState, Spread
from ekiden.evidence.reader import LedgerReader
from ekiden.ledger.records import Rows, RunHeader
from ekiden.ledger.store import LedgerWriter
from ekiden.state.controls import ControlChange, ControlValue, SetBy, TenantLimits
from ekiden.state.sequence import PauseReason, Sequence
from tests.simulation.simulator import draw_world
from tests.unit.evidence.directed import Directed
from tests.unit.evidence.recorded import RecordedSimulation

SEEDS = 40
EVERY = 29
LONG = 10.0**6


def seen(folder: Path, header: RunHeader, turns: list[Rows], **how: Any) -> LiveView:
    path = folder / f"{header.run_id}-{len(turns)}.sqlite"
    writer = LedgerWriter(path, header)
    for rows in turns:
        writer.put(rows)
    writer.close()
    with LedgerReader(path) as reader:
        view = live_view(reader, **how)
    path.unlink()
    return view


def state_of(sequence: Sequence) -> SlotState:
    """By the engine's own record."""
    if sequence.padding:
        return SlotState.PADDING
    if sequence.status == "preempted":
        return SlotState.PREEMPTED
    if sequence.is_prefilling and not sequence.num_output_tokens:
        return SlotState.PREFILL
    return SlotState.RECOMPUTE if sequence.num_uncomputed_tokens > 1 else SlotState.DECODE


def check_agrees(view: LiveView, core: EngineCore, *, prompts_exact: bool) -> None:
    population, kv = core.population, core.kv
    live = [*population.running, *(s for s in population.preempted if s.slot is not None)]
    holders = {s.slot: s for s in [*live, *population.padding]}
    for slot in view.slots:
        sequence = holders.get(slot.slot)
        if sequence is None or (sequence.padding and not sequence.block_table):
            assert slot.state in (SlotState.EMPTY, SlotState.PADDING), slot
            continue
        assert (slot.request_id, slot.state) == (sequence.request_id, state_of(sequence)), sequence
        if not sequence.padding:
            assert slot.output_tokens == sequence.num_output_tokens, (slot, sequence)
            assert slot.tenant == sequence.request.tenant
            if prompts_exact:
                assert slot.computed_tokens == min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
    assert len(view.slots) == population.max_num_seqs
    assert view.running == len(population.running)
    assert view.queue.waiting == len(population.queued)
    assert {w.request_id for w in view.queue.first} == {s.request_id for s in population.queued.values()}
    assert view.paused == len(population.paused)
    without_slot = {s.request_id: s for s in population.preempted if s.slot is None} | population.paused
    assert {a.request_id: a.output_tokens for a in view.away} == {
        name: sequence.num_output_tokens for name, sequence in without_slot.items()
    }
    assert {a.request_id: set(a.why) for a in view.away} == {
        name: {reason.value for reason in sequence.paused_by} for name, sequence in without_slot.items()
    }
    assert (view.memory.used, view.memory.free) == (kv.pool.num_referenced, kv.pool.num_available)
    assert view.memory.preempted == len(population.preempted)
    wait = core._refilled
    if population.queued and wait.head is not None and wait.head.status == "waiting":
        assert view.queue.first[0].request_id == wait.head.request_id
        blocked = {w.request_id for w in view.queue.first if w.passed_over}
        assert blocked == {s.request_id for s in wait.passed_over}
    assert view.exact


class Checked(RecordedSimulation):
    """Looks at the ledger after every few turns."""

    def __init__(self, seed: int, folder: Path, every: int) -> None:
        super().__init__(seed)
        self._folder, self._every = folder, every
        self.states: set[SlotState] = set()
        self.looks = 0

    def _after_step(self, result: StepResult) -> None:
        super()._after_step(result)
        if self.outcome.steps % self._every == 0:
            view = seen(self._folder, self.header, self.kept.turns, window_seconds=LONG, shown=1000)
            prompts_exact = not self.world.prefix_caching and not self.world.pause_rate
            check_agrees(view, self.core, prompts_exact=prompts_exact)
            self._check_sums(view)
            self.states |= {slot.state for slot in view.slots}
            self.looks += 1

    def _check_sums(self, view: LiveView) -> None:
        """Over the whole run: the tenants' shares are the run's tokens, and its ends are the engine's own counts."""
        assert sum(t.output_tokens for t in view.tenants) == view.pace.output_tokens
        assert view.pace.output_tokens == self.core.stats().generation_tokens_total
        assert view.memory.preemptions == self.core.stats().preemptions_total
        assert view.ended == self.core.stats().finished_total
        assert view.refused == self.core.stats().refused_total


def test_it_agrees_with_the_core(tmp_path: Path) -> None:
    """Over drawn worlds: small pools, pauses, failures, every batching policy and order."""
    states: set[SlotState] = set()
    looks = 0
    padded = (seed for seed in range(10 * SEEDS) if draw_world(random.Random(seed)).batching == "static-padded")
    for seed in [*range(SEEDS), *padded]:  # a dummy row is seldom there when it is looked
        simulation = Checked(seed, tmp_path, every=EVERY)
        simulation.run()
        states |= simulation.states
        looks += simulation.looks
    assert looks > 80
    assert states == set(SlotState)


# --- one situation at a time


def view_of(world: Directed, folder: Path, **how: Any) -> LiveView:
    return seen(folder, world.header, world.kept.turns, **how)


def test_slots_and_who_waits_for_one(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=2)
    world.submit("a", output=40, tenant="ours")
    world.step()
    world.submit("long-prompt", prompt=200, output=5)
    late = world.submit("late", output=5)
    world.step(2)
    world.wait(0.5)
    view = view_of(world, tmp_path, now=world.header.started + world.now)
    first, second = view.slots
    assert (first.request_id, first.tenant, first.state, first.max_tokens) == ("a", "ours", SlotState.DECODE, 40)
    assert first.output_tokens == 3
    assert (second.request_id, second.state) == ("long-prompt", SlotState.PREFILL)
    assert 0 < second.computed_tokens < second.prompt_tokens == 200
    assert view.queue.by_cause == {"waiting_for_slot": 1}
    assert view.queue.first[0].request_id == "late"
    assert view.age_seconds == pytest.approx(0.5, abs=1e-5)
    assert view.queue.oldest_seconds == pytest.approx(world.now - late.arrival_time, abs=1e-5)
    assert not view.recording


def test_kv_blocks_and_whoever_stands_behind(tmp_path: Path) -> None:
    world = Directed(num_blocks=8, max_overtakes=0)
    world.submit("holder", prompt=90, output=20)
    world.step(3)
    world.submit("large", prompt=60, output=2)
    world.submit("small", output=2)
    world.step(2)
    view = view_of(world, tmp_path)
    large, small = view.queue.first
    assert (large.request_id, large.cause, large.passed_over) == ("large", "waiting_for_kv_blocks", True)
    assert (small.request_id, small.cause, small.behind) == ("small", "waiting_behind_request", "large")
    assert view.queue.by_cause == {"waiting_for_kv_blocks": 1, "waiting_behind_request": 1}
    assert (view.memory.used, view.memory.total) == (world.core.kv.pool.num_referenced, 8)


def test_a_pause_names_its_person(tmp_path: Path) -> None:
    world = Directed()
    world.submit("held", output=40)
    world.submit("slow", output=40)
    world.step(3)
    world.core.pause("held", by="anna")
    world.core.pause("slow", PauseReason.SLOW_READER)
    world.step()
    view = view_of(world, tmp_path)
    assert view.paused == 2
    assert {away.request_id: away.why for away in view.away} == {"held": ["operator"], "slow": ["slow_reader"]}
    control = next(control for control in view.controls if control.set_by == "person")
    assert (control.name, control.value, control.who) == ("pause held", "on", "anna")
    assert any(c.name == "max_num_seqs" and c.value == "4" and c.set_by == "configuration" for c in view.controls)
    world.core.resume("held", by="anna")
    world.step(2)
    view = view_of(world, tmp_path)
    assert [control.name for control in view.controls if control.set_by == "person"] == []
    assert [slot.request_id for slot in view.slots if slot.request_id] == ["held"]


def test_changes_of_the_controls_are_followed(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=4, max_num_batched_tokens=64)
    for number in range(3):
        world.submit(f"r{number}", output=60)
    world.step(5)
    values: dict[str, ControlValue] = {
        "scheduling_policy": "fair",
        "max_num_seqs": 2,
        "tenants": {"default": TenantLimits(weight=3.0)},
    }
    change = ControlChange(
        values=values, set_by=SetBy.SOFTWARE_RULE, who="guard", why="memory", expires_at=world.now + 9
    )
    world.core.set_controls(change)
    world.step(2)
    view = view_of(world, tmp_path)
    assert (view.order, view.epoch) == ("fair", 1)
    assert [slot.request_id for slot in view.slots] == ["r0", "r1", "r2"]  # nobody loses the slot it has
    assert [tenant.weight for tenant in view.tenants] == [3.0]
    control = next(c for c in view.controls if c.name == "max_num_seqs")
    assert (control.value, control.set_by, control.who, control.why) == ("2", "software_rule", "guard", "memory")
    assert control.expires_in_seconds is not None
    assert 8.0 < control.expires_in_seconds < 9.0
    world.wait(10)
    world.step(2)
    view = view_of(world, tmp_path)
    assert (view.order, view.epoch, len(view.slots)) == ("fcfs", 2, 4)
    control = next(c for c in view.controls if c.name == "max_num_seqs")
    assert (control.value, control.set_by, control.who) == ("4", "software_rule", "expired")


def test_explain_names_who_set_the_rule_that_was_in_force(tmp_path: Path) -> None:
    """The same wait, before and after a change of the number of slots."""
    world = Directed(max_num_seqs=1)
    world.submit("first", output=30)
    world.submit("waits before", output=5)
    world.run()
    world.core.set_controls(
        ControlChange(values={"max_num_seqs": 2}, set_by=SetBy.PERSON, who="anna", why="more memory")
    )
    for name in ("second", "third", "waits after"):
        world.submit(name, output=30)
    world.run()
    with world.stored(tmp_path) as reader:
        told = {}
        for name in ("waits before", "waits after"):
            (request,) = reader.requests_named(name)
            cause = next(c for c in explain(reader, request).causes if c.cause == "waiting_for_slot")
            told[name] = cause.control
    assert told["waits before"] == {"name": "max_num_seqs", "value": "1", "set_by": "configuration", "who": ""}
    assert told["waits after"] == {
        "name": "max_num_seqs", "value": "2", "set_by": "person", "who": "anna", "why": "more memory",
    }  # fmt: skip


def test_a_closed_server_is_a_control(tmp_path: Path) -> None:
    world = Directed()
    world.submit("a", output=9)
    world.drain("anna")
    world.step()
    assert any((c.name, c.set_by, c.who) == ("draining", "person", "anna") for c in view_of(world, tmp_path).controls)


def test_a_victim_keeps_its_slot(tmp_path: Path) -> None:
    world = Directed(num_blocks=7)
    world.submit("old", prompt=40, output=50)
    world.submit("new", prompt=40, output=50)
    for _ in range(60):
        if world.core.population.preempted:
            break
        world.step()
    view = view_of(world, tmp_path)
    assert [(slot.request_id, slot.state) for slot in view.slots[:2]] == [
        ("old", SlotState.DECODE),
        ("new", SlotState.PREEMPTED),
    ]
    assert view.memory.preempted == view.memory.preemptions == 1
    assert view.memory.preempted_blocks == world.core.population.preempted[0].swapped_blocks > 0
    assert view.memory.moved >= view.memory.preempted_blocks


def test_refusals_by_reason(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=1, limits=LimitsConfig(max_num_queued_reqs=1))
    for name in ("runs", "waits", "third"):
        world.submit(name, output=9, tenant=name)
        world.step()
    world.submit("empty", tokens=())
    world.step()
    view = view_of(world, tmp_path)
    assert view.refused == {"queue_full_requests": 1, "prompt_empty": 1}
    assert {t.tenant: t.refused for t in view.tenants} == {"runs": 0, "waits": 0, "third": 1, "default": 1}


def test_the_turn_of_a_tenant(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=1, scheduling_policy="fair")
    for number in range(3):
        world.submit(f"flood{number}", prompt=30, output=5, tenant="flood")
    world.step()
    world.submit("modest", output=30, tenant="modest")
    for _ in range(60):
        if any(s.request_id == "modest" for s in world.core.population.running):
            break
        world.step()
    world.step()
    view = view_of(world, tmp_path)
    assert view.order == "fair"
    assert set(view.queue.by_cause) == {"waiting_for_tenants_turn"}
    assert view.queue.first[0].behind == "modest"
    assert {t.tenant: t.oldest_seconds for t in view.tenants} == {"flood": view.queue.oldest_seconds, "modest": None}


def test_the_figures_are_those_of_the_window(tmp_path: Path) -> None:
    """Steps of known length: a step takes 10 ms, and 1 ms for each row and each prompt token."""
    world = Directed()
    world.submit("before", prompt=4, output=2, tenant="before")
    world.run()
    world.wait(100.0)
    world.submit("a", prompt=20, output=11, tenant="a")
    world.submit("b", prompt=20, output=11, tenant="b")
    world.run()
    view = view_of(world, tmp_path, window_seconds=10.0)
    assert view.ended == {"length": 2}
    assert [(t.tenant, t.prompt_tokens, t.output_tokens, t.ended) for t in view.tenants] == [
        ("a", 20, 11, 1),
        ("b", 20, 11, 1),
    ]
    assert [t.ttft_p50 for t in view.tenants] == [pytest.approx(0.052)] * 2
    assert view.pace.ttft.count == 2
    assert view.pace.ttft.p50 == pytest.approx(0.052)
    assert view.pace.itl.count == 20
    assert view.pace.itl.p50 == pytest.approx(0.012)
    assert view.pace.output_tokens_per_second == pytest.approx(2.2)
    assert view.pace.steps == 11
    later = view_of(world, tmp_path, now=world.header.started + world.now + 60.0, window_seconds=10.0)
    assert (later.pace.output_tokens, later.ended, later.tenants) == (0, {}, [])
    assert later.age_seconds == pytest.approx(60.0, abs=1e-5)


def test_many_tenants_are_summed(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=32, max_num_batched_tokens=256)
    for number in range(20):
        world.submit(f"r{number}", output=4, tenant=f"t{number:02}")
    world.run()
    view = view_of(world, tmp_path)
    assert len(view.tenants) == SHOWN_TENANTS
    assert view.other_tenants is not None
    assert view.other_tenants.tenant == f"{20 - SHOWN_TENANTS} others"
    assert view.other_tenants.ttft_p50 is None  # the median of several is not told by theirs
    assert sum(t.output_tokens for t in (*view.tenants, view.other_tenants)) == view.pace.output_tokens == 80


def test_an_engine_without_work_is_empty(tmp_path: Path) -> None:
    view = view_of(Directed(), tmp_path)
    assert (view.turn, view.running, view.queue.waiting, view.memory.used, view.memory.free) == (0, 0, 0, 0, 200)
    assert [slot.state for slot in view.slots] == [SlotState.EMPTY] * 4


def test_lost_turns_are_told_and_their_ends_give_way(tmp_path: Path) -> None:
    """The writer dropped the turn in which one ended; whoever has its slot now is shown."""
    world = Directed(max_num_seqs=1)
    world.submit("lost", output=3)
    world.submit("next", output=30)
    world.step(6)
    ended = next(turn for turn in world.kept.turns if turn.ends)
    world.kept.turns.remove(ended)
    view = view_of(world, tmp_path, window_seconds=LONG)
    assert not view.exact


def work_of_a_look(world: Directed, folder: Path) -> int:
    """How many hundreds of steps SQLite takes for one view: a measure that no other load on the machine moves."""
    ticks = 0

    def tick() -> int:
        nonlocal ticks
        ticks += 1
        return 0

    with world.stored(folder) as reader:
        reader._connection.set_progress_handler(tick, 100)
        view = live_view(reader, window_seconds=0.5)
        assert view.exact
        assert view.queue.waiting > 0
    (folder / "directed.sqlite").unlink()
    return ticks


def test_a_look_costs_no_more_on_a_long_run(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=4)
    costs = []
    for rounds in (20, 300):
        for number in range(rounds):
            for each in range(5):
                world.submit(f"{rounds}-{number}-{each}", output=6)
            world.step(8)
        for each in range(12):
            world.submit(f"{rounds}-last-{each}", output=30)
        world.step(3)
        costs.append(work_of_a_look(world, tmp_path))
        world.run()
    short, long = costs
    assert long < 1.5 * short


def test_percentiles_follow_the_one_rule() -> None:
    """They interpolate between the values, each of which counts as often as it was seen."""
    assert Spread.of([]) == Spread()
    assert Spread.of([(1000, 1)]) == Spread(count=1, p50=0.001, p95=0.001, p99=0.001)
    found = Spread.of([(2000, 50), (1000, 45), (3000, 4), (9000, 1)])
    assert (found.count, found.p50) == (100, 0.002)
    assert found.p95 == pytest.approx(0.002 + 0.05 * 0.001)
    assert found.p99 == pytest.approx(0.003 + 0.01 * 0.006)


def test_a_view_is_json_and_back(tmp_path: Path) -> None:
    world = Directed()
    world.submit("a", output=9)
    world.step(3)
    view = view_of(world, tmp_path)
    assert msgspec.json.decode(msgspec.json.encode(view), type=LiveView) == view
