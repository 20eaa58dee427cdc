"""What one step will compute, and what came of it.

A plan is a list of rows in struct-of-arrays form: sequence ``i`` contributes ``num_tokens[i]`` tokens, the next
uncomputed ones of its ``token_ids``. A row may hold several tokens (a prefill chunk now, speculative tokens later).
"""

from dataclasses import dataclass, field
from enum import StrEnum

from ekiden.state.request import TokenLogprobs
from ekiden.state.sequence import Sequence


class LeftOutReason(StrEnum):
    """Why a running sequence got no tokens in a step."""

    TOKEN_BUDGET = "token_budget"
    CONCURRENT_PREFILLS = "concurrent_prefills"
    INTER_TOKEN_TARGET = "inter_token_target"
    KV_BLOCKS = "kv_blocks"
    PREFIX_IN_FLIGHT = "prefix_in_flight"


@dataclass(slots=True, kw_only=True)
class BatchPlan:
    """The rows of one step. The runner applies ``swap_out``, then ``swap_in``, then computes the rows.

    A swap is a pair ``(from_block, to_block)``: pool to swap space for ``swap_out``, the reverse for ``swap_in``.
    """

    sequences: list[Sequence] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    total_tokens: int = 0
    token_budget: int = 0
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    runners_up: list[Sequence | None] = field(default_factory=list)
    """For each victim, who would have been it otherwise."""
    left_out: list[tuple[Sequence, LeftOutReason]] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not self.sequences

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        self.sequences.append(sequence)
        self.num_tokens.append(num_tokens)
        self.total_tokens += num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """Seconds of one step by where they went. ``started`` is a reading of the engine's clock."""

    started: float = 0.0
    total: float = 0.0
    model: float = 0.0
    sampling: float = 0.0

    @property
    def host(self) -> float:
        """What is left: handling of inputs and results."""
        return self.total - self.model - self.sampling


@dataclass(slots=True, kw_only=True)
class StepOutput:
    """For each row of the plan the tokens it produced: none for a prefill chunk that is not the last."""

    tokens: list[tuple[int, ...]]
    logprobs: list[TokenLogprobs | None] | None = None
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    """By row, for the positions of :meth:`Sequence.prompt_logit_positions` in order."""
    timing: StepTiming = field(default_factory=StepTiming)
    padding_rows: int = 0
    passes: int = 1
