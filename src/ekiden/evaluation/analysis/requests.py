"""What single requests gave: whether an answer was good, what was wrong with it, and its latencies.

Every figure of the report stands on these few functions, so a figure and a list of its worst cases cannot disagree.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import log

from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.results import Answered, ArmRun

LATE_FIRST_TOKEN = "late_first_token"
LATE_TOKENS = "late_tokens"
EMPTY = "empty"
ENGLISH = "en"


def good(result: Answered, objectives: Objectives) -> bool:
    return result.record.meets(objectives.ttft, objectives.tpot)


def num_good(run: ArmRun, objectives: Objectives) -> int:
    return sum(good(result, objectives) for result in run.results)


def whole(result: Answered) -> bool:
    return result.record.failure is None


def fault(result: Answered, objectives: Objectives) -> str | None:
    """Why an answer is not good, as a short kind; None for a good one. What came late counts once, by the first
    objective that it missed."""
    record = result.record
    if good(result, objectives):
        return None
    if record.failure is not None:
        return record.failure
    if record.ttft is None:
        return EMPTY
    return LATE_FIRST_TOKEN if record.ttft > objectives.ttft else LATE_TOKENS


def faults(results: Iterable[Answered], objectives: Objectives) -> dict[str, int]:
    """How many requests were not good, by kind; the counts and the good ones make up all that were offered."""
    counts = Counter(kind for result in results if (kind := fault(result, objectives)) is not None)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def slowdown(result: Answered) -> float | None:
    e2e, alone = result.record.e2e, result.slowest_alone
    return e2e / alone if e2e is not None and alone is not None and alone > 0 else None


def largest_gap(result: Answered) -> float | None:
    return max(result.record.gaps, default=None)


LATENCIES: dict[str, Callable[[Answered], Sequence[float | None]]] = {
    "ttft": lambda result: (result.record.ttft,),
    "tpot": lambda result: (result.record.tpot,),
    "itl": lambda result: result.record.gaps,
    "largest_gap": lambda result: (largest_gap(result),),
    "e2e": lambda result: (result.record.e2e,),
    "slowdown": lambda result: (slowdown(result),),
}
"""The values that one whole answer has of each distribution. Seconds; a slowdown is a ratio."""


def values(results: Iterable[Answered], name: str) -> list[float]:
    """All values of a distribution over the whole answers. ``send_lag`` is over all requests that were sent."""
    if name == "send_lag":
        return [result.record.sent - result.record.intended for result in results if result.record.sent]
    of_one = LATENCIES[name]
    return [value for result in results if whole(result) for value in of_one(result) if value is not None]


def language_pairs(results: Iterable[Answered]) -> list[tuple[Answered, Answered]]:
    """The same task in English and in another language, both answered whole; English first."""
    of_task: dict[str, dict[str, Answered]] = {}
    for result in results:
        if result.pair and result.language and whole(result):
            of_task.setdefault(result.pair, {}).setdefault(result.language, result)
    return [
        (of_language[ENGLISH], other)
        for of_language in of_task.values()
        if ENGLISH in of_language
        for language, other in of_language.items()
        if language != ENGLISH
    ]


def language_log_ratios(results: Iterable[Answered], latency: str = "e2e") -> list[float]:
    """ln(the other language / English) of a latency for each pair that has it."""
    found = []
    for english, other in language_pairs(results):
        (base,), (value,) = LATENCIES[latency](english), LATENCIES[latency](other)
        if base and value:
            found.append(log(value / base))
    return found


def counting(runs: Iterable[ArmRun]) -> list[ArmRun]:
    """The runs that count: those that are not void."""
    return [run for run in runs if run.void is None]


def by_arm_and_workload(runs: Iterable[ArmRun]) -> dict[tuple[str, str], list[ArmRun]]:
    """The runs that count, in the order in which arms and workloads first appear."""
    found: dict[tuple[str, str], list[ArmRun]] = {}
    for run in counting(runs):
        found.setdefault((run.arm, run.workload), []).append(run)
    return found
