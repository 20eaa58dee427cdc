"""The start-up self-test: up to how many tokens a pass gives the same bits, and whether it does at all.

Kernels may change their order of summation with the number of tokens in a pass. Whether and where differs between
machines, so it is looked for with the model and the settings at hand: two fixed rows, a decode and a prefill, are
computed in passes of growing size, one at each end of the pass with filler between, and compared bit by bit with what
they give almost alone. A border, where there is one, is closed in on in steps of eight tokens.

A start with an earlier result at hand needs only two passes: with neighbours the fixed rows must give the very bits
that they gave almost alone when that result was found.

The filler rows all hold the same tokens in the same block: they write equal values, so the test needs few blocks.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ekiden.backends.base import FloatMatrix
from ekiden.backends.openvino.kv_pool import BLOCK_SIZE
from ekiden.backends.openvino.paged_model import PagedModel, flat_inputs
from ekiden.backends.openvino.passes import least_limit

SELF_TEST_VERSION = 3
_STEP = 8
_PREFILL = BLOCK_SIZE + 8
_DECODE_CONTEXT = BLOCK_SIZE + 4
_FIRST_SIZE = 64
_DECODE_BLOCKS, _PREFILL_BLOCKS, _FILLER_BLOCK = [0, 1], [2, 3], 4
_LONGEST_LOOK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestResult:
    """``pass_limit`` None: no size up to the largest that the engine plans changed a bit (or, relaxed, none is set).

    ``failure`` says what did not come out the same; then strict determinism does not hold on this machine.
    ``bits`` is a digest of what the fixed rows gave almost alone.
    """

    pass_limit: int | None
    bits: str = ""
    failure: str | None = None


class SelfTest:
    """Runs on a fresh model, before the engine owns the pool. ``vocab_size`` bounds the tokens it uses."""

    def __init__(self, model: PagedModel, *, vocab_size: int, max_num_batched_tokens: int) -> None:
        self._model = model
        self._largest = max_num_batched_tokens
        generator = np.random.default_rng(0)
        self._prompt: list[int] = generator.integers(0, vocab_size, _PREFILL).tolist()
        self._filler: list[int] = generator.integers(0, vocab_size, BLOCK_SIZE).tolist()
        self._seconds: dict[int, float] = {}
        self._context = self._prepare_context()
        self._alone = np.empty((0, 0), np.float32)

    def calibrate(self, *, strict: bool) -> SelfTestResult:
        """Find the limit. Relaxed: it is kept only where larger passes were slower by the token."""
        decode = self._run(decode=True, prefill=False, size=2)
        prefill = self._run(decode=False, prefill=True, size=_PREFILL)
        self._alone = np.concatenate([decode, prefill])
        failure = self._check_chunks()
        if failure is None and not self._same(_PREFILL + 2):
            failure = f"a pass of {_PREFILL + 2} tokens rounds differently from one of 2"
        if failure is not None:
            return SelfTestResult(pass_limit=None, failure=failure)
        limit = self._find_limit()
        if limit is not None and limit < least_limit(BLOCK_SIZE):
            return SelfTestResult(pass_limit=None, failure=f"passes of over {limit} tokens round differently")
        if limit is not None and not strict and self._larger_is_faster(limit):
            limit = None
        failure = self._check_between(limit) if strict else None
        return SelfTestResult(pass_limit=limit, bits=_digest(self._alone), failure=failure)

    def holds(self, known: SelfTestResult) -> bool:
        """A quick look at an earlier result: a pass of the most tokens it allows, but not more than a short one."""
        return _digest(self._together(min(known.pass_limit or self._largest, _LONGEST_LOOK))) == known.bits

    def _check_between(self, limit: int | None) -> str | None:
        """Sizes that no search step has tried: the search takes for granted that there is one border."""
        for size in (_PREFILL + 3, max((limit or self._largest) - 5, _PREFILL + 2)):
            if not self._same(size):
                return f"a pass of {size} tokens rounds differently from one of 2"
        return None

    def _find_limit(self) -> int | None:
        """The largest size, up to a step, below the first change; None when there is no change."""
        good, size = _PREFILL + 2, min(_FIRST_SIZE, self._largest)
        while self._same(size):
            if size == self._largest:
                return None
            good, size = size, min(2 * size, self._largest)
        bad = size
        while bad - good > _STEP:
            middle = (good + bad) // 2 // _STEP * _STEP
            if not good < middle < bad:
                break
            good, bad = (middle, bad) if self._same(middle) else (good, middle)
        return good

    def _larger_is_faster(self, limit: int) -> bool:
        for size in (limit, min(2 * limit, self._largest)):
            self._seconds.pop(size, None)
            self._same(size)
        larger = min(2 * limit, self._largest)
        return self._seconds[larger] / larger < self._seconds[limit] / limit

    def _same(self, size: int) -> bool:
        """Whether both rows come out of a pass of ``size`` tokens as they did before."""
        return np.array_equal(self._together(size), self._alone)

    def _together(self, size: int) -> FloatMatrix:
        return self._run(decode=True, prefill=True, size=size)

    def _check_chunks(self) -> str | None:
        """A prompt in two chunks, cut at a block border, must end as it does in one."""
        first = self._prompt[:BLOCK_SIZE]
        self._model.compute(flat_inputs(first, [0], [BLOCK_SIZE], _PREFILL_BLOCKS[:1], [1], []))
        rest = self._prompt[BLOCK_SIZE:]
        logits, _ = self._model.compute(flat_inputs(rest, [BLOCK_SIZE], [len(rest)], _PREFILL_BLOCKS, [2], [0]))
        return None if np.array_equal(logits[0], self._alone[1]) else "a prompt in chunks rounds differently"

    def _prepare_context(self) -> list[npt.NDArray[np.uint8]]:
        """Compute the context of the decode row in its blocks, and keep their bytes: with quantised keys a decode
        changes the whole block it writes to, so each one must start from the same."""
        context = self._prompt[:_DECODE_CONTEXT]
        self._model.compute(flat_inputs(context, [0], [_DECODE_CONTEXT], _DECODE_BLOCKS, [2], []))
        return self._model.pool.snapshot(_DECODE_BLOCKS)

    def _run(self, *, decode: bool, prefill: bool, size: int) -> FloatMatrix:
        """A pass of ``size`` tokens: the decode row, filler, the prefill row. The logits of the fixed rows, copied."""
        tokens: list[int] = []
        starts: list[int] = []
        counts: list[int] = []
        blocks: list[int] = []
        block_counts: list[int] = []
        wanted: list[int] = []

        def add(row: list[int], start: int, table: list[int], *, fixed: bool) -> None:
            if fixed:
                wanted.append(len(counts))
            tokens.extend(row)
            starts.append(start)
            counts.append(len(row))
            blocks.extend(table)
            block_counts.append(len(table))

        if decode:
            self._model.pool.restore(_DECODE_BLOCKS, self._context)
            add([self._prompt[0]], _DECODE_CONTEXT, _DECODE_BLOCKS, fixed=True)
        filler = size - decode - prefill * _PREFILL
        while filler > 0:
            count = min(filler, BLOCK_SIZE)
            add(self._filler[:count], 0, [_FILLER_BLOCK], fixed=False)
            filler -= count
        if prefill:
            add(self._prompt, 0, _PREFILL_BLOCKS, fixed=True)
        logits, seconds = self._model.compute(flat_inputs(tokens, starts, counts, blocks, block_counts, wanted))
        self._seconds[size] = seconds
        return np.array(logits[: len(wanted)], copy=True)


def _digest(logits: FloatMatrix) -> str:
    return hashlib.sha256(logits.tobytes()).hexdigest()
