"""The one loop around a step, in virtual time on the fake model."""

from collections.abc import Iterator
from itertools import repeat

import pytest

from ekiden.backends.fake import FakeRunner
from ekiden.config import CacheConfig, Config, SchedulerConfig, controls_of
from ekiden.engine.driver import ANY_TIME, StuckError, VirtualClock, abort_all, arrivals, drive
from ekiden.engine.engine_core import EngineCore, StepResult
from ekiden.state.request import FinishReason, Request, RequestUpdate
from ekiden.state.sampling_params import SamplingParams


class World:
    """An engine whose every step takes a second of virtual time."""

    def __init__(self, **scheduler: object) -> None:
        self.clock = VirtualClock()
        settings = {"max_num_seqs": 4, "max_num_batched_tokens": 64, **scheduler}
        cache = CacheConfig(block_size=16)
        config = Config(scheduler=SchedulerConfig(**settings), cache=cache)  # type: ignore[arg-type]
        self.core = EngineCore(
            runner=FakeRunner(before_step=self._spend),
            controls=controls_of(config),
            cache=cache,
            clock=self.clock.now,
        )
        self.updates: list[RequestUpdate] = []
        self.computed: list[bool] = []
        self.most = 0

    def _spend(self, step: int) -> None:
        self.clock.time += 1.0

    def sink(self, result: StepResult) -> None:
        self.updates += result.updates
        self.computed.append(result.computed)
        self.most = max(self.most, len(self.core.population.by_id))

    def ends(self) -> dict[str, tuple[FinishReason, float]]:
        return {u.request_id: (u.finish.reason, u.finish.finish_time) for u in self.updates if u.finish}


def request(name: str, arrival: float = 0.0, tokens: int = 3, deadline: float | None = None) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=(1, 2, 3),
        sampling=SamplingParams(temperature=0.0, max_tokens=tokens),
        arrival_time=arrival,
        deadline=deadline,
    )


def run(world: World, *requests: Request, **settings: object) -> None:
    drive(world.core, arrivals(world.core, world.clock, requests, **settings), world.clock, world.sink)  # type: ignore[arg-type]


def test_requests_enter_when_they_are_due_and_idle_time_is_skipped():
    world = World()
    run(world, request("late", 100.0), request("early"))
    assert world.ends() == {"early": (FinishReason.LENGTH, 3.0), "late": (FinishReason.LENGTH, 103.0)}
    assert world.computed == [True] * 3 + [False] + [True] * 3, "one look at an idle engine, and no more"


def test_an_ended_requests_deadline_wakes_nobody():
    world = World()
    run(world, request("early", deadline=50.0), request("late", 100.0))
    assert world.computed.count(False) == 1


def test_a_timer_of_the_engine_ends_the_wait():
    world = World(batching="window", batch_window_ms=5_000.0)
    run(world, request("a", 1.0))
    assert world.ends() == {"a": (FinishReason.LENGTH, 9.0)}


def test_a_closed_loop_keeps_its_concurrency_and_counts_arrival_at_entry():
    world = World()
    run(world, *(request(str(index)) for index in range(6)), concurrency=2)
    assert world.most == 2
    assert [u.finish.arrival_time for u in world.updates if u.finish] == [0.0, 0.0, 3.0, 3.0, 6.0, 6.0]


def test_a_full_closed_loop_waits_for_the_engine_and_not_for_an_arrival_that_has_no_room():
    world = World(batching="window", batch_window_ms=5_000.0)
    run(world, *(request(str(index)) for index in range(4)), concurrency=2)
    assert [time for _, time in world.ends().values()] == [8.0, 8.0, 16.0, 16.0]


def test_aborts_come_at_their_time_and_the_idle_wait_ends_with_them():
    world = World(batching="window", batch_window_ms=60_000.0)
    run(world, request("a"), request("b", tokens=50), aborts=[(7.0, "a"), (63.0, "b"), (900.0, "nobody")])
    assert world.ends() == {"a": (FinishReason.ABORT, 7.0), "b": (FinishReason.ABORT, 63.0)}


def test_a_run_may_end_with_work_unfinished():
    world = World()
    run(world, request("a", tokens=1000), until=5.0)
    assert world.core.has_work
    assert len(world.computed) == 6
    result = abort_all(world.core, ["a"])
    assert [update.finish and update.finish.reason for update in result.updates] == [FinishReason.ABORT]


def test_nothing_to_do_takes_no_step():
    world = World()
    run(world)
    assert world.computed == []


def test_a_source_may_be_so_many_steps():
    world = World()
    world.core.add_request(request("a", tokens=100))
    drive(world.core, repeat(None, 5), world.clock, world.sink)
    assert world.computed == [True] * 5


def test_work_that_nothing_can_move_is_an_error():
    world = World()

    def held() -> Iterator[None]:
        world.core.add_request(request("held"))
        world.core.pause("held")
        yield from repeat(None)

    with pytest.raises(StuckError, match="waits for nothing"):
        drive(world.core, held(), world.clock, world.sink)


def test_a_source_to_which_anything_may_come_is_waited_for():
    world = World()
    waits: list[float] = []

    class Inbox(VirtualClock):
        def wait_until(self, moment: float) -> None:
            waits.append(moment)

    drive(world.core, repeat(ANY_TIME, 2), Inbox(), world.sink)
    assert waits == [ANY_TIME, ANY_TIME]
