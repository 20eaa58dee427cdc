"""What the shadow tells: how requests fared as recorded, as production is simulated, and as the candidate is."""

from collections.abc import Sequence
from typing import Final

import msgspec

from ekiden.measure.figures import time_per_output_token
from ekiden.measure.percentiles import percentiles
from ekiden.release.plan import Objectives

_LATENCIES: Final = ("ttft_p50", "ttft_p99", "e2e_p50", "e2e_p99")


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """One request: seconds to the first token and to the end, its tokens; None for the times of a refused one."""

    first: float | None
    e2e: float | None
    tokens: int = 0

    def missed(self, objectives: Objectives) -> bool:
        if self.first is None or self.e2e is None:
            return True
        each = time_per_output_token(self.first, self.e2e, self.tokens)
        return self.first > objectives.ttft or (each or 0.0) > objectives.tpot


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """Over the requests of the window that have ended in all three: as recorded, as production is simulated, and as
    the candidate is. Seconds; None without a value."""

    slo_missed_share: float | None = None
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    e2e_p50: float | None = None
    e2e_p99: float | None = None


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    requests: int
    recorded: Predicted
    production: Predicted
    candidate: Predicted
    error: float | None
    """The largest relative difference between the latencies of ``production`` and ``recorded``."""
    missed_error: float | None
    """``slo_missed_share`` of ``production`` - that of ``recorded``."""
    step_error: float
    """Median relative error of the step-time model over the steps that it was fitted to."""
    unknown_lengths: int
    seconds: float
    """Of production that were simulated, all in all."""
    behind_seconds: float
    """How far it is behind where it could be."""
    skipped_seconds: float
    cpu_seconds: float
    cpu_share: float
    """Of one core, since it began."""


def predicted(outcomes: Sequence[Outcome], objectives: Objectives) -> Predicted:
    """The figures of so many requests."""
    if not outcomes:
        return Predicted()
    found: dict[str, float] = {"slo_missed_share": sum(each.missed(objectives) for each in outcomes) / len(outcomes)}
    for name, values in (
        ("ttft", [each.first for each in outcomes if each.first is not None]),
        ("e2e", [each.e2e for each in outcomes if each.e2e is not None]),
    ):
        if values:
            found[f"{name}_p50"], found[f"{name}_p99"] = percentiles(values, (50, 99))
    return Predicted(**found)


def latency_error(simulated: Predicted, recorded: Predicted) -> float | None:
    """The largest relative difference between their latencies; None where there are none."""
    pairs = [(getattr(simulated, name), getattr(recorded, name)) for name in _LATENCIES]
    return max((abs(new - old) / old for new, old in pairs if new is not None and old), default=None)
