"""What the ledger stores: plain rows of small numbers, and the codes that stand for reasons.

Times are whole microseconds since the run began, on the engine's clock. Requests have numbers, from 1 in the order in
which intake saw them, refused ones included. A turn is one call of ``EngineCore.step``, numbered from 1 without gaps:
a gap in a stored ledger is turns that were lost (the writer's queue was full).

A turn's row has two blobs. ``inputs`` came from outside the engine: times, cancellations, which answers the model's
tokens ended. ``decisions`` is what the engine chose. Given the same inputs, the engine must make the same decisions:
that is what a replay checks. Codes are part of the format: never renumber them, and raise :data:`FORMAT` when a row
changes its meaning. A new column or field needs a default, with which rows of earlier versions are read.
"""

from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from ekiden.state.controls import ControlChange
from ekiden.state.drafting import NoDrafts
from ekiden.state.lineage import Lineage
from ekiden.state.request import Estimate, Reading
from ekiden.state.runner import ChunkRules
from ekiden.state.sequence import PauseReason
from ekiden.state.turn import LeftOutReason, WaitReason

FORMAT = 3
REFUSED = "refused"
"""The reason in the end row of a request that was refused."""
ENGINE_ENDED = "engine_ended"
"""The reason in the end row of a request whose engine died and that goes on in the next run. All others have a
FinishReason."""

WAIT_REASONS = {1: WaitReason.SLOTS, 2: WaitReason.KV_BLOCKS, 3: WaitReason.PREEMPTED_FIRST, 4: WaitReason.BATCHING}
LEFT_OUT_REASONS = {
    1: LeftOutReason.TOKEN_BUDGET,
    2: LeftOutReason.CONCURRENT_PREFILLS,
    3: LeftOutReason.INTER_TOKEN_TARGET,
    4: LeftOutReason.KV_BLOCKS,
    5: LeftOutReason.PREFIX_IN_FLIGHT,
}
NO_DRAFT_REASONS = {
    1: NoDrafts.NO_GUESS,
    2: NoDrafts.UNLIKELY,
    3: NoDrafts.LENGTH,
    4: NoDrafts.TOKEN_BUDGET,
    5: NoDrafts.INTER_TOKEN_TARGET,
    6: NoDrafts.KV_BLOCKS,
    7: NoDrafts.FORBIDDEN,
}
PAUSE_REASONS = {1: PauseReason.SLOW_READER, 2: PauseReason.OPERATOR}

WAIT_CODES: dict[WaitReason | None, int | None] = {None: None, **{r: code for code, r in WAIT_REASONS.items()}}
LEFT_OUT_CODES = {reason: code for code, reason in LEFT_OUT_REASONS.items()}
NO_DRAFT_CODES = {reason: code for code, reason in NO_DRAFT_REASONS.items()}
PAUSE_BITS = {reason: bit for bit, reason in PAUSE_REASONS.items()}


class EventKind(IntEnum):
    """What happened to one request in a turn. ``value`` depends on the kind."""

    ARRIVED = 1
    REFUSED = 2
    ADMITTED = 3
    """value: prompt tokens found in the prefix cache."""
    PREFILL = 4
    """value: prompt tokens computed in this turn."""
    FIRST_TOKEN = 5
    LEFT_OUT = 6
    """It has a slot but is in no step, from this turn on. value: a code of LEFT_OUT_CODES; 0: it is in again."""
    BLOCKED = 7
    """value 1: refill looked at it for admission, and it did not fit the KV pool; 0: that no longer holds."""
    PREEMPTED = 8
    """value: blocks moved to the swap space; 0 when their content was dropped."""
    RESUMED = 9
    """It runs again after a preemption or a pause. value: see :class:`Resumed`."""
    CAUGHT_UP = 10
    """Its dropped KV blocks have been computed again."""
    PAUSED = 11
    """Its pauses changed. value: the bits of PAUSE_BITS that are set now; 0: it is no longer paused."""
    ENDED = 12
    """value 1: the engine's own work for it failed, and this turn gave it no token; otherwise 0."""
    TOKENS = 13
    """A decode row with drafts gave it several tokens in this turn. value: how many."""
    CARRIED = 14
    """It arrived from an engine that had ended. value: the tokens that it brought."""


class Resumed(NamedTuple):
    """What a RESUMED event tells. ``whole``: the request lost nothing that is to be computed again."""

    slot: int
    whole: bool

    @property
    def value(self) -> int:
        """As stored: one more than the slot, and negative where not whole."""
        return self.slot + 1 if self.whole else -self.slot - 1

    @staticmethod
    def of(value: int) -> "Resumed":
        return Resumed(abs(value) - 1, value > 0)


