"""What can be configured exists, and what exists can be configured."""

from ekiden.config import BATCHING, ORDERS, Config, LimitsConfig, SchedulerConfig, controls_of
from ekiden.policies import batching, ordering
from ekiden.policies.fairness import FairQueue
from ekiden.state.controls import Controls


def test_each_batching_policy_that_can_be_configured_is_one_class_of_its_own():
    made = {name: batching.batching_policy(controls(batching=name)) for name in BATCHING}
    assert len({type(policy) for policy in made.values()}) == len(BATCHING)


def test_each_order_that_can_be_configured_has_a_queue():
    for order in ORDERS:
        queue = ordering.make_waiting_queue(controls(scheduling_policy=order))
        assert len(queue) == 0
        assert isinstance(queue, FairQueue) == (order == "fair")


def test_a_control_starts_with_the_value_of_its_setting():
    scheduler = SchedulerConfig(max_num_seqs=7, target_itl_ms=12.0)
    limits = LimitsConfig(max_num_queued_reqs=3, max_num_queued_tokens=4, max_queue_seconds=5.0)
    made = controls_of(Config(scheduler=scheduler, limits=limits))
    settings = set(SchedulerConfig.__dataclass_fields__) | set(LimitsConfig.__dataclass_fields__)
    assert set(Controls.__struct_fields__) - settings == {"tenants", "draining", "epoch"}
    for name in settings & set(Controls.__struct_fields__):
        assert getattr(made, name) == getattr(scheduler if hasattr(scheduler, name) else limits, name), name


def controls(**scheduler: str) -> Controls:
    return controls_of(Config(scheduler=SchedulerConfig(**scheduler)))  # type: ignore[arg-type]  # only names here
