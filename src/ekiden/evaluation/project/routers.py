"""How a fleet's router chooses a replica for a request, from what a router outside the engines can know.

That is the request, and how many requests it has sent to each replica that have not been answered in full.
"""

import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from ekiden.state.request import Request

AFFINITY_TOKENS = 32
"""Prompts that begin with the same so many tokens are kept together."""
_REMEMBERED = 65_536
_OVERLOAD, _SLACK = 1.5, 2
"""A replica that has more than 1.5 times the mean and two requests more is too busy to be preferred."""


class Router(Protocol):
    def choose(self, request: Request, outstanding: Sequence[int]) -> int:
        """The replica's index. ``outstanding`` has a count for each."""
        ...


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: Request, outstanding: Sequence[int]) -> int:
        chosen = self._next % len(outstanding)
        self._next += 1
        return chosen


class LeastOutstanding:
    """The one with the fewest unanswered requests; of equal ones the one that was sent the fewest in all."""

    def __init__(self) -> None:
        self._sent: list[int] = []

    def choose(self, request: Request, outstanding: Sequence[int]) -> int:
        self._sent = self._sent or [0] * len(outstanding)
        chosen = min(range(len(outstanding)), key=lambda index: (outstanding[index], self._sent[index]))
        self._sent[chosen] += 1
        return chosen


class PrefixAffinity:
    """The replica that was sent a prompt with the same beginning last, unless it is far busier than the others.

    Beginnings that are new go where the fewest are unanswered.
    """

    def __init__(self) -> None:
        self._fallback = LeastOutstanding()
        self._homes: OrderedDict[int, int] = OrderedDict()

    def choose(self, request: Request, outstanding: Sequence[int]) -> int:
        beginning = zlib.crc32(np.array(request.prompt_token_ids[:AFFINITY_TOKENS], np.int64).tobytes())
        chosen = self._homes.get(beginning)
        if chosen is None or outstanding[chosen] > _OVERLOAD * sum(outstanding) / len(outstanding) + _SLACK:
            chosen = self._fallback.choose(request, outstanding)
        self._homes[beginning] = chosen
        self._homes.move_to_end(beginning)
        if len(self._homes) > _REMEMBERED:
            self._homes.popitem(last=False)
        return chosen


ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-outstanding": LeastOutstanding,
    "prefix-affinity": PrefixAffinity,
}
