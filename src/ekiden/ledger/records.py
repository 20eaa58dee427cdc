"""What the ledger stores: plain rows of small numbers, and the codes that stand for reasons.

Times are whole microseconds since the run began, on the engine's clock. Requests have numbers, from 1 in the order in
which intake saw them, refused ones included. A turn is one call of ``EngineCore.step``, numbered from 1 without gaps:
a gap in a stored ledger is turns that were lost (the writer's queue was full).

What needs no column of its own lies in a row's blobs (:mod:`ekiden.ledger.blobs`). Codes are part of the format: never
renumber them, and raise :data:`FORMAT` when a row changes its meaning. A new column or field needs a default, with
which rows of earlier versions are read.
"""

from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from ekiden.state.drafting import NoDrafts
from ekiden.state.lineage import Lineage
from ekiden.state.runner import ChunkRules
from ekiden.state.sequence import PauseReason
from ekiden.state.turn import LeftOutReason, WaitReason

FORMAT = 4
"""2 had no controls; up to 3 newcomers joined a step only if nothing ran before they came."""
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