class TurnRow(NamedTuple):
    turn: int
    start: int
    took: int
    wait_start: int | None
    """Why requests still wait after the refill before the step (an idle engine has one): a code of WAIT_CODES. None
    without such a refill, or when none waits."""
    head_start: int | None
    """The request that is first in line then."""
    wait: int | None
    """Why requests still wait after the turn: a code of WAIT_CODES; None when none waits."""
    head: int | None
    """The request that is first in line then."""
    waiting: int
    running: int
    free_blocks: int
    decode_rows: int
    """Tokens of decode rows: a row with ``k`` drafts counts ``k + 1``."""
    decode_context: int
    prefill_tokens: int
    prefill_pairs: int
    p10: int
    """The predicted time of the step in microseconds, as a range."""
    p50: int
    p90: int
    prefill_time: int
    """The part of ``took`` that the prefill chunks cost, by the step-time model."""
    swapped: int
    """Blocks copied to or from the swap space."""
    tokens: int
    """Output tokens that the turn gave its requests."""
    inputs: bytes
    decisions: bytes
    epoch: int | None = None
    """The epoch of the controls in force; None in format 2."""
    new_sizes: int = 0
    """Passes of a size that the backend had not computed before, which made the step longer, once."""

    @property
    def end(self) -> int:
        return self.start + self.took


class EventRow(NamedTuple):
    request: int
    turn: int
    place: int
    """Its place among the events of the turn."""
    late: int
    """0: at the turn's start; 1: at its end."""
    kind: int
    value: int


class RequestRow(NamedTuple):
    request: int
    request_id: str
    tenant: str
    turn: int
    arrival: int
    prompt_tokens: int
    max_tokens: int
    """Output tokens it may have: its own limit or the room there is; 0 for a refused one."""
    priority: int
    refusal: str | None
    detail: bytes
    carried: int | None = None
    """The tokens that it brought from engines that had ended; None for a request that is new."""

    def seconds_until(self, at: int | None) -> float | None:
        """From its arrival to a time of the run; None where there is no such time."""
        return None if at is None else (at - self.arrival) / 1e6


class EndRow(NamedTuple):
    request: int
    turn: int
    at: int
    e2e: int
    reason: str
    output_tokens: int
    cached_tokens: int
    preemptions: int
    admitted: int | None
    first_token: int | None
    blocks: int
    detail: bytes


class ControlRow(NamedTuple):
    """A control's value from ``turn`` on; ``old`` is the value before. ``expires`` is in microseconds of the run."""

    turn: int
    at: int
    name: str
    value: str
    set_by: str
    who: str
    why: str = ""
    old: str | None = None
    expires: int | None = None


class Rows(NamedTuple):
    """Everything that one turn adds."""

    turn: TurnRow
    events: list[EventRow]
    requests: list[RequestRow]
    ends: list[EndRow]
    controls: list[ControlRow]


TABLES = {TurnRow: "turns", EventRow: "events", RequestRow: "requests", EndRow: "ends", ControlRow: "controls"}
"""The tables of a run, by their rows. All but the turns have the names of the fields of :class:`Rows`."""


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


class RunHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a run, which a replay needs beside the turns, and the software and model that made it."""

    format: int
    run_id: str
    started: float
    """Unix time."""
    clock_base: int
    """The engine's clock when the run began, in microseconds."""
    version: str
    fingerprint: str
    lineage: Lineage = Lineage()
    model_id: str
    backend: str
    details: dict[str, str]
    chunk_border: int | None = None
    """:class:`~ekiden.state.runner.ChunkRules`; None: the block size."""
    least_chunk: int = 2
    least_rows: int = 1
    max_drafts: int = 0
    tokens_per_change: int = 0
    hidden_size: int | None = None
    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int
    num_swap_blocks: int
    bytes_per_block: int
    eos_token_ids: list[int]
    has_grammars: bool
    seed: int
    scheduler: dict[str, Any]
    cache: dict[str, Any]
    limits: dict[str, Any]
    tenants: dict[str, dict[str, float | None]]
    prompts_kept: bool

    @property
    def chunks(self) -> ChunkRules:
        return ChunkRules(
            border=self.chunk_border or self.block_size, least=self.least_chunk, least_rows=self.least_rows
        )
