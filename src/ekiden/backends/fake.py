"""A model without weights: the next token is a hash of all tokens before it.

It writes what it computes into a KV pool of its own and reads it back through the block tables, so a scheduler that
mixes up blocks, swaps or positions produces other tokens: tests and the simulation compare against :func:`next_token`.
Faults can be injected: ``before_step`` is called with the step's number and may raise
:class:`~ekiden.backends.base.RunnerError` or advance a virtual clock.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ekiden.backends.base import PassOutput, RunnerError, RunnerInfo
from ekiden.state.plan import BatchPlan

_MASK = (1 << 64) - 1
_SEED = 0x9E3779B97F4A7C15


def _mix(state: int, token: int) -> int:
    """One step of a 64-bit multiply-xorshift hash."""
    state = ((state ^ (token + 1)) * 0xBF58476D1CE4E5B9) & _MASK
    return state ^ (state >> 29)


def next_token(token_ids: Sequence[int], vocab_size: int) -> int:
    """What the fake model answers greedily after ``token_ids``."""
    return answer_to(token_ids, vocab_size, 1)[0]


def answer_to(token_ids: Sequence[int], vocab_size: int, count: int) -> list[int]:
    """The first ``count`` tokens that the fake model answers greedily after ``token_ids``."""
    state = _SEED
    for token in token_ids:
        state = _mix(state, token)
    answer: list[int] = []
    while len(answer) < count:
        answer.append(state % vocab_size)
        state = _mix(state, answer[-1])
    return answer


class FakeRunner:
    """A :class:`~ekiden.backends.base.ModelRunner`. Each pool position holds the hash of the prefix that ends there."""

    def __init__(
        self,
        *,
        vocab_size: int = 1000,
        num_blocks: int = 256,
        block_size: int = 16,
        num_swap_blocks: int = 0,
        max_model_len: int = 4096,
        before_step: Callable[[int], None] | None = None,
    ) -> None:
        self._info = RunnerInfo(
            backend="fake",
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            block_size=block_size,
            num_blocks=num_blocks,
            num_swap_blocks=num_swap_blocks,
            bytes_per_block=8 * block_size,
        )
        self._pool = [[0] * block_size for _ in range(num_blocks)]
        self._swap = [[0] * block_size for _ in range(num_swap_blocks)]
        self._before_step = before_step
        self.steps = 0
        self.computed_tokens = 0

    @property
    def info(self) -> RunnerInfo:
        return self._info

    def execute(self, plan: BatchPlan) -> Iterator[PassOutput]:
        self.steps += 1
        if self._before_step is not None:
            self._before_step(self.steps)
        for source, target in plan.swap_out:
            self._swap[target] = list(self._pool[source])
        for source, target in plan.swap_in:
            self._pool[target] = list(self._swap[source])
        rows: list[int] = []
        chosen: list[int] = []
        positions: list[tuple[int, int]] = []
        for index, (sequence, count) in enumerate(zip(plan.sequences, plan.num_tokens, strict=True)):
            state = self._compute(sequence.token_ids, sequence.block_table, sequence.num_computed_tokens, count)
            if sequence.num_computed_tokens + count == len(sequence.token_ids):
                rows.append(index)
                chosen.append(state % self._info.vocab_size)
            if asked := sequence.prompt_logit_positions(count):
                positions += [(index, position) for position in asked]
        chosen += [
            self._state_at(plan.sequences[row].block_table, position) % self._info.vocab_size
            for row, position in positions
        ]
        logits = np.zeros((len(chosen), self._info.vocab_size), np.float32)
        logits[np.arange(len(chosen)), chosen] = 1.0
        yield PassOutput(rows=rows, logits=logits, model_seconds=0.0, prompt_positions=positions)

    def _state_at(self, table: list[int], position: int) -> int:
        size = self._info.block_size
        return self._pool[table[position // size]][position % size]

    def _compute(self, token_ids: list[int], table: list[int], start: int, count: int) -> int:
        size = self._info.block_size
        if start + count > len(table) * size:
            raise RunnerError(f"tokens {start}..{start + count} do not fit {len(table)} blocks of {size}")
        state = self._pool[table[(start - 1) // size]][(start - 1) % size] if start else _SEED
        for position in range(start, start + count):
            state = _mix(state, token_ids[position])
            self._pool[table[position // size]][position % size] = state
        self.computed_tokens += count
        return state

    def close(self) -> None:
        self._pool.clear()


class GreedySampler:
    """Chooses the highest logit of each row; all that the fake model needs."""

    def sample(self, logits: np.ndarray, sequences: Sequence[object]) -> tuple[list[int], None]:
        return logits.argmax(axis=1).tolist(), None
