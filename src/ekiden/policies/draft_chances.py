"""How likely drafts are to be right: by what was accepted so far of this request's drafts on such grounds, and of all
requests' where there is little of its own.

A ground is where a draft comes from: a draft model, a grammar, or a lookup, by how long the text before the draft
agrees, earlier drafts included. What is old fades. The counts of a request lie in its
:class:`~ekiden.state.drafting.Drafting`, and end with it.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final

from ekiden.state.drafting import BY_GRAMMAR, BY_MODEL, Drafting

MATCHES: Final = (2, 3, 4, 6, 10, 20)
"""Lengths of a match from which on its drafts are another ground."""
MODEL: Final = 0
_GRAMMAR, _LOOKUP = 1, 2
_FIRST_CHANCES: Final = (0.6, 0.9, 0.2, 0.4, 0.5, 0.65, 0.8, 0.9, 0.95)
"""Of a draft by a model, by a grammar and by lookup, before any was tried: one for each ground."""
GROUNDS: Final = len(_FIRST_CHANCES)
assert _LOOKUP + len(MATCHES) + 1 == GROUNDS
_OWN_FADING: Final = 0.9
_FADING: Final = 0.995
_OWN_TRUST: Final = 2.0
_TRUST: Final = 8.0
"""Drafts that what is known without them counts for."""
_FORGIVING: Final = 0.97
"""What is left of the tries on a ground each time that it was not worth a place, so that it is tried again."""


def ground_of(match: int, place: int) -> int:
    """The ground of a guess's draft number ``place``, counted from 0."""
    if match == BY_MODEL:
        return MODEL
    if match == BY_GRAMMAR:
        return _GRAMMAR
    return _LOOKUP + bisect_right(MATCHES, match + place)


@dataclass(slots=True)
class DraftChances:
    """What was tried of all requests' drafts, and how much of it was right, by ground."""

    _right: list[float] = field(default_factory=lambda: [0.0] * GROUNDS)
    _tried: list[float] = field(default_factory=lambda: [0.0] * GROUNDS)

    def chance(self, drafting: Drafting, ground: int) -> float:
        """That a request's draft on this ground is right, if all before it are."""
        usual = (self._right[ground] + _TRUST * _FIRST_CHANCES[ground]) / (self._tried[ground] + _TRUST)
        return (drafting.right[ground] + _OWN_TRUST * usual) / (drafting.tried[ground] + _OWN_TRUST)

    def learn(self, drafting: Drafting, num_drafts: int, num_accepted: int) -> None:
        """So many of a row's drafts were right; nobody knows of those after the first that was wrong."""
        for place in range(min(num_accepted + 1, num_drafts)):
            ground, right = ground_of(drafting.match, place), float(place < num_accepted)
            drafting.right[ground] = drafting.right[ground] * _OWN_FADING + right
            drafting.tried[ground] = drafting.tried[ground] * _OWN_FADING + 1.0
            self._right[ground] = self._right[ground] * _FADING + right
            self._tried[ground] = self._tried[ground] * _FADING + 1.0

    def forgive(self, drafting: Drafting, ground: int) -> None:
        """The request's guess on this ground was not worth a place."""
        drafting.right[ground] *= _FORGIVING
        drafting.tried[ground] *= _FORGIVING
