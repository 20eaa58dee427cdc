"""When waiting requests may join: the batching policies, from the naive baselines to continuous batching.

All of them run on the same engine; only the answer to "how many may join now" differs, and each is a function that
gives it. The rows that `static-padded` keeps computing are the business of `padding.py`.
"""

from collections.abc import Callable

from ekiden.config import BATCHING
from ekiden.state.controls import Controls
from ekiden.state.population import Population


def admission_limit(controls: Controls, population: Population, now: float) -> int:
    """How many waiting requests the policy in force lets join now; free slots and memory limit them too."""
    return _POLICIES[controls.batching](controls, population, now)


def next_change(controls: Controls, population: Population) -> float | None:
    """When :func:`admission_limit` may change without any arrival or departure; None for never."""
    oldest = population.oldest_arrival
    if controls.batching != "window" or population.num_in_batch or oldest is None:
        return None
    return oldest + controls.batch_window_ms / 1000


def _continuous(controls: Controls, population: Population, now: float) -> int:
    """Refill at every step: a slot that frees is taken by the next waiting request."""
    return population.max_num_seqs - population.num_in_batch


def _static(controls: Controls, population: Population, now: float) -> int:
    """Admit up to ``max_num_seqs`` at once, then nobody until the slowest of them has ended.

    The row of a finished sequence costs no compute but its slot stays empty.
    """
    return 0 if population.num_in_batch else population.max_num_seqs


def _window(controls: Controls, population: Population, now: float) -> int:
    """Static, but a batch starts only when it is full or its oldest request has waited for the window."""
    start, full = next_change(controls, population), population.queue_size.requests >= population.max_num_seqs
    return population.max_num_seqs if start is not None and (full or now >= start) else 0


def _sequential(controls: Controls, population: Population, now: float) -> int:
    """One request at a time."""
    return 0 if population.num_in_batch else 1


_POLICIES: dict[str, Callable[[Controls, Population, float], int]] = {
    "continuous": _continuous,
    "static": _static,
    "static-padded": _static,
    "window": _window,
    "sequential": _sequential,
}
assert _POLICIES.keys() == set(BATCHING), "the policies of config/engine.py are not those that are made here"
