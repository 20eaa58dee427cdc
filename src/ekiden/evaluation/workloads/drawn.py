"""Arrival times and lengths drawn by seed, with their means held exactly rather than on average.

A block has few requests, so that a mean left to chance would differ from block to block by more than what is compared.
"""

import random
from statistics import fmean, pstdev

from ekiden.evaluation.workloads.source import Ask, Option

ARRIVALS = ("poisson", "gamma", "even", "together")


def arrival_options(kind: str, *, cv: float = 1.0) -> tuple[Option, ...]:
    """The options that :func:`arrivals` reads, with this source's defaults."""
    return (
        Option(
            name="arrivals",
            default=kind,
            choices=ARRIVALS,
            meaning="poisson; gamma, with arrival_cv; even; or together, a group at a time with even pauses",
        ),
        Option(
            name="arrival_cv",
            default=cv,
            least=0.05,
            most=20,
            meaning="coefficient of variation of the gaps of gamma arrivals: 1 is Poisson, more is bursty",
        ),
        Option(name="group", default=8, least=1, meaning="requests that come together"),
    )


def arrivals(ask: Ask) -> list[float]:
    """``ask.count`` times in [0, seconds), rising.

    Drawn gaps are scaled so that they fill the time exactly, which for Poisson arrivals is the same as saying how many
    come: the mean rate is then the one asked for in every block.
    """
    count, seconds, kind = ask.count, ask.seconds, ask.options["arrivals"]
    if kind == "even":
        return [round(index * seconds / count, 6) for index in range(count)]
    if kind == "together":
        group = min(ask.options["group"], count)
        groups = -(-count // group)
        return [round(index // group * seconds / groups, 6) for index in range(count)]
    cv = 1.0 if kind == "poisson" else ask.options["arrival_cv"]
    chance, shape = ask.chance("arrivals"), 1.0 / cv**2
    # One gap more than there are requests: the last request need not come at the very end.
    gaps = [chance.gammavariate(shape, 1.0) for _ in range(count + 1)]
    scale, due, times = seconds / sum(gaps), 0.0, []
    for gap in gaps[:-1]:
        due += gap * scale
        times.append(min(round(due, 6), seconds))
    return times


DRAWS = 16


def lengths(count: int, mean: float, cv: float, chance: random.Random) -> list[int]:
    """``count`` whole lengths of at least 1 from a gamma distribution.

    Their sum is ``count * mean`` to within one where the mean is 1 or more. Of :data:`DRAWS` draws the one whose
    coefficient of variation is nearest to ``cv`` is taken; with ``cv`` 0 all are the same, which is the mean rounded.
    """
    if cv == 0:
        return [max(1, round(mean))] * count
    draws = [[chance.gammavariate(1.0 / cv**2, 1.0) for _ in range(count)] for _ in range(DRAWS)]
    values = min(draws, key=lambda draw: abs(pstdev(draw) / fmean(draw) - cv))
    scale = mean / fmean(values)
    owed, whole = 0.0, []
    for value in values:
        owed += value * scale
        whole.append(max(1, round(owed)))  # what rounding takes from one is given to the next
        owed -= whole[-1]
    _settle(whole, round(mean * count))
    return whole


def _settle(values: list[int], total: int) -> None:
    """Take what lengths of at least 1 put on top from the longest, a token at a time."""
    for _ in range(max(0, sum(values) - total)):
        longest = max(range(len(values)), key=values.__getitem__)
        if values[longest] == 1:
            return
        values[longest] -= 1
