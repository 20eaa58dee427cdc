"""Small workloads and simulated arms for tests: a machine whose step costs are known exactly."""

from typing import Any

from ekiden.config import CacheConfig, Config, SchedulerConfig
from ekiden.engine.simulated import EngineSpeed
from ekiden.engine.step_time import StepCost
from ekiden.evaluation.load.simulated_subject import SimulatedSubject
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.workloads.offer import Kind, Offer, Workload
from ekiden.evaluation.workloads.synthetic import poisson_arrivals
from ekiden.state.runner import ChunkRules, RunnerInfo

SPEED = EngineSpeed(cost=StepCost(0.010, 0.001, 1e-6, 0.0005, 1e-8), gap=0.001)
INFO = RunnerInfo(
    backend="simulated",
    vocab_size=1000,
    max_model_len=512,
    block_size=16,
    num_blocks=256,
    num_swap_blocks=64,
    bytes_per_block=1024,
    chunks=ChunkRules(border=16, least=2),
)
OBJECTIVES = Objectives(ttft=0.5, tpot=0.05)


def config(**scheduler: Any) -> Config:
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 128, "target_itl_ms": 0.0, **scheduler}
    return Config(scheduler=SchedulerConfig(**settings), cache=CacheConfig(block_size=16))


def workload(requests: int = 40, rate: float = 8.0, *, stated: int | None = -1, seed: int = 1) -> Workload:
    """Prompts of 20 to 100 tokens, answers of 2 to 30. ``stated``: the limit of all; -1: each its own length."""
    offers = []
    for number, at in enumerate(poisson_arrivals(requests, rate, seed=seed)):
        length = 2 + (number * 7) % 29
        offers.append(
            Offer(
                id=f"r{number}",
                at=at,
                output_tokens=length,
                max_tokens=length if stated == -1 else stated,
                prompt_tokens=20 + (number * 13) % 81,
                tenant="ab"[number % 2],
            )
        )
    return Workload(
        name="made", kind=Kind.NORMAL, seconds=requests / rate, offers=tuple(offers), made={"seed": seed}, sources={}
    )


def subject(settings: dict[str, Any] | None = None, **options: Any) -> SimulatedSubject:
    return SimulatedSubject(config(**(settings or {})), SPEED, info=INFO, **options)
