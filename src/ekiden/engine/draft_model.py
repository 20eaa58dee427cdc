"""Guesses by a smaller model with the same tokenizer, in the engine's process, on a runner with a pool of its own.

Rules:
- all sequences of a step are computed together: first what each has that the model has not seen, then one draft after
  another;
- what the model has computed of a sequence is found by comparing tokens, so whatever becomes of the sequence meanwhile
  (preemption, a pause, rejected drafts) needs no word to this module. When the pool is full, the sequence that was
  asked for longest ago loses its blocks, and is computed again when it is asked for;
- at most :data:`CATCH_UP` tokens are caught up with in one step, so that a long prompt holds up nobody: its sequence
  has no guess until the model has read it;
- a draft is drawn with the sequence's own parameters and random numbers, which makes it agree more often;
- a draft model that fails is never asked again, and no request ends by that.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ekiden.policies.lookup import Lookup
from ekiden.state.drafting import BY_MODEL, NO_GUESS, Ask, Drafter, Guess
from ekiden.state.plan import BatchPlan, Row, RowSampling
from ekiden.state.runner import ModelRunner
from ekiden.state.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

CATCH_UP: Final = 512
_FADING: Final = 0.9
_GREEDY: Final = RowSampling(SamplingParams(temperature=0.0), 0, 0)


@dataclass(slots=True)
class _Seen:
    """What the model has of one sequence: the tokens whose keys and values are in ``blocks``."""

    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Work:
    """One sequence of a step: the tokens that come next, and the drafts made of them."""

    ask: Ask
    seen: _Seen
    drafts: list[int] = field(default_factory=list)
    caught_up: bool = False

    @property
    def wanted(self) -> int:
        return min(self.ask.limit, self.ask.model_limit) - len(self.drafts)


class DraftModel(Drafter):
    """A :class:`Drafter` on a runner. ``vocab_size``: tokens from there on the target does not have."""

    def __init__(self, runner: ModelRunner, *, vocab_size: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._runner, self._vocab_size, self._clock = runner, vocab_size, clock
        self._seen: OrderedDict[str, _Seen] = OrderedDict()
        """The one asked for longest ago first."""
        self._free = list(range(runner.info.num_blocks - 1, -1, -1))
        self._guesses: dict[str, tuple[int, ...]] = {}
        self._seconds = 0.0
        self.failed = False

    @property
    def micros_per_draft(self) -> int:
        return round(self._seconds * 1e6)

    def prepare(self, asks: Sequence[Ask]) -> None:
        self._guesses = {}
        wanted = [ask for ask in asks if ask.model_limit > 0]
        if self.failed or not wanted:
            return
        began = self._clock()
        try:
            works = list(self._begin(wanted))
            self._draft(works)
        except Exception:
            logger.exception("the draft model failed; answers go on without its drafts")
            self.failed = True
            return
        self._guesses = {work.ask.request_id: tuple(work.drafts) for work in works if work.drafts}
        made = sum(len(work.drafts) for work in works)
        if made and all(work.caught_up for work in works):
            each = (self._clock() - began) / made
            self._seconds = self._seconds * _FADING + each * (1 - _FADING) if self._seconds else each

    def guess(self, ask: Ask) -> Guess:
        made = self._guesses.get(ask.request_id, ())
        usable = next((at for at, token in enumerate(made) if token >= self._vocab_size), len(made))
        return Guess(made[:usable], BY_MODEL) if usable else NO_GUESS

    def forget(self, request_id: str) -> None:
        seen = self._seen.pop(request_id, None)
        if seen is not None:
            self._free += seen.blocks

    def __len__(self) -> int:
        """The sequences of which it has computed something."""
        return len(self._seen)

    # --- one step

    def _begin(self, asks: list[Ask]) -> Iterator[_Work]:
        """Those that get blocks. The others have no guess in this step."""
        longest, now = self._runner.info.max_model_len, {ask.request_id for ask in asks}
        for ask in asks:
            end = len(ask.token_ids) + min(ask.limit, ask.model_limit)
            if end > longest:
                continue
            seen = self._seen.setdefault(ask.request_id, _Seen())
            self._seen.move_to_end(ask.request_id)
            if self._grow(seen, end, now):
                work = _Work(ask, seen)
                self._drop_wrong(work)
                yield work

    def _grow(self, seen: _Seen, num_tokens: int, now: set[str]) -> bool:
        missing = -(-num_tokens // self._runner.info.block_size) - len(seen.blocks)
        while missing > len(self._free):
            oldest = next((name for name in self._seen if name not in now), None)
            if oldest is None:
                return False
            self.forget(oldest)
        seen.blocks += [self._free.pop() for _ in range(missing)]
        return True

    def _drop_wrong(self, work: _Work) -> None:
        """Keep what is computed of the tokens that the sequence has; its newest one is always to be computed."""
        tokens, seen = work.ask.token_ids, work.seen.tokens
        kept = min(len(seen), len(tokens) - 1)
        if seen[:kept] != tokens[:kept]:
            kept = next(at for at in range(kept) if seen[at] != tokens[at])
        del seen[kept:]

    def _draft(self, works: list[_Work]) -> None:
        room, rows, reading = CATCH_UP, list[Row](), list[_Work]()
        for work in works:
            start, tokens = len(work.seen.tokens), work.ask.token_ids
            count = min(len(tokens) - start, room)
            left = len(tokens) - start - count
            if count < 1 or (count == 1 and left):
                continue
            work.caught_up = left == 0
            room -= count
            rows.append(self._row(work, len(rows), tuple(tokens[start : start + count])))
            reading.append(work)
        while rows:
            output = self._runner.execute(BatchPlan(rows))
            going_on = []
            for work, row, result in zip(reading, rows, output.rows, strict=True):
                work.seen.tokens += row.token_ids
                if work.caught_up and result.error is None:
                    work.drafts += result.tokens
                    if work.wanted > 0:
                        going_on.append(work)
            reading = going_on
            rows = [self._row(work, slot, (work.drafts[-1],)) for slot, work in enumerate(reading)]

    def _row(self, work: _Work, slot: int, tokens: tuple[int, ...]) -> Row:
        sampling = (work.ask.sampling or _GREEDY) if work.caught_up else None
        return Row(slot, len(work.seen.tokens), tokens, tuple(work.seen.blocks), sampling, prefill=len(tokens) > 1)


class LookupFirst(Drafter):
    """Lookup where the text repeats itself, else the draft model."""

    def __init__(self, lookup: Lookup, model: DraftModel) -> None:
        self._lookup, self._model = lookup, model

    @property
    def micros_per_draft(self) -> int:
        return self._model.micros_per_draft

    def prepare(self, asks: Sequence[Ask]) -> None:
        self._model.prepare([ask for ask in asks if ask.model_limit > 0 and not self._lookup.guess(ask).tokens])

    def guess(self, ask: Ask) -> Guess:
        found = self._lookup.guess(ask)
        return found if found.tokens else self._model.guess(ask)

    def forget(self, request_id: str) -> None:
        self._lookup.forget(request_id)
        self._model.forget(request_id)
