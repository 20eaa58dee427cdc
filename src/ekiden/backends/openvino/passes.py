"""Divides a step into passes of the compiled model.

Rules, each of which a request needs to get the same bits whatever runs beside it:
- a pass has at most the tokens and the rows of logits that :class:`PassLimits` allows, since a kernel may round
  differently above them. It has at least two tokens: a dummy row joins a single token, which would get another kernel;
- a prefill chunk is cut only where the distance from the start of its sequence is a multiple of the block size;
- no chunk of a longer prefill is a single token, because attention would compute that row with its decode kernel;
- a row with drafts is one token and its drafts, each of which is a row of its own in the pass, so that attention takes
  its decode kernel for each, as it would without drafts. They share a block table, and a pass writes the keys and
  values of all its tokens before it reads any. All of them are in one pass, since their tokens are chosen together.

These are pure functions over lists that know nothing of OpenVINO.
"""

import itertools
from dataclasses import dataclass, field
from typing import Final

DUMMY = -1
"""The row number of a padding token."""


@dataclass(frozen=True, slots=True)
class PassLimits:
    """The most tokens and the most rows of logits of a pass; None where only the step sets a limit."""

    tokens: int | None = None
    logits: int | None = None

    def hold(self, tokens: int, logits: int) -> bool:
        return (self.tokens is None or tokens <= self.tokens) and (self.logits is None or logits <= self.logits)


NO_LIMITS: Final = PassLimits()


@dataclass(slots=True)
class Pass:
    """The rows of one pass, as a struct of arrays.

    Row ``rows[i]`` of the plan computes the tokens ``[starts[i], starts[i] + counts[i])`` of its sequence; one with
    drafts is here several times in a row. ``wanted`` has the indices ``i`` whose logits are needed.
    """

    rows: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    tokens: int = 0

    def add(self, row: int, start: int, count: int, wanted: bool) -> None:
        """Add tokens of a row; if several continue the last row, that row grows."""
        if count > 1 and self.rows and self.rows[-1] == row and self.starts[-1] + self.counts[-1] == start:
            self.counts[-1] += count
        else:
            self.rows.append(row)
            self.starts.append(start)
            self.counts.append(count)
        if wanted:
            self.wanted.append(len(self.rows) - 1)
        self.tokens += count

    def add_row(self, row: int, start: int, count: int, wanted: bool, *, drafted: bool) -> None:
        """Add a whole row; one with drafts as a row for each of its tokens."""
        if not drafted:
            self.add(row, start, count, wanted)
            return
        for position in range(start, start + count):
            self.add(row, position, 1, wanted=True)

    def pad(self) -> None:
        """Add a dummy row to a pass of one token."""
        if self.tokens == 1:
            self.add(DUMMY, 0, 1, wanted=False)


def split(
    starts: list[int],
    counts: list[int],
    wanted: list[bool],
    *,
    limits: PassLimits,
    block_size: int,
    drafted: frozenset[int] = frozenset(),
) -> list[Pass]:
    """Divide rows into passes by first fit; row ``i`` computes ``counts[i]`` tokens from ``starts[i]`` on.

    Prefill chunks are placed first, block by block, and decode rows fill the gaps, so that a limit which is not a
    multiple of the block size is still used fully. A limit of tokens must be at least :func:`least_limit`. The rows
    ``drafted`` have drafts, and want logits for each of their tokens; each must fit a pass.
    """
    logits = sum(wanted) + sum(counts[row] - 1 for row in drafted)
    if limits.hold(sum(counts), logits):
        whole = Pass()
        if drafted:
            for row, (start, count, want) in enumerate(zip(starts, counts, wanted, strict=True)):
                whole.add_row(row, start, count, want, drafted=row in drafted)
        else:
            wanted_rows = [i for i, want in enumerate(wanted) if want]
            whole = Pass(list(range(len(counts))), list(starts), list(counts), wanted_rows, sum(counts))
        whole.pad()
        return [whole]
    if not limits.hold(least_limit(block_size), 1):
        raise ValueError(f"passes of {limits} cannot hold a block of {block_size} and its neighbours")
    passes: list[Pass] = []
    for row, count in enumerate(counts):
        if count > 1 and row not in drafted:
            # A piece may not come before the pass of the one before it, whose keys it reads.
            at, end = 0, starts[row] + count
            for start, length in _pieces(starts[row], count, block_size):
                at = _place(passes, at, row, start, length, wanted[row] and start + length == end, limits)
    at = 0
    for row, count in enumerate(counts):
        if row in drafted:
            first = _room(passes, 0, count, count, limits)
            passes[first].add_row(row, starts[row], count, wanted=True, drafted=True)
        elif count == 1:
            at = _place(passes, at, row, starts[row], 1, wanted[row], limits)
    for filled in passes:
        filled.pad()
    return passes


def least_limit(block_size: int) -> int:
    """The longest piece of a prefill that cannot be cut: a block with a single token before and one after it."""
    return block_size + 2


def _pieces(start: int, count: int, block_size: int) -> list[tuple[int, int]]:
    """Cut ``[start, start + count)`` at block borders into ``(start, count)``, none of a single token."""
    end = start + count
    borders = [start, *range((start // block_size + 1) * block_size, end, block_size), end]
    if len(borders) > 2 and borders[-1] - borders[-2] == 1:
        del borders[-2]
    if len(borders) > 2 and borders[1] - borders[0] == 1:
        del borders[1]
    return [(first, after - first) for first, after in itertools.pairwise(borders)]


def _place(passes: list[Pass], at: int, row: int, start: int, count: int, wanted: bool, limits: PassLimits) -> int:
    """Add tokens to the first pass from ``at`` on that has room for them, or to a new one; returns its index."""
    at = _room(passes, at, count, wanted, limits)
    passes[at].add(row, start, count, wanted)
    return at


def _room(passes: list[Pass], at: int, tokens: int, logits: int, limits: PassLimits) -> int:
    """The index of the first pass from ``at`` on with room for so many, or of a new one."""
    while at < len(passes) and not limits.hold(passes[at].tokens + tokens, len(passes[at].wanted) + logits):
        at += 1
    if at == len(passes):
        passes.append(Pass())
    return at
