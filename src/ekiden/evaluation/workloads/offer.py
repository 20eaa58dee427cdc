"""A workload: which requests come when, as data that names no model. Any server can be asked it.

A request has either a text or only the length of a prompt; :mod:`ekiden.evaluation.workloads.realise` turns both into
token ids of one model. The times are what a client intends, so they never depend on how the server answers.
"""

import hashlib
from enum import StrEnum
from functools import cached_property
from typing import Any

import msgspec


class Kind(StrEnum):
    """What a workload is for. A ``misleading`` one should show no gain; a gain there speaks against the comparison."""

    NORMAL = "normal"
    HARD = "hard"
    MISLEADING = "misleading"


class Offer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. ``output_tokens`` is the length that its answer will have, whatever the client says of it."""

    id: str
    """Unique in its workload."""
    at: float
    """Seconds from the start of the workload to the intended arrival."""
    output_tokens: int
    max_tokens: int | None = None
    """The limit that the client states, at least ``output_tokens``; None where the client states none."""
    prompt_tokens: int = 0
    """Length of a made prompt. With a text it is 0 and the text decides."""
    prefix_group: str = ""
    """Made prompts of one group begin with the same ``prefix_tokens`` tokens."""
    prefix_tokens: int = 0
    prefix_of: str = ""
    """In place of a group: the earlier request whose prompt's first ``prefix_tokens`` tokens this one repeats."""
    text: str | None = None
    """The user's message, where the prompt is a real one."""
    system: str | None = None
    tenant: str = "default"
    language: str = ""
    """``en`` or ``ja`` for real prompts."""
    pair: str = ""
    """Joins the same task in two languages."""
    priority: int = 0
    deadline: float | None = None
    """Seconds after the arrival."""


class Workload(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The requests of one block, in order of arrival, with all that made them."""

    name: str
    kind: Kind
    seconds: float
    """How long requests arrive."""
    offers: tuple[Offer, ...]
    made: dict[str, Any]
    """Source, split, window, scale factors, seed and the changes of premise, as the report prints them."""
    sources: dict[str, str]
    """SHA-256 of each data file that was read, by its path in the package."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 over everything above."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()
