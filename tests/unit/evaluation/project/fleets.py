"""A profile of a made machine, for the tests of projections."""

import msgspec

from ekiden.evaluation.project.profile import Accuracy, HardwareProfile, ReplicaModel, StepCosts
from ekiden.evaluation.workloads.offer import Workload
from tests.unit.evaluation.simulated_arms import INFO, SPEED

PROFILE = HardwareProfile(
    version=1,
    name='made "here"',
    measured=True,
    step_cost=StepCosts(**SPEED.cost._asdict()),
    gap=SPEED.gap,
    model=ReplicaModel(
        num_blocks=INFO.num_blocks,
        block_size=INFO.block_size,
        num_swap_blocks=INFO.num_swap_blocks,
        bytes_per_block=INFO.bytes_per_block,
        max_model_len=INFO.max_model_len,
        vocab_size=INFO.vocab_size,
        chunk_border=16,
        least_chunk=2,
    ),
    scheduler={"max_num_seqs": 8, "max_num_batched_tokens": 128, "target_itl_ms": 0.0},
    accuracy=Accuracy(steps=100, median_step_error=0.05, spread=0.1, figures_error=0.04, checked_on="a run"),
    made={"machine": "x86_64", "model": "made"},
)


def twice(workload: Workload) -> Workload:
    """Each request two times, at the same moment."""
    offers = [
        msgspec.structs.replace(offer, id=f"{offer.id}-{copy}") for offer in workload.offers for copy in ("one", "two")
    ]
    return msgspec.structs.replace(workload, offers=tuple(offers))
