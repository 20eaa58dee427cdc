"""Containment: whatever goes wrong in the work for one request ends that request, and nothing else.

Rules:
- work that depends on what one request holds (its grammar, its stop strings, its drafts) is done inside
  :class:`contained`. An exception there is written to the log once with its traceback, and its cause becomes the
  sequence's :attr:`~ekiden.state.sequence.Sequence.fault`; retirement ends the sequence with it, without a token;
- a runner reports what failed for one row in that row's result, and :mod:`ekiden.stages.advance` finds the rows that
  make a whole step fail;
- an :class:`~ekiden.state.invariants.InvariantBreach` is never contained: state that requests share is broken then, and
  so is the process. The same is true of every exception outside these places.
"""

import logging
from types import TracebackType
from typing import Final

from ekiden.state.invariants import InvariantBreach
from ekiden.state.sequence import Fault, Sequence, Stage

logger = logging.getLogger(__name__)

NOT_OF_ONE_REQUEST: Final = (InvariantBreach, KeyboardInterrupt, SystemExit, GeneratorExit)
"""All else is contained, also what is no ``Exception``: a panic of a library in Rust is none."""
LONGEST_CAUSE: Final = 300
"""Characters of a cause that are kept."""


def cause_of(error: BaseException) -> str:
    """An exception on one line of plain text, which can be encoded whatever it holds."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_CAUSE]
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class contained:
    """Surrounds the work of a stage for one request; ``doing`` says what it is. The code after it looks at
    ``sequence.fault``."""

    __slots__ = ("_doing", "_sequence", "_stage")

    def __init__(self, sequence: Sequence, stage: Stage, doing: str) -> None:
        self._sequence = sequence
        self._stage = stage
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None or isinstance(error, NOT_OF_ONE_REQUEST):
            return False
        logger.error("request %s failed while %s", self._sequence.request_id, self._doing, exc_info=error)
        self._sequence.fault = Fault(self._stage, f"it failed while {self._doing}: {cause_of(error)}")
        return True
