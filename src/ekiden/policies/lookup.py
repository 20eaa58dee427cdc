"""Guesses by lookup: a text that repeats itself goes on as it did before.

For each sequence there is an index over its last tokens, prompt and answer. Every place is linked to the last one
before it with the same pair of tokens (hash chains, as in Lempel-Ziv compressors: RFC 1951, section 4). A guess looks
at the last places of the sequence's newest pair, takes the one whose past agrees longest, of equals the newest, and
proposes what followed there; where the pair is new, what followed the newest token when it last stood. A guess that
reaches the end of the text goes on with itself, so that loops are guessed too. Adding a token takes constant time, and
so does a guess; memory is bounded by :data:`MOST_TOKENS`.
"""

from array import array
from collections.abc import Sequence
from typing import Final

from ekiden.state.drafting import NO_GUESS, Ask, Drafter, Guess

LONGEST_MATCH: Final = 32
"""Agreement beyond it is not measured."""
PLACES: Final = 8
"""Earlier places that one guess compares."""
MOST_TOKENS: Final = 16_384
"""The newest tokens of a sequence that are looked at; up to twice as many are held."""
AT_ONCE: Final = 4_096
"""Tokens that one guess adds at most, so that a long prompt holds up no step."""


_NO_TOKEN: Final = -1
"""Stands before the first token."""


class _Index:
    """One sequence's index.

    ``pairs`` has the last place of two tokens that stand together, ``singles`` that of a token, and ``links[i]`` the
    place before place ``base + i`` of the same pair, or -1.
    """

    __slots__ = ("_base", "_links", "_pairs", "_singles")

    def __init__(self) -> None:
        self._clear(0)

    def _clear(self, base: int) -> None:
        self._base = base
        self._pairs: dict[tuple[int, int], int] = {}
        self._singles: dict[int, int] = {}
        self._links = array("i")

    def guess(self, tokens: Sequence[int], limit: int) -> Guess:
        newest = len(tokens) - 1
        if newest - self._base >= 2 * MOST_TOKENS:
            self._clear(newest - MOST_TOKENS)
        if limit <= 0 or newest < 1 or not self._extend(tokens, newest):
            return NO_GUESS
        place = self._pairs.get((tokens[newest - 1], tokens[newest]), -1)
        best, longest = self._singles.get(tokens[newest], -1), 1
        for _ in range(PLACES):
            if place < 0:
                break
            match = _agreement(tokens, place, newest)
            if match > longest:
                best, longest = place, match
                if match == LONGEST_MATCH:
                    break
            place = self._links[place - self._base]
        if best < 0:
            return NO_GUESS
        found = list(tokens[best + 1 : best + 1 + limit])
        while len(found) < limit:  # it goes on with itself
            found += found[: limit - len(found)]
        return Guess(found, longest)

    def _extend(self, tokens: Sequence[int], end: int) -> bool:
        """Add the places before ``end``; False when some are left for the next time."""
        pairs, singles, links = self._pairs, self._singles, self._links
        first = self._base + len(links)
        last = min(end, first + AT_ONCE)
        for place in range(first, last):
            token = tokens[place]
            pair = (tokens[place - 1] if place else _NO_TOKEN), token
            links.append(pairs.get(pair, -1))
            pairs[pair] = singles[token] = place
        return last >= end


def _agreement(tokens: Sequence[int], place: int, newest: int) -> int:
    """How many tokens up to ``place`` equal those up to ``newest``."""
    match = 0
    while match < LONGEST_MATCH and match <= place and tokens[place - match] == tokens[newest - match]:
        match += 1
    return match


class Lookup(Drafter):
    """A :class:`Drafter` that looks only at the sequence itself."""

    def __init__(self) -> None:
        self._indexes: dict[str, _Index] = {}

    def guess(self, ask: Ask) -> Guess:
        index = self._indexes.get(ask.request_id)
        if index is None:
            index = self._indexes[ask.request_id] = _Index()
        return index.guess(ask.token_ids, ask.limit)

    def forget(self, request_id: str) -> None:
        self._indexes.pop(request_id, None)

    def __len__(self) -> int:
        """The sequences that it knows."""
        return len(self._indexes)
