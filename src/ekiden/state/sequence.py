"""A sequence, which is a request inside the engine, and the table of its legal status changes.

Rules:
- only the stage that owns a status change makes it, always through :meth:`Sequence.move_to`;
- ``token_ids`` is prompt then output; ``num_computed_tokens`` of them have their keys and values in the KV pool;
- the last token of a running sequence is always uncomputed: it is the input of its next step.
"""

from collections.abc import Callable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple, Protocol

from ekiden.state.drafting import Drafting
from ekiden.state.invariants import Invariant, InvariantBreach
from ekiden.state.plan import PromptLogits, Row, RowSampling, StateSum
from ekiden.state.request import Estimate, FinishReason, Pooling, Request, TokenLogprobs


class Status(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Stage(IntEnum):
    """The stages that do work of one request."""

    INTAKE = 1
    FORMATION = 2
    ADVANCE = 3
    RETIREMENT = 4


class Fault(NamedTuple):
    """The engine's own work for one request failed: at which stage, and why."""

    stage: Stage
    cause: str


class PauseReason(StrEnum):
    """Why a sequence is paused. It goes on when no reason is left."""

    SLOW_READER = "slow_reader"
    OPERATOR = "operator"


TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.WAITING: frozenset({Status.RUNNING, Status.PAUSED, Status.FINISHED}),
    Status.RUNNING: frozenset({Status.PREEMPTED, Status.PAUSED, Status.FINISHED}),
    Status.PREEMPTED: frozenset({Status.RUNNING, Status.PAUSED, Status.FINISHED}),
    Status.PAUSED: frozenset({Status.WAITING, Status.PREEMPTED, Status.FINISHED}),
    Status.FINISHED: frozenset(),
}


class IllegalTransition(InvariantBreach):
    """A status change that is not in :data:`TRANSITIONS`; the message lists the statuses that the sequence had."""


StopText = Callable[[int], str | None]
"""Finds stop strings in the text of one sequence: takes the next token id, returns the stop string it completed."""


