"""What holds between any two steps, by name, and the error that says which of them was broken.

Owners of state assert their part in `check_integrity`; the simulation in tests/simulation checks the rest from outside.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum


class Invariant(Enum):
    BLOCKS = "each block is free, cached or referenced, and its reference count equals the block tables that name it"
    PLACES = "each sequence is in exactly one container, which agrees with its status"
    ONE_END = "each request has exactly one terminal event, and nothing after it"
    BUDGET = "scheduled tokens and rows stay within their limits, and memory suffices for every plan made"
    PROGRESS = "unfinished work is scheduled or waits for something named; nobody is overtaken or kept without bound"
    WORK_CONSERVATION = "under continuous batching the first in line waits only while it does not fit"
    GIVEN_BACK = "whatever ends gives back its blocks and its slot, and a rejected draft its block"
    SAME_TOKENS = "a request's tokens depend on its prompt and settings alone, so prompts are cut at block borders only"
    CONTAINED = "what goes wrong in the work for one request ends that request, without a token, and no other"
    RIGHT_END = "an answer ends where its stop tokens, its length or its deadline say"


class InvariantBreach(AssertionError):
    """An invariant was broken: a mistake of ours, never of a request."""

    def __init__(self, invariant: Invariant, what: str) -> None:
        super().__init__(f"{invariant.name}: {what}")
        self.invariant = invariant


@contextmanager
def checking(invariant: Invariant) -> Iterator[None]:
    """An assertion that fails inside is a breach of ``invariant``."""
    try:
        yield
    except InvariantBreach:
        raise
    except AssertionError as error:
        raise InvariantBreach(invariant, str(error)) from error
