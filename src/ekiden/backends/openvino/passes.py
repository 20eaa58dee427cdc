"""Divides a step into passes of the compiled model.

Rules, each of them a condition for the same request to give the same bits whatever runs beside it:
- a pass holds at most as many tokens, and computes the logits of at most as many rows, as :class:`PassLimits` says
  (above that a kernel may round differently), and holds at least two, a dummy row filling up a lone token: one token
  alone takes another kernel;
- a prefill chunk is cut only where the distance from the start of its sequence is a multiple of the block size;
- no chunk of a longer prefill is a single token, because that row would take the decode kernel of attention.

Pure functions over lists; nothing here knows OpenVINO.
"""

import itertools
from dataclasses import dataclass, field
from typing import Final

DUMMY = -1
"""The row of a padding token."""


@dataclass(frozen=True, slots=True)
class PassLimits:
    """The most ``tokens`` of a pass, and the most ``logits`` (rows of them); None where only the step sets a limit."""

    tokens: int | None = None
    logits: int | None = None

    def hold(self, tokens: int, logits: int) -> bool:
        return (self.tokens is None or tokens <= self.tokens) and (self.logits is None or logits <= self.logits)


NO_LIMITS: Final = PassLimits()


@dataclass(slots=True)
class Pass:
    """Rows of one pass in struct-of-arrays form: row ``rows[i]`` of the plan computes the tokens
    ``[starts[i], starts[i] + counts[i])`` of its sequence. ``wanted`` holds the ``i`` whose logits are needed."""

    rows: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    tokens: int = 0
    padding_rows: int = 0

    def add(self, row: int, start: int, count: int, wanted: bool) -> None:
        """Append tokens; those that continue the last row lengthen it."""
        if self.rows and self.rows[-1] == row and self.starts[-1] + self.counts[-1] == start:
            self.counts[-1] += count
        else:
            self.rows.append(row)
            self.starts.append(start)
            self.counts.append(count)
        if wanted:
            self.wanted.append(len(self.rows) - 1)
        self.tokens += count

    def takes(self, count: int, wanted: bool, limits: PassLimits) -> bool:
        """Whether there is room for ``count`` tokens more."""
        return limits.hold(self.tokens + count, len(self.wanted) + wanted)

    def pad(self) -> None:
        """Bring a lone token's pass to two tokens."""
        if self.tokens == 1:
            self.add(DUMMY, 0, 1, wanted=False)
            self.padding_rows += 1


def split(
    starts: list[int], counts: list[int], wanted: list[bool], *, limits: PassLimits, block_size: int
) -> list[Pass]:
    """The fewest passes that a first fit finds; row ``i`` computes ``counts[i]`` tokens from ``starts[i]`` on.

    Prefill chunks are placed first, block by block, and decode rows fill what the blocks leave over, so that a limit
    that is no multiple of the block size is still used in full. A limit of tokens must be at least :func:`least_limit`.
    """
    if limits.hold(sum(counts), sum(wanted)):
        wanted_rows = [i for i, want in enumerate(wanted) if want]
        whole = Pass(list(range(len(counts))), list(starts), list(counts), wanted_rows, sum(counts))
        whole.pad()
        return [whole]
    if not limits.hold(least_limit(block_size), 1):
        raise ValueError(f"passes of {limits} cannot hold a block of {block_size} and its neighbours")
    passes: list[Pass] = []
    for row, count in enumerate(counts):
        if count > 1:
            _place_prefill(passes, row, _pieces(starts[row], count, block_size), wanted[row], limits)
    decodes = [row for row, count in enumerate(counts) if count == 1]
    _place_decodes(passes, decodes, starts, wanted, limits)
    for filled in passes:
        filled.pad()
    return passes


def least_limit(block_size: int) -> int:
    """The longest piece of a prefill that cannot be cut: a block with a lone token before and one after it."""
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


def _place_prefill(
    passes: list[Pass], row: int, pieces: list[tuple[int, int]], wanted: bool, limits: PassLimits
) -> None:
    """First fit, never before the pass that holds the row's previous piece: a chunk reads the keys before it."""
    at = 0
    for index, (start, count) in enumerate(pieces):
        want = wanted and index == len(pieces) - 1
        while at < len(passes) and not passes[at].takes(count, want, limits):
            at += 1
        if at == len(passes):
            passes.append(Pass())
        passes[at].add(row, start, count, want)


def _place_decodes(
    passes: list[Pass], decodes: list[int], starts: list[int], wanted: list[bool], limits: PassLimits
) -> None:
    at = 0
    for row in decodes:
        while at < len(passes) and not passes[at].takes(1, wanted[row], limits):
            at += 1
        if at == len(passes):
            passes.append(Pass())
        passes[at].add(row, starts[row], 1, wanted[row])
