"""A model without weights: the next token is a hash of all tokens before it.

It keeps its hashes in a KV pool and reads them back through the block tables, so a scheduler that mixes up blocks,
swaps or positions gets other tokens. Tests compare with the hashes of the tokens themselves. To inject faults,
``before_step``, which is called with the step's number when the blocks have been copied, may raise an exception or
advance a virtual clock.

Every row gets the hashed token, unless a ``sampler`` is given: that chooses from logits in which the hashed token's is
the highest.
"""

from collections.abc import Callable

import numpy as np

from ekiden.config import Config
from ekiden.models.load import ModelDescription
from ekiden.sampling.pooling import add_states, with_state_sum
from ekiden.sampling.reduction import FloatMatrix, FloatRow
from ekiden.sampling.sampler import Sampler, num_accepted, with_prompt_logprobs
from ekiden.state.plan import NO_TOKENS, BatchPlan, Row, RowResult, StepOutput
from ekiden.state.runner import ChunkRules, RunnerError, RunnerInfo

_MASK = (1 << 64) - 1
SEED = 0x9E3779B97F4A7C15
HIDDEN_SIZE = 8
_SERVED_BLOCKS = 4096


def mix(state: int, token: int) -> int:
    """One step of a 64-bit multiply-xorshift hash."""
    state = ((state ^ (token + 1)) * 0xBF58476D1CE4E5B9) & _MASK
    return state ^ (state >> 29)


def hidden_state(state: int) -> FloatRow:
    """A vector that stands for a hash: its bytes, between -1 and 1."""
    return (np.frombuffer(state.to_bytes(8, "little"), np.uint8).astype(np.float32) - 127.5) / 127.5


class FakeRunner:
    """A :class:`~ekiden.state.runner.ModelRunner`. Each pool position holds the hash of the prefix that ends there."""

    def __init__(
        self,
        *,
        vocab_size: int = 1000,
        num_blocks: int = 256,
        block_size: int = 16,
        num_swap_blocks: int = 0,
        max_model_len: int = 4096,
        max_drafts: int = 0,
        sampler: Sampler | None = None,
        before_step: Callable[[int], None] | None = None,
    ) -> None:
        self.info = RunnerInfo(
            backend="fake",
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            block_size=block_size,
            num_blocks=num_blocks,
            num_swap_blocks=num_swap_blocks,
            bytes_per_block=8 * block_size,
            chunks=ChunkRules(border=block_size, least=2),
            max_drafts=max_drafts,
            hidden_size=HIDDEN_SIZE,
        )
        self._pool = [[0] * block_size for _ in range(num_blocks)]
        self._swap = [[0] * block_size for _ in range(num_swap_blocks)]
        self._sampler = sampler
        self._before_step = before_step
        self.steps = 0
        self.computed_tokens = 0

    def execute(self, plan: BatchPlan) -> StepOutput:
        self.steps += 1
        for source, target in plan.swap_out:
            self._swap[target] = list(self._pool[source])
        for source, target in plan.swap_in:
            self._pool[target] = list(self._swap[source])
        if self._before_step is not None:
            self._before_step(self.steps)
        results = [self._result(row) for row in plan.rows]
        if self._sampler is not None and (sampled := [i for i, row in enumerate(plan.rows) if row.sampling]):
            rows = [plan.rows[index] for index in sampled]
            logits = np.concatenate([self._logits(row, row.logit_positions) for row in rows])
            for index, result in zip(sampled, self._sampler.sample(logits, rows), strict=True):
                results[index] = result
        for index, row in enumerate(plan.rows):
            if (asked := row.prompt_logits) is not None:
                lines = self._logits(row, range(asked.first, asked.first + len(asked.targets)))
                sampler, pairs = self._sampler or Sampler(), zip(lines, asked.targets, strict=True)
                found = [sampler.prompt_logprobs(line, target, asked.num_top) for line, target in pairs]
                results[index] = with_prompt_logprobs(results[index], found)
            if (summed := row.state_sum) is not None:
                states = np.stack([hidden_state(self._state_at(row, at)) for at in range(summed.first, row.end)])
                results[index] = with_state_sum(results[index], add_states(summed.before, states))
        return StepOutput(rows=results)

    def check(self) -> None:
        """It can always compute."""

    def _result(self, row: Row) -> RowResult:
        last = self._compute(row)
        result = NO_TOKENS
        if row.num_drafts:
            chosen = [self._state_at(row, position) % self.info.vocab_size for position in row.logit_positions]
            result = RowResult(tuple(chosen[: 1 + num_accepted(row, chosen)]))
        elif row.sampling is not None:
            result = RowResult((last % self.info.vocab_size,))
        return result

    def _logits(self, row: Row, positions: range) -> FloatMatrix:
        """Logits of 1 for the hashed token and 0 for the others."""
        logits = np.zeros((len(positions), self.info.vocab_size), np.float32)
        for line, position in zip(logits, positions, strict=True):
            line[self._state_at(row, position) % self.info.vocab_size] = 1.0
        return logits

    def _state_at(self, row: Row, position: int) -> int:
        """The hash of the row's tokens up to and including ``position``; at -1 the hash of no tokens."""
        size = self.info.block_size
        return SEED if position < 0 else self._pool[row.blocks[position // size]][position % size]

    def _compute(self, row: Row) -> int:
        """Write the row's hashes into its blocks; returns the last one."""
        size = self.info.block_size
        if row.end > len(row.blocks) * size:
            raise RunnerError(f"tokens {row.start}..{row.end} do not fit {len(row.blocks)} blocks of {size}")
        state = self._state_at(row, row.start - 1)
        for position, token in enumerate(row.token_ids, row.start):
            state = mix(state, token)
            self._pool[row.blocks[position // size]][position % size] = state
        self.computed_tokens += len(row.token_ids)
        return state

    def close(self) -> None:
        self._pool.clear()


# --- what the registry of backends asks of a module


def devices() -> tuple[str, ...]:
    return ("CPU",)


def load_runner(description: ModelDescription, config: Config) -> FakeRunner:
    """A runner with the model's vocabulary and context, and none of its weights."""
    return FakeRunner(
        vocab_size=description.vocab_size,
        num_blocks=_SERVED_BLOCKS,
        num_swap_blocks=_SERVED_BLOCKS,
        block_size=config.cache.block_size,
        max_model_len=config.model.max_model_len or description.max_position_embeddings,
        sampler=Sampler(
            eos_token_ids=description.tokenizer.eos_token_ids,
            ids_without_token=description.tokenizer.ids_without_token(description.vocab_size),
        ),
    )
