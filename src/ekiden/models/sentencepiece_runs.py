"""Runs of one character whose pieces all have the same score, as merges with ranks.

Mistral's SentencePiece vocabularies hold runs of 1 to 14 and of 16 spaces, all with the score -1e9. Of pairs with the
same score SentencePiece merges the leftmost, where ranks know no position. A run nevertheless goes through the same
merges in the same order if the ranks are chosen well: what lies further left has grown longer, so that a pair further
left is another pair. Whether there are such ranks for a set of lengths is found by playing SentencePiece's merges.
"""

from graphlib import CycleError, TopologicalSorter

Pair = tuple[str, str]

MAX_RUN = 64
"""Characters of the longest run that is tried."""


def merges_of_runs(character: str, lengths: set[int]) -> list[Pair] | None:
    """The merges, first in rank first, that take every run of ``character`` apart as SentencePiece does.

    ``lengths`` are those of the pieces with the same score, a single character not among them. None: no ranks do that.
    """
    if max(lengths) > MAX_RUN:
        return None
    before: dict[tuple[int, int], set[tuple[int, int]]] = {}
    # Once the longest piece is made the rest is a run of its own, so longer runs bring nothing new.
    played = {count: _play(count, lengths, before) for count in range(2, 3 * max(lengths) + 1)}
    others = {merge: {other for other in earlier if other != merge} for merge, earlier in before.items()}
    try:
        ranked = list(TopologicalSorter(others).static_order())
    except CycleError:
        return None
    ranks = {merge: rank for rank, merge in enumerate(ranked)}
    if any(_merged(count, ranks) != pieces for count, pieces in played.items()):
        return None
    return [(character * left, character * right) for left, right in ranked]


def _play(count: int, lengths: set[int], before: dict[tuple[int, int], set[tuple[int, int]]]) -> list[int]:
    """The pieces of a run. Each merge is noted in ``before`` as one that must come before the others possible then."""
    pieces = [1] * count
    while possible := _possible(pieces, lengths):
        chosen = possible[0]
        merge = pieces[chosen], pieces[chosen + 1]
        before.setdefault(merge, set())
        for place in possible[1:]:
            before.setdefault((pieces[place], pieces[place + 1]), set()).add(merge)
        pieces[chosen : chosen + 2] = [sum(merge)]
    return pieces


def _possible(pieces: list[int], lengths: set[int]) -> list[int]:
    return [place for place in range(len(pieces) - 1) if pieces[place] + pieces[place + 1] in lengths]


def _merged(count: int, ranks: dict[tuple[int, int], int]) -> list[int]:
    """The pieces of a run by ranks: the lowest first, and of the same the leftmost."""
    pieces = [1] * count
    while True:
        possible = [
            (ranks[pieces[place], pieces[place + 1]], place)
            for place in range(len(pieces) - 1)
            if (pieces[place], pieces[place + 1]) in ranks
        ]
        if not possible:
            return pieces
        _, place = min(possible)
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
