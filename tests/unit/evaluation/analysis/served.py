"""Answers and runs made by hand, for figures that are worked out by hand."""

from collections.abc import Sequence
from typing import Any

from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.results import Answered, ArmRun, StepTotals
from ekiden.measure.figures import RequestRecord

OBJECTIVES = Objectives(ttft=1.0, tpot=0.1, price_per_machine_hour=7.2, currency="USD")


def answer(
    number: str, times: Sequence[float] = (), *, at: float = 0.0, failure: str | None = None, **more: Any
) -> Answered:
    """A request that came at ``at`` and whose tokens came at ``times``, one at a time."""
    record = RequestRecord(
        intended=at,
        sent=more.pop("sent", at),
        end=more.pop("end", times[-1] if times else at),
        event_times=list(times),
        output_tokens=len(times),
        failure=failure,
    )
    return Answered(id=number, record=record, **({"prompt_tokens": 10, "output_tokens": len(times)} | more))


def run(results: Sequence[Answered], **more: Any) -> ArmRun:
    """Ten seconds of arrivals, and twelve until the last answer."""
    parts: dict[str, Any] = {
        "arm": "continuous",
        "workload": "chat",
        "block": 0,
        "position": 0,
        "started": 0.0,
        "seconds": 12.0,
        "arrival_seconds": 10.0,
        "workload_digest": "d",
        "results": list(results),
    }
    return ArmRun(**(parts | more))


def steps(**more: Any) -> StepTotals:
    parts: dict[str, Any] = {
        "steps": 10,
        "seconds": 8.0,
        "model_seconds": 6.0,
        "useful_slot_steps": 30,
        "slot_steps": 40,
        "computed_tokens": 100,
        "budget_tokens": 400,
        "used_block_steps": 50,
        "block_steps": 500,
        "preemptions": 2,
        "kv_tokens": 100,
    }
    return StepTotals(**(parts | more))
