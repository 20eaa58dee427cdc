"""What every source of workloads is: a function that makes one block, and the options that only it knows."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, get_args

from ekiden.evaluation.workloads.offer import Kind, Offer

Split = Literal["dev", "confirm"]
"""``dev`` is for tuning and looking; ``confirm`` is read once, by the run that counts. They share no data."""
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a source. Its default also says its type; None stands for a whole number that may be absent."""

    name: str
    default: Any
    meaning: str
    least: float | None = None
    most: float | None = None
    choices: Sequence[str] = ()

    def fault(self, value: Any) -> str | None:
        """What is wrong with ``value`` for this option, or None."""
        if isinstance(self.default, list):
            return self._fault_of_list(value)
        if isinstance(self.default, str):
            return None if value in self.choices else f"must be one of {', '.join(self.choices)}, not {value!r}"
        whole = not isinstance(self.default, float)
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not isfinite(value):
            return f"must be a {'whole ' if whole else ''}number, not {value!r}"
        if self.least is not None and not value >= self.least:
            return f"must be at least {self.least:g}, not {value!r}"
        if self.most is not None and not value <= self.most:
            return f"must be at most {self.most:g}, not {value!r}"
        return None

    def _fault_of_list(self, value: Any) -> str | None:
        if not isinstance(value, list) or not value or len(set(map(str, value))) < len(value):
            return f"must be a list of different names, such as {self.default!r}, not {value!r}"
        strange = [each for each in value if each not in self.choices]
        return f"knows {', '.join(self.choices)}, not {strange[0]!r}" if strange else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One block of one source, as the source's function is asked for it; ``options`` holds every option."""

    source: str
    split: Split
    block: int
    seed: int
    seconds: float
    rate: float
    length_scale: float
    options: Mapping[str, Any]

    @property
    def count(self) -> int:
        """Requests of the block: the mean rate is exactly what was asked for."""
        return round(self.rate * self.seconds)

    def chance(self, purpose: str, *, all_blocks: bool = False) -> random.Random:
        """Randomness of its own for each purpose, so that one draw more for one of them changes no other."""
        block = "" if all_blocks else f"/{self.block}"
        return random.Random(f"{self.source}/{self.split}/{self.seed}{block}/{purpose}")

    def named(self, index: int) -> str:
        """An id that no other block has."""
        return f"{self.source}-{self.split}{self.block}-{index:05d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a source made: requests in order of arrival, what the report says of them, and the files that were read."""

    offers: list[Offer]
    about: dict[str, Any]
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """``blocks`` says how many blocks of this size a split has; None for as many as one likes. ``fault`` says what
    makes blocks of this size impossible, whichever split they are of."""

    name: str
    kind: Kind
    summary: str
    options: tuple[Option, ...]
    make: Callable[[Ask], Made]
    blocks: Callable[[Ask], int | None]
    fault: Callable[[Ask], str | None]


def endless(ask: Ask) -> None:
    """The blocks of a source that makes its requests up."""


def faultless(ask: Ask) -> None:
    """The fault of a source that can make blocks of any size."""


def scaled(tokens: float, scale: float) -> int:
    """A length on this machine: at least one token is left."""
    return max(1, round(tokens * scale))