class TokenRules(Protocol):
    """A grammar matcher: which tokens may come next in a sequence. Its state depends on the tokens fed to it alone."""

    @property
    def error(self) -> str | None:
        """Why the grammar can no longer be matched; None while it can."""
        ...

    def forced(self, limit: int) -> tuple[int, ...]:
        """Up to ``limit`` tokens that hardly leave the rules another choice, as drafts; the state is the same
        afterwards."""
        ...

    def masks(self, drafts: Tokens[int] = ()) -> tuple[bytes, ...]:
        """Which token may come next, and which after each of ``drafts``, as far as the rules allow those: one bit for
        each token id, the lowest bit of the first byte being id 0. The state is the same afterwards."""
        ...

    def advance(self, token: int) -> bool:
        """Take in the chosen token; True when no token may follow it, or the grammar can no longer be matched."""
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """The engine's mutable record of one request."""

    request: Request
    seed: int
    token_ids: list[int]
    num_prompt_tokens: int
    max_total_tokens: int
    stop_token_ids: frozenset[int]
    stop_text: StopText | None = None
    rules: TokenRules | None = None
    """Present when the request has a grammar."""
    status: Status = Status.WAITING
    slot: int | None = None
    """Which of the ``max_num_seqs`` slots it has. It keeps its slot while it is preempted; waiting or paused it has
    none."""
    admission: int = 0
    """Its number in the order of admissions, from 1; 0 before."""
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    block_table: tuple[int, ...] = ()
    swapped_blocks: int = 0
    """How many of its blocks lie in the swap space while it is preempted."""
    expected_output: tuple[int, int, int] | None = None
    """p10, p50 and p90 of the output tokens of its tenant's finished requests; None while none has finished."""
    expected_wait: float | None = None
    """Seconds that intake expected it to wait for admission; None while nothing was known."""
    estimate: Estimate | None = None
    """Of one with a deadline, the last estimate of when it would end; None while nobody asked."""
    num_preemptions: int = 0
    num_overtaken: int = 0
    """How often a later sequence joined because this one did not fit the KV pool."""
    admitted_time: float | None = None
    first_token_time: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    fault: Fault | None = None
    """The engine's own work for it failed (:mod:`ekiden.state.containment`); retirement then ends it."""
    paused_by: set[PauseReason] = field(default_factory=set)
    drafting: Drafting | None = None
    """What came of its drafts; None until the first might have been made."""
    padding: bool = False
    """True for a finished row that a naive padded batch keeps computing (``static-padded``)."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of the prompt tokens computed so far, where the client asked for them: entry ``i`` is about token ``i + 1``."""
    state_sum: bytes = b""
    """The sum of the hidden states that a reading asked for, over what is computed (:class:`StateSum`)."""
    pooled: bytes | None = None
    """The vector that was made of it, once the prompt is computed."""
    plain_sampling: RowSampling | None = None
    """The sampling inputs of its rows where they are the same for each; made when they are first needed."""
    prefix_keys: list[bytes] | None = None
    """The prefix cache's keys of its full prompt blocks; None until they are first needed."""
    history: list[Status] = field(default_factory=list)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_prefilling(self) -> bool:
        """True while prompt tokens are missing from the KV pool."""
        return self.num_computed_tokens < self.num_prompt_tokens

    def row(self, num_tokens: int, drafts: tuple[int, ...] = (), masks: tuple[bytes, ...] = ()) -> Row:
        """Its next ``num_tokens`` uncomputed tokens, then ``drafts``, as a row of a plan. ``masks``: see
        :class:`RowSampling`."""
        assert self.slot is not None
        start, end = self.num_computed_tokens, self.num_computed_tokens + num_tokens
        tokens = (self.token_ids[start],) if num_tokens == 1 else tuple(self.token_ids[start:end])
        reading = self.request.reading
        sampling = self._row_sampling(masks) if end == len(self.token_ids) and reading is None else None
        prefill = self.is_prefilling
        asked = self._prompt_logits(end) if prefill else None
        states = None if reading is None or reading.pooling is None else self._state_sum(reading.pooling, end)
        return Row(self.slot, start, tokens + drafts, self.block_table, sampling, prefill, len(drafts), asked, states)

    def plain_row(self) -> Row | None:
        """A row of its newest token, from which the model makes the next one; None when its sampling inputs are not
        known yet or change with each token. Most rows are of this kind, and nothing can fail here."""
        slot, start, sampling = self.slot, self.num_computed_tokens, self.plain_sampling
        if sampling is None or slot is None or start + 1 != len(self.token_ids):
            return None
        return Row(slot, start, (self.token_ids[start],), self.block_table, sampling)

    def _row_sampling(self, masks: tuple[bytes, ...]) -> RowSampling:
        params = self.request.sampling
        too_short = self.num_output_tokens < params.min_tokens
        if not (masks or too_short or params.penalises):
            if self.plain_sampling is None:
                self.plain_sampling = RowSampling(params, self.seed, self.num_prompt_tokens)
            return self.plain_sampling
        return RowSampling(
            params,
            self.seed,
            self.num_prompt_tokens,
            tuple(self.token_ids) if params.penalises else (),
            tuple(self.stop_token_ids) if too_short else (),
            masks,
        )

    def _prompt_logits(self, end: int) -> PromptLogits | None:
        """The prompt log-probabilities up to position ``end`` that have not been reported yet."""
        reading, num_top, begin = self.request.reading, self.request.sampling.prompt_logprobs, 0
        if reading is not None:
            num_top = None if reading.scored_from is None else 0
            begin = (reading.scored_from or 1) - 1
        if num_top is not None and self.num_output_tokens:
            return None  # they were reported with the first token, by an earlier engine perhaps
        first = max(self.num_computed_tokens, begin + len(self.prompt_logprobs))
        last = min(end, self.num_prompt_tokens - 1)
        if num_top is None or first >= last:
            return None
        return PromptLogits(first, tuple(self.token_ids[first + 1 : last + 1]), num_top)

    def _state_sum(self, pooling: Pooling, end: int) -> StateSum | None:
        """The hidden states to be summed up to position ``end``; the mean starts again where the prompt does."""
        start = self.num_computed_tokens
        if pooling is Pooling.MEAN:
            return StateSum(start, self.state_sum if start else b"")
        return StateSum(end - 1) if end == self.num_prompt_tokens else None

    def move_to(self, status: Status) -> None:
        if status not in TRANSITIONS[self.status]:
            story = " -> ".join([*self.history, self.status])
            raise IllegalTransition(Invariant.PLACES, f"{self.request_id}: {story} cannot become {status}")
        self.history.append(self.status)
        self.status = status

    def __repr__(self) -> str:
        return (
            f"Sequence({self.request_id!r}, {self.status}, prompt={self.num_prompt_tokens}, "
            f"output={self.num_output_tokens}, computed={self.num_computed_tokens}, blocks={len(self.block_table)})"
        )
