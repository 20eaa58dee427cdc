"""Whom the figures are told apart for: tenants, languages, priorities, and lengths of prompts and of answers.

The subgroups of one kind hold every request of the whole exactly once, so their counts and rates add up to it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from ekiden.evaluation.results import Answered, ArmRun

MOST_TENANTS: Final = 12
"""Tenants that are shown by themselves, those with the most requests; all others are one subgroup."""
OTHERS: Final = "(others)"
LEAST_BUCKET: Final = 16
BUCKET_FACTOR: Final = 4

Group = tuple[int, str]
"""A place in the order of subgroups and a name."""


def subgroups(runs: Sequence[ArmRun]) -> dict[str, list[ArmRun]]:
    """The runs of one workload by the name of a subgroup, such as ``tenant=c143`` or ``prompt_tokens=17-64``.

    Each run holds that subgroup's results only, perhaps none. Of a kind that tells nothing apart there are none.
    """
    results = [result for run in runs for result in run.results]
    found: dict[str, list[ArmRun]] = {}
    for kind, group_of in _kinds(results).items():
        groups = sorted({group_of(result) for result in results})
        if len(groups) > 1:
            found |= {f"{kind}={group[1]}": [_only(run, group_of, group) for run in runs] for group in groups}
    return found


def most_requests(results: Iterable[Answered]) -> list[str]:
    """The tenants with the most requests, the largest first."""
    counts = Counter(result.tenant for result in results)
    return sorted(counts, key=lambda tenant: (-counts[tenant], tenant))[:MOST_TENANTS]


def bucket(tokens: int) -> Group:
    """The bucket that a length lies in, by its least length and as a range: 0-16, 17-64, 65-256, 257-1024, ..."""
    low, high = 0, LEAST_BUCKET
    while tokens > high:
        low, high = high + 1, high * BUCKET_FACTOR
    return low, f"{low}-{high}"


def _kinds(results: Sequence[Answered]) -> dict[str, Callable[[Answered], Group]]:
    shown = {tenant: (0, tenant) for tenant in most_requests(results)}
    return {
        "tenant": lambda result: shown.get(result.tenant, (1, OTHERS)),
        "language": lambda result: (0, result.language or "unknown"),
        "priority": lambda result: (result.priority, str(result.priority)),
        "prompt_tokens": lambda result: bucket(result.prompt_tokens),
        "output_tokens": lambda result: bucket(result.output_tokens),
    }


def _only(run: ArmRun, group_of: Callable[[Answered], Group], group: Group) -> ArmRun:
    """A run with one subgroup's results. Steps, processor time and energy belong to no subgroup."""
    return msgspec.structs.replace(
        run,
        results=[result for result in run.results if group_of(result) == group],
        steps=None,
        cpu_seconds=None,
        joules=None,
    )
