"""The runner: it divides a step into passes (``passes.py``) and calls the compiled model for each.

A row with drafts goes through the model as one row for each of its tokens (docs/decisions/0027).

:func:`_inputs_of` turns a pass into the model's input arrays. A pass's logits are a view of the model's output, so its
tokens are chosen before the next pass overwrites them.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain

from ekiden.backends.openvino.kv_pool import BLOCK_SIZE
from ekiden.backends.openvino.paged_model import InputRow, Inputs, PagedModel, flat_inputs
from ekiden.backends.openvino.passes import DUMMY, NO_LIMITS, Pass, PassLimits, split
from ekiden.backends.openvino.sizes import PassSizes
from ekiden.sampling.pooling import add_states, with_state_sum
from ekiden.sampling.sampler import Sampler, with_prompt_logprobs
from ekiden.state.plan import NO_TOKENS, BatchPlan, Row, StepOutput, StepTiming
from ekiden.state.request import TokenLogprobs
from ekiden.state.runner import ChunkRules, CopiesLost, RunnerInfo

PROMPT_LOGITS_LIMIT = 128
"""The most tokens of a pass with logits of prompts, since each takes as many floats as the vocabulary has tokens."""

MAX_DRAFTS = 16
"""The most drafts of a row, which must fit a pass: the smallest limit of a pass is 34 tokens."""

CHUNK_RULES = ChunkRules(border=BLOCK_SIZE, least=2, least_rows=2)
"""Other kernels, which round differently, compute a single token (docs/decisions/0001)."""


class OpenVINORunner:
    """A :class:`ekiden.state.runner.ModelRunner` on OpenVINO. Not thread-safe: one step at a time."""

    def __init__(
        self,
        model: PagedModel,
        info: RunnerInfo,
        sampler: Sampler | None = None,
        *,
        limits: PassLimits = NO_LIMITS,
        sizes: PassSizes | None = None,
    ) -> None:
        self.model = model
        self.limits = limits
        # In such a pass any token may want logits, so the limit of logits applies to tokens too.
        bounds = (PROMPT_LOGITS_LIMIT, limits.tokens, limits.logits)
        self._limits_with_prompt_logits = PassLimits(tokens=min(bound for bound in bounds if bound is not None))
        self.info = info
        self._sampler = sampler or Sampler()
        self._sizes = sizes or PassSizes()

    def execute(self, plan: BatchPlan) -> StepOutput:
        pool, rows = self.model.pool, plan.rows
        try:
            pool.swap_out(plan.swap_out)
            pool.swap_in(plan.swap_in)
        except Exception as error:
            raise CopiesLost(f"blocks of keys and values could not be copied: {error}") from error
        if plan.empty:
            return StepOutput(rows=[], passes=0)
        results = [NO_TOKENS] * len(rows)
        prompts: dict[int, list[TokenLogprobs | str]] = defaultdict(list)
        sums: dict[int, bytes] = {}
        model_seconds = sampling_seconds = 0.0
        passes = self._passes(rows)
        new_sizes = sum([self._sizes.fill(piece) for piece in passes])
        for piece in passes:
            asked, summed = list(_prompt_logits_of(piece, rows)), _states_of(piece, rows)
            inputs = _inputs_of(piece, rows, pool.scratch_block, [place for _, place, *_ in asked], summed)
            logits, seconds = self.model.compute(inputs)
            model_seconds += seconds
            began = time.perf_counter()
            wanted = len(piece.wanted)
            chosen = list(dict.fromkeys([piece.rows[index] for index in piece.wanted]))
            sampled = self._sampler.sample(logits[:wanted], [rows[row] for row in chosen]) if chosen else []
            for row, result in zip(chosen, sampled, strict=True):
                results[row] = result
            for (row, _, target, num_top), line in zip(asked, logits[wanted:], strict=False):
                prompts[row].append(self._sampler.prompt_logprobs(line, target, num_top))
            if summed:
                self._add_states(sums, summed, rows)
            sampling_seconds += time.perf_counter() - began
        for row, found in prompts.items():
            results[row] = with_prompt_logprobs(results[row], found)
        for row, total in sums.items():
            results[row] = with_state_sum(results[row], total)
        timing = StepTiming(model=model_seconds, sampling=sampling_seconds)
        padding_rows = sum(piece.rows.count(DUMMY) for piece in passes)
        return StepOutput(
            rows=results, timing=timing, padding_rows=padding_rows, passes=len(passes), new_sizes=new_sizes
        )

    def _add_states(self, sums: dict[int, bytes], summed: dict[int, range], rows: list[Row]) -> None:
        """Add a pass's hidden states to the sums of their rows. A row's passes come in the order of its tokens."""
        states = self.model.states()
        at = len(states) - sum(map(len, summed.values()))
        for row, places in summed.items():
            asked = rows[row].state_sum
            assert asked is not None
            sums[row] = add_states(sums.get(row, asked.before), states[at : at + len(places)])
            at += len(places)

    def check(self) -> None:
        """Compute a pass of padding tokens."""
        self.model.compute(flat_inputs([([0, 0], 0, [self.model.pool.scratch_block])], [0]))

    def _passes(self, rows: list[Row]) -> list[Pass]:
        limits = self.limits if all(row.prompt_logits is None for row in rows) else self._limits_with_prompt_logits
        starts, counts = [row.start for row in rows], [len(row.token_ids) for row in rows]
        wanted = [row.sampling is not None for row in rows]
        drafted = frozenset([index for index, row in enumerate(rows) if row.num_drafts])
        return split(starts, counts, wanted, limits=limits, block_size=BLOCK_SIZE, drafted=drafted)

    def close(self) -> None:
        """Release the model and the pool; the runner cannot be used afterwards."""
        self.model.close()


def _prompt_logits_of(piece: Pass, rows: list[Row]) -> Iterator[tuple[int, int, int, int]]:
    """The prompt positions whose logits a pass must give: the row, the index of the position among the pass's tokens,
    the token that follows it, and how many alternatives to report."""
    begin = 0
    for row, start, count in zip(piece.rows, piece.starts, piece.counts, strict=True):
        if row != DUMMY and (asked := rows[row].prompt_logits) is not None:
            for position in range(max(start, asked.first), min(start + count, asked.first + len(asked.targets))):
                yield row, begin + position - start, asked.targets[position - asked.first], asked.num_top
        begin += count


def _states_of(piece: Pass, rows: list[Row]) -> dict[int, range]:
    """The tokens of a pass whose hidden states are to be summed, for each row that has some."""
    found: dict[int, range] = {}
    begin = 0
    for row, start, count in zip(piece.rows, piece.starts, piece.counts, strict=True):
        if row != DUMMY and (asked := rows[row].state_sum) is not None and asked.first < start + count:
            found[row] = range(begin + max(0, asked.first - start), begin + count)
        begin += count
    return found


def _inputs_of(piece: Pass, rows: list[Row], scratch_block: int, places: list[int], summed: dict[int, range]) -> Inputs:
    parts: list[InputRow] = []
    for index, start, count in zip(piece.rows, piece.starts, piece.counts, strict=True):
        if index == DUMMY:
            parts.append(([0], 0, [scratch_block]))
            continue
        row = rows[index]
        first, needed = start - row.start, -(-(start + count) // BLOCK_SIZE)
        parts.append((row.token_ids[first : first + count], start, row.blocks[:needed]))
    return flat_inputs(parts, piece.wanted, places, list(chain.from_iterable(summed.values())))
