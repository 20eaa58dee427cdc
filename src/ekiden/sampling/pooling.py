"""One vector of a prompt's hidden states: sums that do not depend on how the prompt was cut, and what is made of them.

States are added one by one, in the order of their positions, in 64-bit floats. Rounding depends on that order alone, so
a sum has the same bits whatever the chunks and passes were, as long as the states have.
"""

import msgspec
import numpy as np

from ekiden.sampling.reduction import FloatMatrix
from ekiden.state.plan import RowResult


def add_states(before: bytes, states: FloatMatrix) -> bytes:
    """The sum ``before`` with the rows of ``states`` ``[positions, hidden]`` added; an empty ``before`` is nothing."""
    total = np.frombuffer(before, np.float64).copy() if before else np.zeros(states.shape[-1], np.float64)
    for state in states:
        total += state
    return total.tobytes()


def with_state_sum(result: RowResult, total: bytes) -> RowResult:
    """A row's result with the sum of its states; an error where that is not of numbers."""
    if np.isfinite(np.frombuffer(total, np.float64)).all():
        return msgspec.structs.replace(result, state_sum=total)
    return RowResult(error=result.error or "the model gave hidden states that are not numbers")


def mean_state(total: bytes, count: int) -> bytes:
    """The mean of ``count`` summed states, as 32-bit floats, lowest byte first."""
    return (np.frombuffer(total, np.float64) / count).astype("<f4").tobytes()
