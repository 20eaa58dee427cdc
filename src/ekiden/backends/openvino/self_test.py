"""The start-up self-test: it finds up to how many tokens and logits in a pass a row's results keep the same bits.

Kernels may change their order of summation with the number of tokens in a pass. Whether and where they do so differs
between machines, so the test searches with the present model and settings. It computes two fixed rows, a decode and a
prefill, in passes of growing size, one at each end of the pass with filler rows between them, and compares their logits
bit by bit with those of the smallest passes. If a size changes the bits, a binary search finds the border to within
eight tokens. The head may use another kernel with a border of its own, in rows of logits; to find it, the test asks for
the logits of one token many times.

A start that finds an earlier result needs only two passes: among other rows, the fixed rows must give the same bits
that they gave in the smallest passes of the earlier test.

All filler rows hold the same tokens in the same block. They write equal values to it, so the test needs few blocks.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from ekiden.backends.openvino.kv_pool import BLOCK_SIZE
from ekiden.backends.openvino.paged_model import InputRow, PagedModel, flat_inputs
from ekiden.backends.openvino.passes import NO_LIMITS, PassLimits, least_limit
from ekiden.sampling.reduction import FloatMatrix

SELF_TEST_VERSION = 4
_STEP = 8
_PREFILL = BLOCK_SIZE + 8
_DECODE_CONTEXT = BLOCK_SIZE + 4
_FIRST_SIZE = 64
_DECODE_BLOCKS, _PREFILL_BLOCKS, _FILLER_BLOCK = [0, 1], [2, 3], 4
_FIXED_ROWS = 2
_LONGEST_LOOK = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestResult:
    """The largest passes that keep the bits; no limit means that the largest pass the engine plans does.

    ``failure`` says which comparison failed; strict determinism then does not hold on this machine. ``bits`` is a
    digest of the fixed rows' logits in the smallest passes. Relaxed determinism may leave a limit out.
    """

    limits: PassLimits = NO_LIMITS
    bits: str = ""
    failure: str | None = None
    drafts: bool = False
    """Whether a token checked beside drafts, and one after wrong drafts, has the bits that it has without them."""


class SelfTest:
    """Tests a fresh model, before the engine uses the pool. ``vocab_size`` bounds the token ids.

    ``most_tokens`` and ``most_logits`` are the largest numbers that the engine plans for a pass.
    """

    def __init__(self, model: PagedModel, *, vocab_size: int, most_tokens: int, most_logits: int) -> None:
        self._model = model
        self._most_tokens = most_tokens
        self._most_logits = min(most_logits, most_tokens)
        generator = np.random.default_rng(0)
        self._prompt: list[int] = generator.integers(0, vocab_size, _PREFILL).tolist()
        self._filler: list[int] = generator.integers(0, vocab_size, BLOCK_SIZE).tolist()
        self._seconds: dict[int, float] = {}
        self._context = self._prepare_context()
        self._alone = np.empty((0, 0), np.float32)

    def calibrate(self, *, strict: bool) -> SelfTestResult:
        """Find the limits. Not ``strict``: a limit of tokens is kept only if larger passes take more time per token."""
        decode = self._run(decode=True, prefill=False, size=2)
        prefill = self._run(decode=False, prefill=True, size=_PREFILL)
        self._alone = np.concatenate([decode, prefill])
        if failure := self._check_chunks() or self._check_sizes(_PREFILL + 2):
            return SelfTestResult(failure=failure)
        tokens = _find_limit(self._same, _PREFILL + 2, self._most_tokens)
        if tokens is not None and tokens < least_limit(BLOCK_SIZE):
            return SelfTestResult(failure=f"passes of over {tokens} tokens round differently")
        if not strict:
            kept = None if tokens is None or self._larger_is_faster(tokens) else tokens
            return SelfTestResult(
                limits=PassLimits(kept), bits=_digest(self._alone), drafts=self._drafts_change_nothing()
            )
        most_logits = min(self._most_logits, tokens or self._most_tokens)
        limits = PassLimits(tokens, _find_limit(partial(self._same, _PREFILL + 1), _FIXED_ROWS, most_logits))
        # Two sizes that the search has not tried, since it assumes that there is only one border.
        failure = self._check_sizes(_PREFILL + 3, max((tokens or self._most_tokens) - 5, _PREFILL + 2))
        drafts = self._drafts_change_nothing()
        return SelfTestResult(limits=limits, bits=_digest(self._alone), failure=failure, drafts=drafts)

    def holds(self, known: SelfTestResult) -> bool:
        """Check an earlier result quickly, with one pass of the size that it allows (at most :data:`_LONGEST_LOOK`)."""
        size = min(known.limits.tokens or self._most_tokens, _LONGEST_LOOK)
        logits = max(min(known.limits.logits or self._most_logits, size), _FIXED_ROWS)
        return _digest(self._together(size, logits)) == known.bits

    def _check_sizes(self, *sizes: int) -> str | None:
        differing = (size for size in sizes if not self._same(size))
        return next((f"a pass of {size} tokens rounds differently from one of 2" for size in differing), None)

    def _larger_is_faster(self, limit: int) -> bool:
        larger = min(2 * limit, self._most_tokens)
        for size in (limit, larger):
            self._seconds.pop(size, None)
            self._same(size)
        return self._seconds[larger] / larger < self._seconds[limit] / limit

    def _same(self, size: int, logits: int = _FIXED_ROWS) -> bool:
        """Whether both fixed rows have the same bits in a pass of ``size`` tokens as in the smallest passes."""
        return np.array_equal(self._together(size, logits), self._alone)

    def _together(self, size: int, logits: int = _FIXED_ROWS) -> FloatMatrix:
        return self._run(decode=True, prefill=True, size=size, logits=logits)

    def _check_chunks(self) -> str | None:
        """A prompt in two chunks, cut at a block border, must give the same logits as in one."""
        first = self._prompt[:BLOCK_SIZE]
        self._model.compute(flat_inputs([(first, 0, _PREFILL_BLOCKS[:1])], []))
        rest = self._prompt[BLOCK_SIZE:]
        logits, _ = self._model.compute(flat_inputs([(rest, BLOCK_SIZE, _PREFILL_BLOCKS)], [0]))
        return None if np.array_equal(logits[0], self._alone[1]) else "a prompt in chunks rounds differently"

    def _drafts_change_nothing(self) -> bool:
        """Whether three tokens have the same logits one after another as the first two in one pass, with a wrong draft
        behind them, and the third one after that. They do not where keys are quantised by the block."""
        one, two, three, wrong = *self._prompt[:3], self._filler[0]
        expected = np.concatenate([self._decode(one), self._decode(two, at=1), self._decode(three, at=2)])
        found = np.concatenate([self._decode(one, two, wrong)[:2], self._decode(three, at=2)])
        return np.array_equal(found, expected)

    def _decode(self, *tokens: int, at: int = 0) -> FloatMatrix:
        """Compute tokens after the decode row's context as rows of their own; returns their logits, copied. ``at``:
        after so many tokens that were computed before."""
        if at == 0:
            self._model.pool.restore(_DECODE_BLOCKS, self._context)
        rows: list[InputRow] = [([token], _DECODE_CONTEXT + at + i, _DECODE_BLOCKS) for i, token in enumerate(tokens)]
        inputs = flat_inputs([*rows, (self._filler[:1], 0, [_FILLER_BLOCK])], list(range(len(rows))))
        return np.array(self._model.compute(inputs)[0][: len(rows)], copy=True)

    def _prepare_context(self) -> list[npt.NDArray[np.uint8]]:
        """Compute the context of the decode row in its blocks and keep their bytes.

        With quantised keys a decode changes the whole block that it writes to, so every decode must start from the
        same bytes.
        """
        context = self._prompt[:_DECODE_CONTEXT]
        self._model.compute(flat_inputs([(context, 0, _DECODE_BLOCKS)], []))
        return self._model.pool.snapshot(_DECODE_BLOCKS)

    def _run(self, *, decode: bool, prefill: bool, size: int, logits: int = _FIXED_ROWS) -> FloatMatrix:
        """Compute a pass of ``size`` tokens (decode row, filler, prefill row); returns the fixed rows' logits, copied.

        ``logits`` above two asks for the first token's logits again until the pass computes so many rows.
        """
        rows: list[InputRow] = []
        if decode:
            self._model.pool.restore(_DECODE_BLOCKS, self._context)
            rows.append(([self._prompt[0]], _DECODE_CONTEXT, _DECODE_BLOCKS))
        filler = size - decode - prefill * _PREFILL
        rows += [(self._filler[: filler - at], 0, [_FILLER_BLOCK]) for at in range(0, filler, BLOCK_SIZE)]
        if prefill:
            rows.append((self._prompt, 0, _PREFILL_BLOCKS))
        wanted = [0] * decode + [len(rows) - 1] * prefill
        inputs = flat_inputs(rows, wanted, [0] * (logits - _FIXED_ROWS))
        found, self._seconds[size] = self._model.compute(inputs)
        return np.array(found[: len(wanted)], copy=True)


def _find_limit(same: Callable[[int], bool], good: int, most: int) -> int | None:
    """The largest size that keeps the bits, to within :data:`_STEP`; None if ``most`` keeps them too.

    ``same`` tells whether a size keeps the bits; ``good`` is a size that does.
    """
    size = min(_FIRST_SIZE, most)
    while same(size):
        if size == most:
            return None
        good, size = size, min(2 * size, most)
    bad = size
    while bad - good > _STEP:
        middle = (good + bad) // 2 // _STEP * _STEP
        if not good < middle < bad:
            break
        good, bad = (middle, bad) if same(middle) else (good, middle)
    return good


def _digest(logits: FloatMatrix) -> str:
    return hashlib.sha256(logits.tobytes()).hexdigest()
