"""What lies in the blobs of the ledger's rows: of a request, of its end, and of a turn.

A turn has two. ``inputs`` came from outside the engine: times, cancellations, which answers the model's tokens ended.
``decisions`` is what the engine chose. Given the same inputs, the engine must make the same decisions: that is what a
replay checks. The rules of :mod:`ekiden.ledger.records` for codes, formats and new fields hold here too.
"""

from typing import Any, NamedTuple

import msgspec

from ekiden.state.controls import ControlChange
from ekiden.state.request import Estimate, Reading


class CarriedDetail(msgspec.Struct, frozen=True, array_like=True):
    """What a request brought from engines that had ended: how many they were, the run of the last one, and the time of
    its first token, in seconds on the engine's clock."""

    ends: int
    run_id: str | None
    first_token_time: float | None


class RequestDetail(msgspec.Struct, frozen=True, array_like=True):
    """What a request asked for, and the state of the queue when intake took it in.

    Prompts are here only as digests, unless they are kept.
    """

    arrival: float
    """Seconds on the engine's clock, exactly as the request had it."""
    deadline: float | None
    sampling: dict[str, Any]
    """Fields that differ from the defaults; of stop strings only their lengths, of a grammar only its kind."""
    prompt_digest: bytes
    block_keys: bytes
    """Eight bytes of each full block's key, which tell equal prompt beginnings from different ones."""
    num_waiting: int
    waiting_tokens: int
    worst_case_blocks: int
    expected_output: tuple[int, int, int] | None
    external_id: str | None = None
    prompt: bytes | None = None
    """The token ids (array of 32-bit integers, zlib), where prompts are kept."""
    message: str | None = None
    param: str | None = None
    retry_after: float | None = None
    bad_token: int | None = None
    traceparent: str | None = None
    by_door: bool = False
    """The HTTP layer refused it, and the engine only recorded that."""
    carried: CarriedDetail | None = None
    reading: Reading | None = None
    """What was wanted of a prompt that was only read; None for a request that generates."""
    expected_wait: float | None = None
    """Seconds that intake expected it to wait for admission; None while nothing was known, and for a refused one."""
    estimate: Estimate | None = None
    """When intake expected a request with a deadline to end, whether it was refused for that or not."""
    takes_partial: bool = False


class DraftTotals(NamedTuple):
    """One request's drafts: the rows that had some, how many they had, and how many of these became tokens.
    ``refused``: in how many steps it got none, by codes of NO_DRAFT_CODES."""

    rows: int
    drafts: int
    accepted: int
    refused: list[tuple[int, int]]


class EndDetail(msgspec.Struct, frozen=True, array_like=True):
    output_digest: bytes
    """Of the answer's tokens; of what was read where the prompt was only read."""
    stop_reason: str | int | None = None
    """A token, or the kind ``"string"`` where a stop string ended it."""
    message: str | None = None
    output: bytes | None = None
    estimate: Estimate | None = None
    """Why its deadline could no longer be met, where it was given up for that."""
    drafting: DraftTotals | None = None
    """What came of its drafts; None where none could have been made."""


class Drafted(NamedTuple):
    """A row for which something was guessed: how many tokens, how many tokens the row gave, and as in
    :class:`~ekiden.state.turn.Guessed`. Without ``allowed``, all were."""

    request: int
    guessed: int
    tokens: int
    match: int = 0
    allowed: int | None = None


class TurnInputs(msgspec.Struct, array_like=True):
    """What came from outside the engine in a turn. Times are microseconds; ``advance_start`` counts from the turn's
    start."""

    advance_start: int = 0
    advance: int = 0
    model: int = 0
    sampling: int = 0
    passes: int = 0
    padding_rows: int = 0
    arrivals: int = 0
    draining: bool = False
    """In format 2 only: whether newcomers were refused."""
    aborts: list[int] = []
    pauses: list[tuple[int, int, bool, str | None]] = []
    stops: list[tuple[int, int | str | None]] = []
    """Requests that a token ended before their length did: the stop token, ``"string"``, ``"error"`` or None."""
    failure: str | None = None
    drafts: list[Drafted] = []
    controls: list[tuple[int, ControlChange]] = []
    """Changes of the controls, each with the number of this turn's requests that came before it."""
    faults: list[tuple[int, int]] = []
    """Requests that ended because the engine's own work for them failed, and at which stage: 2 for one that therefore
    had no row in the step, 3 for one whose row gave nothing, 4 for one whose tokens could not be taken in. Their end
    rows have the cause."""
    attempts: int = 1
    """How often the runner was called for the step."""
    micros_per_draft: int = 0
    """What a draft of the draft model had taken until then, in microseconds."""


class Admitted(NamedTuple):
    """A request that got a slot. ``standing``: the number by which the queue had ordered it."""

    request: int
    slot: int
    blocks: int
    cached_tokens: int
    standing: float


class TurnDecisions(msgspec.Struct, array_like=True):
    """What the engine chose in a turn, as request numbers.

    ``decodes`` are the rows of one token, in order; None when they are those of the turn before. ``passed_over``
    likewise.
    """

    decodes: list[int] | None = None
    prefills: list[tuple[int, int]] = []
    left_out: list[tuple[int, int]] = []
    victims: list[tuple[int, int]] = []
    """Each with the runner-up; 0 when there was none."""
    swap_out: list[tuple[int, int]] = []
    swap_in: list[tuple[int, int]] = []
    resumed_start: list[int] = []
    admitted_start: list[Admitted] = []
    resumed: list[int] = []
    admitted: list[Admitted] = []
    passed_over: list[int] | None = None
    retired: list[tuple[int, int]] = []
    """Each with the blocks it gave back."""
    budget: int = 0
    drafts: list[tuple[int, int]] = []
    """Decode rows with drafts: the request and how many."""
    no_drafts: list[tuple[int, int]] = []
    """Decode rows that have no drafts from this turn on, and why: a code of NO_DRAFT_CODES; 0: they have some again."""
