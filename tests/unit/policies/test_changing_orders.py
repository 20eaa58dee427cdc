"""A waiting queue that moves to another order: nobody is lost, doubled or reordered, and service is remembered."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ekiden.config import ORDERS, Config, SchedulerConfig, controls_of
from ekiden.policies.ordering import make_waiting_queue
from ekiden.state.controls import Controls, TenantLimits
from ekiden.state.policy import ServiceCounters
from ekiden.state.population import Population
from ekiden.state.request import Request
from ekiden.state.sampling_params import SamplingParams
from ekiden.state.sequence import Sequence

TENANTS = {"b": TenantLimits(weight=2.0)}


def controls(order: str, ageing: float = 30.0) -> Controls:
    return controls_of(
        Config(scheduler=SchedulerConfig(scheduling_policy=order, ageing_seconds=ageing), tenants=TENANTS)
    )


def waiting(number: int, arrival: int, priority: int, tenant: str, deadline: int | None) -> Sequence:
    request = Request(
        request_id=f"r{number}",
        prompt_token_ids=(1,) * (1 + number % 3),
        sampling=SamplingParams(),
        arrival_time=float(arrival),
        priority=priority,
        tenant=tenant,
        deadline=None if deadline is None else float(deadline),
    )
    prompt = list(request.prompt_token_ids)
    return Sequence(
        request=request, seed=0, token_ids=prompt, num_prompt_tokens=len(prompt), max_total_tokens=99,
        stop_token_ids=frozenset(),
    )  # fmt: skip


def enqueue(population: Population, sequence: Sequence) -> None:
    population.by_id[sequence.request_id] = sequence
    population.enqueue(sequence)
    population.watch_deadline(sequence)


def in_order(population: Population) -> list[str]:
    return [s.request_id for s in population.waiting.first(1000)]


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(-1, 1), st.sampled_from("abc"), st.one_of(st.none(), st.sampled_from([5, 50]))
    ),
    max_size=14,
)
MOVES = st.lists(st.sampled_from(ORDERS), min_size=1, max_size=5)


@given(requests=REQUESTS, moves=MOVES, removed=st.sets(st.integers(0, 13)), late=REQUESTS)
@settings(max_examples=300, deadline=None)
def test_the_order_is_that_of_a_queue_that_had_it_from_the_start(requests, moves, removed, late) -> None:
    """Few arrival times and priorities, so that many are equal: equals stay in the order in which they came."""
    moved = Population(make_waiting_queue(controls("fcfs")), 4)
    plain = Population(make_waiting_queue(controls(moves[-1])), 4)
    for number, drawn in enumerate(requests):
        for population in (moved, plain):
            enqueue(population, waiting(number, *drawn))
    for number in removed & set(range(len(requests))):
        for population in (moved, plain):
            population.dequeue(population.by_id.pop(f"r{number}"))
    tokens, oldest = moved.queue_size.tokens, moved.oldest_arrival
    for order in moves:
        moved.reorder(make_waiting_queue(controls(order), moved.waiting.counters()))
        moved.check_integrity()
        assert sorted(moved.queued) == sorted(plain.queued)
        assert (moved.queue_size.tokens, moved.oldest_arrival) == (tokens, oldest)
    assert in_order(moved) == in_order(plain)
    for number, drawn in enumerate(late, len(requests)):
        for population in (moved, plain):
            enqueue(population, waiting(number, *drawn))
    assert in_order(moved) == in_order(plain)
    assert {t: moved.queue_size_of(t) for t in "abc"} == {t: plain.queue_size_of(t) for t in "abc"}
    assert moved.next_deadline == plain.next_deadline


def test_service_under_fair_is_remembered_through_other_orders() -> None:
    queue = make_waiting_queue(controls("fair"))
    first = [waiting(number, 0, 0, tenant, None) for number, tenant in enumerate("aabb")]
    for sequence in first:
        queue.push(sequence)
    queue.charge(first[0], output=50)
    counters = queue.counters()
    assert counters.by_tenant == {"a": 100.0, "b": 0.0}
    for order in ("fcfs", "priority", "fair"):
        queue = make_waiting_queue(controls(order), queue.counters())
        queue.take_over(first)
        assert queue.counters() == counters
    assert [s.request.tenant for s in queue.first(4)] == ["b", "b", "a", "a"]


def test_a_tenant_that_was_idle_while_fair_was_away_gets_no_credit() -> None:
    away = ServiceCounters({"idle": 5.0, "busy": 900.0, "other": 800.0}, floor=800.0)
    queue = make_waiting_queue(controls("fair"), away)
    queue.take_over([waiting(number, 0, 0, tenant, None) for number, tenant in enumerate(["busy", "idle", "new"])])
    assert queue.counters().by_tenant == {"idle": 800.0, "busy": 900.0, "other": 800.0, "new": 800.0}


def test_slots_grow_and_shrink_around_those_that_hold_one() -> None:
    population = Population(make_waiting_queue(controls("fcfs")), 3)
    held = [waiting(number, 0, 0, "a", None) for number in range(3)]
    for sequence in held:
        sequence.slot = population.take_slot()
    population.resize(1)
    assert (population.num_in_batch, population.num_free_slots) == (3, 0)
    population.free_slot(held[0])
    population.free_slot(held[1])
    assert (population.num_in_batch, population.num_free_slots) == (1, 0)
    population.resize(5)
    assert population.num_free_slots == 4
    assert [population.take_slot() for _ in range(4)] == [0, 1, 3, 4]
    assert population.num_free_slots == 0
