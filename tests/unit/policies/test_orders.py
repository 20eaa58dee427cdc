"""Orders keep their promises: overtaking is bounded, service is shared, and nobody who waits is forgotten."""

from collections import defaultdict
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekiden.backends.fake import FakeRunner
from ekiden.config import CacheConfig, Config, SchedulerConfig, controls_of
from ekiden.engine.engine_core import EngineCore
from ekiden.state.controls import TenantLimits
from ekiden.state.request import Request
from ekiden.state.sampling_params import SamplingParams
from tests.steps import StepView, StepWatcher

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0


class Recorder(StepWatcher):
    """Order of admission, and how it looked after each step."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.after_step: Callable[[StepView], None] = lambda view: None

    def on_step(self, view: StepView) -> None:
        for sequence in view.formed.sequences:
            if sequence.request_id not in self.order:
                self.order.append(sequence.request_id)
        self.after_step(view)


def make_core(
    recorder: Recorder, *, order: str, max_num_seqs: int = 1, num_blocks: int = 64,
    tenants: dict[str, TenantLimits] | None = None, max_overtakes: int = 16,
) -> EngineCore:  # fmt: skip
    now = iter(range(10**9))
    return EngineCore(
        runner=FakeRunner(vocab_size=50, num_blocks=num_blocks, block_size=4, max_model_len=512, num_swap_blocks=500),
        controls=controls_of(
            Config(
                scheduler=SchedulerConfig(
                    max_num_seqs=max_num_seqs,
                    max_num_batched_tokens=512,
                    scheduling_policy=order,
                    max_overtakes=max_overtakes,
                    ageing_seconds=10.0,
                    default_deadline_seconds=100.0,
                ),
                cache=CacheConfig(block_size=4, enable_prefix_caching=False),
                tenants=tenants or {},
            )
        ),
        cache=CacheConfig(block_size=4, enable_prefix_caching=False),
        clock=lambda: next(now) * 0.001,
        recorder=recorder,
    )


def make_request(
    name: str, *, arrival: float = 0.0, priority: int = 0, tenant: str = "t", prompt: int = 4, output: int = 2,
    deadline: float | None = None,
) -> Request:  # fmt: skip
    return Request(
        request_id=name,
        prompt_token_ids=tuple(index % 50 for index in range(prompt)),
        sampling=SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True),
        arrival_time=arrival,
        priority=priority,
        tenant=tenant,
        deadline=deadline,
    )


def order_of(requests: list[Request], order: str) -> list[str]:
    recorder = Recorder()
    core = make_core(recorder, order=order)
    for request in requests:
        core.add_request(request)
    while core.has_work:
        core.step()
        core.check_integrity()
    return recorder.order


def test_fcfs_is_the_order_of_arrival() -> None:
    requests = [make_request(f"r{i}", arrival=i * 0.1, priority=-i) for i in range(6)]
    assert order_of(requests, "fcfs") == [f"r{i}" for i in range(6)]


@given(st.lists(st.tuples(st.integers(-3, 3), st.floats(0, 60)), min_size=2, max_size=8))
@settings(deadline=None, max_examples=60)
def test_priority_is_overtaken_only_within_the_stated_bound(drawn: list[tuple[int, float]]) -> None:
    requests = [make_request(f"r{i}", priority=p, arrival=a) for i, (p, a) in enumerate(drawn)]
    place = {name: index for index, name in enumerate(order_of(requests, "priority"))}
    for early in requests:
        for late in requests:
            if place[late.request_id] < place[early.request_id] and late.arrival_time > early.arrival_time:
                levels = early.priority - late.priority
                assert late.arrival_time - early.arrival_time <= levels * 10.0 + 1e-9


def test_earliest_deadline_goes_first_and_none_counts_as_a_late_one() -> None:
    requests = [
        make_request("none", arrival=0.0),
        make_request("late", arrival=1.0, deadline=500.0),
        make_request("soon", arrival=2.0, deadline=50.0),
    ]
    assert order_of(requests, "deadline") == ["soon", "none", "late"]


def test_an_expired_request_ends_before_its_prefill() -> None:
    recorder = Recorder()
    core = make_core(recorder, order="deadline")
    core.add_request(make_request("long", output=50))
    core.step()
    core.add_request(make_request("expires", deadline=0.02))
    while core.has_work:
        core.step()
    assert recorder.order == ["long"]
    assert core.stats().finished_total == {"length": 1, "deadline": 1}


@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=2, max_size=6),
    max_num_seqs=st.sampled_from([1, 3, 8]),
    weight=st.sampled_from([1.0, 2.0, 3.5]),
)
@settings(deadline=None, max_examples=40)
def test_service_of_backlogged_tenants_differs_by_at_most_the_bound(
    lengths: list[tuple[int, int]], max_num_seqs: int, weight: float
) -> None:
    """EVALUATION's bound: 2 * max(w_p * L_input, w_q * M), over weighted service, at every step."""
    recorder = Recorder()
    blocks = 64
    core = make_core(
        recorder,
        order="fair",
        max_num_seqs=max_num_seqs,
        num_blocks=blocks,
        tenants={"a": TenantLimits(weight=weight)},
    )
    for index in range(30):
        prompt, output = lengths[index % len(lengths)]
        core.add_request(make_request(f"a{index}", tenant="a", prompt=prompt, output=output))
        core.add_request(make_request(f"b{index}", tenant="b", prompt=1 + prompt // 3, output=output))
    service: defaultdict[str, float] = defaultdict(float)
    looks = 0
    bound = 2 * max(PROMPT_WEIGHT * max(p for p, _ in lengths), OUTPUT_WEIGHT * blocks * 4) / 1.0

    def count(view: StepView) -> None:
        nonlocal looks
        waiting = {s.request.tenant for s in core.population.queued.values()}
        for sequence in view.formed.sequences:
            if sequence.num_output_tokens == 1:
                service[sequence.request.tenant] += PROMPT_WEIGHT * sequence.num_prompt_tokens
        for update in view.updates:
            service[update.request_id[0]] += OUTPUT_WEIGHT * len(update.token_ids)
        if waiting == {"a", "b"}:
            looks += 1
            assert abs(service["a"] / weight - service["b"]) <= bound

    recorder.after_step = count
    while core.has_work:
        core.step()
    assert looks, "both tenants never waited at once"


def test_only_tenants_that_are_not_ahead_pass_a_request_that_does_not_fit() -> None:
    recorder = Recorder()
    core = make_core(recorder, order="fair", max_num_seqs=8, num_blocks=20)
    core.add_request(make_request("a long", tenant="a", prompt=40, output=30))
    core.step()
    core.add_request(make_request("b first", tenant="b", prompt=4, output=2))
    for _ in range(10):
        core.step()  # "a" goes on and gets ahead
    core.add_request(make_request("b large", tenant="b", prompt=60, output=2))
    core.add_request(make_request("a small", tenant="a", prompt=4, output=2))
    core.add_request(make_request("b small", tenant="b", prompt=4, output=2))
    core.step()
    assert recorder.order == ["a long", "b first", "b small"], "its own tenant's, and not the one that is ahead"
    while core.has_work:
        core.step()
    assert recorder.order[3:] == ["b large", "a small"]


def test_idle_time_cannot_be_saved_up() -> None:
    recorder = Recorder()
    core = make_core(recorder, order="fair")
    for index in range(20):
        core.add_request(make_request(f"a{index}", tenant="a"))
    for _ in range(15):
        core.step()
    served = len(recorder.order)
    for index in range(20):
        core.add_request(make_request(f"b{index}", tenant="b"))
    while core.has_work:
        core.step()
    after = [name[0] for name in recorder.order[served + 1 :]][:10]
    assert 4 <= after.count("a") <= 6, "the newcomer took the server for itself"


@pytest.mark.parametrize("max_overtakes", [0, 1, 3])
def test_a_large_request_is_passed_a_bounded_number_of_times(max_overtakes: int) -> None:
    recorder = Recorder()
    core = make_core(recorder, order="fcfs", max_num_seqs=8, num_blocks=20, max_overtakes=max_overtakes)
    core.add_request(make_request("first", prompt=40, output=8))
    core.add_request(make_request("large", prompt=60, output=2))
    for index in range(10):
        core.add_request(make_request(f"small{index}", prompt=2, output=2))
    while core.has_work:
        core.step()
        core.check_integrity()
    passed = recorder.order.index("large") - 1
    assert passed <= max_overtakes
    if max_overtakes:
        assert passed > 0, "nobody used the room that the large one could not"


def test_a_request_that_can_never_fit_is_refused_and_blocks_nobody() -> None:
    recorder = Recorder()
    core = make_core(recorder, order="fcfs", max_num_seqs=4, num_blocks=10)
    core.add_request(make_request("impossible", prompt=41))
    core.add_request(make_request("too much with its output", prompt=32, output=64))
    core.add_request(make_request("small"))
    while core.has_work:
        core.step()
    assert recorder.order == ["small"]
    assert core.stats().refused_total == {"exceeds_kv_cache": 2}
