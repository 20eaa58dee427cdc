"""Arms in turns: forward, then backward, so that a machine that drifts favours none. An arm that fails ends alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Final

from ekiden.errors import UserError
from ekiden.measure.figures import Figures
from ekiden.measure.percentiles import median

Run = Callable[[int], Figures]
"""One run with the prompts of that number: the same number gives every arm the same prompts."""
WARM_UP: Final = -1
"""The number of the run before the first, which is short and counts for nothing."""


@dataclass(slots=True)
class Turns:
    """The figures of each arm, one for each pass, and why an arm ended before the last."""

    passes: dict[str, list[Figures]]
    failures: dict[str, str] = field(default_factory=dict)


def in_turns(runs: Mapping[str, Run], *, rounds: int, on_run: Callable[[], None] = lambda: None) -> Turns:
    """A warm-up, then ``rounds`` times all arms forward and backward.

    The first arm is ours, and its failure is raised; another that fails has no figures.
    """
    found = Turns({name: [] for name in runs})
    names = list(runs)
    for number in range(WARM_UP, 2 * rounds):
        for name in names[:: -1 if number % 2 else 1]:
            if name not in found.failures:
                try:
                    found.passes[name].append(runs[name](number))
                except UserError as error:
                    if name == names[0]:
                        raise
                    found.failures[name] = str(error)
                    found.passes.pop(name)
            on_run()
    for passes in found.passes.values():
        passes.pop(0)
    return found


def spread(values: Sequence[float]) -> Figures:
    """The median of the passes, and their range."""
    return {"median": median(values), "min": min(values), "max": max(values), "passes": len(values)}


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Figures | None:
    """Ours / theirs within each pass: the geometric mean, and the range; None where a figure is 0."""
    if min(*ours, *theirs) <= 0:
        return None
    found = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {"mean": geometric_mean(found), "min": min(found), "max": max(found)}
