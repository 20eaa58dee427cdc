"""What holds between any two steps, by name, and the error that says which of them was broken.

Owners of state assert their part in `check_integrity`; the simulation in tests/simulation checks the rest from outside.
"""

from contextlib import ContextDecorator
from enum import Enum
from types import TracebackType


class Invariant(Enum):
    BLOCKS = "each block is free, cached or referenced, and its reference count equals the block tables that name it"
    PLACES = "each sequence is in exactly one container, which agrees with its status"
    ONE_END = "each request has exactly one terminal event, and nothing after it"
    BUDGET = "scheduled tokens and rows stay within their limits, and memory suffices for every plan made"
    PROGRESS = "unfinished work is scheduled or waits for something named; nobody is overtaken or kept without bound"
    WORK_CONSERVATION = "under continuous batching the first in line waits only while it does not fit"
    GIVEN_BACK = "whatever ends gives back its blocks and its slot, and a rejected draft its block"
    SAME_TOKENS = "a request's tokens depend on its prompt and settings alone, so prompts are cut at block borders only"
    RIGHT_END = "an answer ends where its stop tokens, its length or its deadline say"


class InvariantBreach(AssertionError):
    """An invariant was broken: a mistake of ours, never of a request."""

    def __init__(self, invariant: Invariant, what: str) -> None:
        super().__init__(f"{invariant.name}: {what}")
        self.invariant = invariant


class checking(ContextDecorator):
    """An assertion that fails inside is a breach of ``invariant``."""

    def __init__(self, invariant: Invariant) -> None:
        self._invariant = invariant

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, AssertionError) and not isinstance(error, InvariantBreach):
            raise InvariantBreach(self._invariant, str(error)) from error
