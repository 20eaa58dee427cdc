"""What an engine is at work on, written to memory that outlives its process.

When an engine ends by a crash, nobody can ask it what it was doing. So it marks, before each step, which requests the
step computes and which of their tokens (their *places*), and which requests are being taken in: those whose grammar is
being compiled, or that intake has yet to judge. The process that started it reads the marks after its end.

The memory is an array of 64-bit words. Places are written only when they do not follow from those before: in most steps
each row moves on by one token, and then one word changes. A request is named by a hash of its id.

| word | holds |
| --- | --- |
| 0 | 1 while there is something to compute |
| 1 | steps since the rows were written |
| 2, 3 | how many rows, how many of them move on by a token a step (those come first) |
| 4 | how many requests are being taken in |
| 5 ... | their names; from ``_ROWS`` on the rows: name, first and last position + 1 |
"""

from array import array
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from ekiden.engine.spawn import NUM_WORDS, Words
from ekiden.state.sequence import Sequence
from ekiden.state.turn import FormationOutcome

Place = tuple[int, int]
"""Positions of a request's tokens, as a half-open interval."""

TAKEN_IN: Final[Place] = (-1, 0)
"""The place of a request that is being taken in."""

_BUSY, _STEPS, _COUNT, _MOVING, _ENTERING, _NAMES = range(6)
_MOST_ENTERING: Final = 1024
_ROWS: Final = _NAMES + _MOST_ENTERING
_MOST_ROWS: Final = (NUM_WORDS - _ROWS) // 3


@lru_cache(4096)
def name_of(request_id: str) -> int:
    return int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest(), "little")


class Marks:
    """The engine's side. ``step`` is called for each step, so it costs about a microsecond where no row has changed."""

    def __init__(self, words: Words) -> None:
        self._words = memoryview(words).cast("B").cast("Q")
        self._moving: list[Sequence] = []
        self._follows = False
        """Whether the next step's rows follow from the written ones, if they are of the same sequences."""

    def step(self, formed: FormationOutcome) -> None:
        """The next step computes these rows."""
        words, rows = self._words, formed.plan.rows
        # Prefill chunks stand last, and before them the finished rows of a padded batch, which stay where they are.
        uneven = bool(formed.guesses) or (bool(rows) and (rows[-1].prefill or formed.sequences[-1].padding))
        if self._follows and not uneven and formed.sequences == self._moving:
            words[_STEPS] += 1
            return
        self._moving, self._follows = formed.sequences, not uneven
        words[_COUNT] = 0  # whoever reads half of it finds nothing
        written: list[int] = []
        moving = 0
        for sequence, row in zip(formed.sequences[:_MOST_ROWS], rows, strict=False):
            moving += not (row.prefill or sequence.padding)
            written += (name_of(sequence.request_id), row.start, row.end)
        words[_ROWS : _ROWS + len(written)] = array("Q", written)
        words[_STEPS], words[_MOVING], words[_BUSY] = 0, moving, 1
        words[_COUNT] = len(written) // 3

    def idle(self) -> None:
        """There is nothing to compute."""
        self._words[_BUSY] = 0
        self._follows = False

    def enter(self, request_id: str) -> None:
        """This request is being taken in too."""
        count = self._words[_ENTERING]
        if count < _MOST_ENTERING:
            self._words[_NAMES + count] = name_of(request_id)
            self._words[_ENTERING] = count + 1

    def entering(self, request_ids: list[str]) -> None:
        """These requests are being taken in, and no others."""
        names = [name_of(request_id) for request_id in request_ids[:_MOST_ENTERING]]
        self._words[_ENTERING] = 0
        self._words[_NAMES : _NAMES + len(names)] = array("Q", names)
        self._words[_ENTERING] = len(names)


def is_busy(words: Words) -> bool:
    """Whether the engine of these marks has something to compute."""
    return bool(words[_BUSY])


def marked(words: Words, request_ids: Iterable[str]) -> dict[str, Place]:
    """Those requests that the engine of these marks was at work on when it ended, each with its place."""
    known = {name_of(request_id): request_id for request_id in request_ids}
    view = memoryview(words).cast("B").cast("Q")
    entering = view[_NAMES : _NAMES + view[_ENTERING]]
    found = {known[name]: TAKEN_IN for name in entering if name in known}
    if view[_BUSY]:
        for index in range(view[_COUNT]):
            name, start, end = view[_ROWS + 3 * index : _ROWS + 3 * index + 3]
            moved = view[_STEPS] if index < view[_MOVING] else 0
            if name in known:
                found[known[name]] = (start + moved, end + moved)
    return found


def overlap(one: Place, other: Place) -> bool:
    return one[0] < other[1] and other[0] < one[1]
