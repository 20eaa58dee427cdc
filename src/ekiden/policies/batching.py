"""When waiting requests may join: the batching policies, from the naive baselines to continuous batching.

All of them run on the same engine; only the answer to "how many may join now" differs.

- `continuous`: refill at every step; a slot that frees is taken by the next waiting request.
- `static`: admit up to ``max_num_seqs`` at once, then nobody until the slowest of them has ended. The row of a finished
  sequence costs no compute but its slot stays empty.
- `static-padded`: static, and finished rows are still computed, as a naive padded batch does (`padding.py`).
- `window`: static, but a batch starts only when it is full or its oldest request has waited for the window.
- `sequential`: one request at a time.
"""

from ekiden.state.controls import Controls
from ekiden.state.population import Population


def admission_limit(controls: Controls, population: Population, now: float) -> int:
    """How many waiting requests the policy in force lets join now; free slots and memory limit them too."""
    most = population.max_num_seqs
    if controls.batching == "continuous":
        return most - population.num_in_batch
    if population.num_in_batch:
        return 0
    match controls.batching:
        case "sequential":
            return 1
        case "window":
            full, start = population.queue_size.requests >= most, next_change(controls, population)
            return most if full or (start is not None and now >= start) else 0
        case _:
            return most


def next_change(controls: Controls, population: Population) -> float | None:
    """When :func:`admission_limit` may change without any arrival or departure; None for never."""
    oldest = population.oldest_arrival
    if controls.batching != "window" or population.num_in_batch or oldest is None:
        return None
    return oldest + controls.batch_window_ms / 1000
