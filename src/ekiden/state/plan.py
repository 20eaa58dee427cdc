"""What one step computes, and what came of it: values that hold no live sequence and can cross a process border.

A :class:`BatchPlan` is a list of rows. A row has the next tokens of one sequence to be computed. That is a chunk of its
prompt, or its newest token, perhaps followed by *drafts*: guesses of the tokens that come next. A draft is accepted
when the model chooses the same token at its place, so a decode row gives one token and one more for each accepted
draft.

Values of a row hold no cycles, so the garbage collector need not walk over them (``gc=False``).
"""

from typing import Final

import msgspec

from ekiden.state.request import TokenLogprobs
from ekiden.state.sampling_params import SamplingParams

BlockCopy = tuple[int, int]
"""Copies a block ``(from, to)``: from the pool to the swap space in ``swap_out``, the reverse in ``swap_in``."""


class RowSampling(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Everything beside the logits that the choice of a row's tokens depends on.

    The token at position ``p`` of a sequence is drawn with random numbers keyed by ``(seed, p)``.
    """

    params: SamplingParams
    seed: int
    num_prompt_tokens: int
    history: tuple[int, ...] = ()
    """The sequence's tokens up to the row's own, drafts not included. Given only where penalties count them."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that may not be chosen before the answer has ``params.min_tokens``, beside the model's own end tokens.
    Empty once it has."""
    masks: tuple[bytes, ...] = ()
    """For a row with a grammar, which tokens may come at each logit position: one bit for each token id, the lowest
    bit of the first byte being id 0."""


class PromptLogits(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Asks how likely the prompt's own tokens were: ``targets[i]`` is the token after position ``first + i``, and
    ``num_top`` alternatives are reported beside each."""

    first: int
    targets: tuple[int, ...]
    num_top: int


class StateSum(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Asks for the sum of the hidden states that the head reads, at the row's positions from ``first`` on.

    ``before`` is the sum over the sequence's earlier positions, to which these are added one by one in order. So the
    sum has the same bits however the prompt was cut. Sums are 64-bit floats as bytes; empty is nothing.
    """

    first: int
    before: bytes = b""


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part of a step that belongs to one sequence.

    The tokens take the positions ``start, start + 1, ...`` of the sequence; their keys and values are written through
    ``blocks``, the sequence's block table, and those of all earlier positions are there already.
    """

    slot: int
    """The slot of the sequence: no two rows of a plan have the same."""
    start: int
    token_ids: tuple[int, ...]
    blocks: tuple[int, ...]
    sampling: RowSampling | None
    """None where no token is chosen: for a chunk that does not reach the end of its prompt, and for a prompt that is
    only read."""
    prefill: bool = False
    num_drafts: int = 0
    """How many of the last ``token_ids`` are drafts."""
    prompt_logits: PromptLogits | None = None
    state_sum: StateSum | None = None

    @property
    def end(self) -> int:
        """The position after the row's last token."""
        return self.start + len(self.token_ids)

    @property
    def logit_positions(self) -> range:
        """The positions after which a token is chosen: the last one, and with drafts the one before each of them."""
        return range(self.end if self.sampling is None else self.end - self.num_drafts - 1, self.end)


class BatchPlan(msgspec.Struct, frozen=True, array_like=True):
    """One step. The runner applies ``swap_out``, then ``swap_in``, then computes the rows."""

    rows: list[Row] = []
    swap_out: list[BlockCopy] = []
    swap_in: list[BlockCopy] = []

    @property
    def empty(self) -> bool:
        return not self.rows

    @property
    def total_tokens(self) -> int:
        return sum([len(row.token_ids) for row in self.rows])


class RowResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The tokens that a row gave: none for a chunk that does not end its prompt, otherwise one, and one more for each
    accepted draft. ``logprobs`` has an entry for each token where they were asked for; ``prompt_logprobs`` one for each
    of the row's :class:`PromptLogits` targets.

    ``error``: why the row's own work failed (its penalties, its mask, its draw, its log-probabilities); None for a row
    that succeeded. Nothing else of a failed row may be used, its keys and values included.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    error: str | None = None
    state_sum: bytes = b""
    """The row's :class:`StateSum`, ``before`` included."""


NO_TOKENS: Final = RowResult()


class StepTiming(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How the seconds of one step were spent. ``started`` is a reading of the engine's clock, ``total`` is measured
    with it; ``model`` (the compiled passes) and ``sampling`` are the runner's own measurements."""

    started: float = 0.0
    total: float = 0.0
    model: float = 0.0
    sampling: float = 0.0

    @property
    def host(self) -> float:
        """The rest of the time, in which inputs are prepared and results handled."""
        return self.total - self.model - self.sampling


class StepOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What a step gave: one result for each row of the plan, in its order."""

    rows: list[RowResult]
    timing: StepTiming = StepTiming()
    padding_rows: int = 0
    """Dummy rows that the backend added to its passes."""
    passes: int = 1
    new_sizes: int = 0
    """Passes of a size that the backend had not computed before. They take longer, once, so their time says nothing of
    the next such step."""
    attempts: int = 1
    """How often the runner was called for it: more than once after it had failed."""
