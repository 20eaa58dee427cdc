"""What can be configured exists, and what exists can be configured."""

from types import SimpleNamespace
from typing import Any

from ekiden.config import BATCHING, ORDERS, Config, LimitsConfig, SchedulerConfig, controls_of
from ekiden.policies import batching, ordering
from ekiden.policies.fairness import FairQueue
from ekiden.state.controls import Controls
from ekiden.state.population import QueueSize


def test_each_batching_policy_that_can_be_configured_lets_in_as_many_as_it_should():
    """Of one that waits since 0: into an empty batch of four slots at once and later, and into a batch of one."""
    limits = {
        name: tuple(
            batching.admission_limit(controls(batching=name), population(in_batch), now)
            for in_batch, now in ((0, 0.0), (0, 60.0), (1, 60.0))
        )
        for name in BATCHING
    }
    assert limits == {
        "continuous": (4, 4, 3),
        "static": (4, 4, 0),
        "static-padded": (4, 4, 0),
        "window": (0, 4, 0),
        "sequential": (1, 1, 0),
    }


def population(in_batch: int) -> Any:
    return SimpleNamespace(max_num_seqs=4, num_in_batch=in_batch, oldest_arrival=0.0, queue_size=QueueSize(1, 3))


def test_each_order_that_can_be_configured_has_a_queue():
    for order in ORDERS:
        queue = ordering.make_waiting_queue(controls(scheduling_policy=order))
        assert queue.first(1) == []
        assert isinstance(queue, FairQueue) == (order == "fair")


def test_a_control_starts_with_the_value_of_its_setting():
    scheduler = SchedulerConfig(max_num_seqs=7, target_itl_ms=12.0)
    limits = LimitsConfig(max_num_queued_reqs=3, max_num_queued_tokens=4, max_queue_seconds=5.0)
    made = controls_of(Config(scheduler=scheduler, limits=limits))
    settings = set(SchedulerConfig.__dataclass_fields__) | set(LimitsConfig.__dataclass_fields__)
    assert set(Controls.__struct_fields__) - settings == {"tenants", "draining", "guard", "release", "epoch"}
    for name in settings & set(Controls.__struct_fields__):
        assert getattr(made, name) == getattr(scheduler if hasattr(scheduler, name) else limits, name), name


def controls(**scheduler: str) -> Controls:
    return controls_of(Config(scheduler=SchedulerConfig(**scheduler)))  # type: ignore[arg-type]  # only names here
