"""Abstention: a request whose deadline cannot be met is refused at once, or as soon as that is certain, and not late.

For a request with a deadline, :class:`Abstention` predicts when it would have its first token and its end, each as p10,
p50 and p90. It is refused when even the p10 comes after the deadline. So every part of the p10 is one that the request
has little chance to beat (docs/decisions/0022 says how each was chosen):

- *the wait* for a slot, from the rate at which those that were held back joined (:class:`ServiceRate`), for those that
  would certainly join before it; none while nobody is held back;
- *the prompts* that were admitted before it and are not computed, since they are computed in that order, then its own.
  A block that two of them share counts once, and one that is in the cache not at all;
- *its tokens*: as many as it asked for if nothing can end it earlier, else the p10 of its tenant's answers once ten are
  known, else one; each costs a step beside those neighbours that are expected to last.

A step costs what :meth:`StepTimeForecaster.least` says, which is nothing while too little is known. All of this is
made of what the ledger records, so a replay refuses the same requests with the same estimates.

A request that waits is looked at again when half of the time has passed that it has to spare. That is a few times for
each request and never a walk through the queue: see :meth:`Abstention.hopeless`.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from math import ceil
from typing import Final, NamedTuple

from ekiden.guardrails.signals import Signals
from ekiden.kv_cache.kv_cache_manager import KVCacheManager
from ekiden.state.controls import ControlsInForce
from ekiden.state.policy import StepLoad, StepTimeForecaster
from ekiden.state.population import Population
from ekiden.state.request import Estimate, Quantiles, Refusal, RefusalReason
from ekiden.state.sequence import Sequence, Status

MAX_LOOKS: Final = 16
"""Most waiting requests that are looked at again at one boundary; more than that are looked at after the next step."""
_LEAST_SHARE: Final = 1 / 8
"""Part of the time to the deadline after which a waiting request is looked at again at the earliest."""
_LEAST_PAUSE: Final = 0.005
"""Seconds likewise."""


class _Work(NamedTuple):
    """Prompt tokens to be computed, and their pairs with earlier tokens."""

    tokens: int = 0
    pairs: int = 0


class _Peer(NamedTuple):
    """A running answer: the tokens that it will take at least, by its own limit or its tenant's median, and its
    length."""

    left: int
    length: int


@dataclass(slots=True)
class _Company:
    """What runs, as one boundary finds it. ``prompts`` has the uncomputed prompts, of those that share a block one."""

    prompts: dict[object, _Work] = field(default_factory=dict)
    peers: list[_Peer] = field(default_factory=list)
    context: int = 0
    """The length of all peers."""

    def add_prompt(self, key: object, work: _Work) -> None:
        self.prompts[key] = max(self.prompts.get(key, _Work()), work)

    def ahead_of(self, key: object, own: _Work) -> _Work:
        """Everything that is to be computed until a prompt that comes last is."""
        works = [own, *(max(work, own) if k == key else work for k, work in self.prompts.items())]
        if key in self.prompts:
            works = works[1:]
        return _Work(sum(work.tokens for work in works), sum(work.pairs for work in works))


@dataclass(slots=True, kw_only=True, eq=False)
class Abstention:
    """``tokens_per_row``: how many tokens one decode row can give in a step at most, drafts included."""

    controls: ControlsInForce
    population: Population
    kv: KVCacheManager
    signals: Signals
    step_time: StepTimeForecaster
    tokens_per_row: Callable[[], float] = lambda: 1.0
    _company: _Company | None = None
    _looks: list[tuple[float, int, Sequence]] = field(default_factory=list)
    """A heap of the waiting requests, by when each is looked at again."""
    _numbers: "count[int]" = field(default_factory=count)

    def begin_turn(self) -> None:
        """What runs may have changed since."""
        self._company = None

    def judge(self, sequence: Sequence, now: float) -> Refusal | None:
        """The refusal of a newcomer that cannot meet its deadline. Its estimate is kept in the sequence."""
        deadline = sequence.request.deadline
        if deadline is None or deadline <= now or not self.controls.now.abstain:
            return None
        estimate = sequence.estimate = self.estimate(sequence, now)
        partial = sequence.request.takes_partial
        least = estimate.least(partial=partial)
        if least <= estimate.left:
            return None
        short = estimate.alone is not None and estimate.alone > estimate.left
        way_out = "allow more time or ask for fewer tokens" if short else "try later, or allow more time"
        return Refusal(
            reason=RefusalReason.DEADLINE_TOO_SHORT if short else RefusalReason.DEADLINE_TOO_BUSY,
            message=f"{in_words(estimate, partial=partial, alone=short)}; {way_out}",
            retry_after=None if short else max(1.0, least - estimate.left),
            estimate=estimate,
        )

    def accepted(self, sequence: Sequence, now: float) -> None:
        """A newcomer waits from now on."""
        if self._company is not None and self._counts_queued:
            self._company.add_prompt(*self._own_prompt(sequence))
        if sequence.estimate is not None:
            self._look_again(sequence, sequence.estimate, now)

    @property
    def next_look(self) -> float | None:
        """When a waiting request is to be looked at again."""
        return self._looks[0][0] if self._looks and self.controls.now.abstain else None

    def hopeless(self, now: float) -> list[tuple[Sequence, str]]:
        """The waiting requests that can no longer meet their deadlines, each with why; its estimate is in it.

        Each look costs a walk over what runs, at most once a turn, and a search in the queue's order. They become rarer
        by halves until little is left, and are at most :data:`MAX_LOOKS` a turn.
        """
        looks = self._looks
        found: list[tuple[Sequence, str]] = []
        if not self.controls.now.abstain:
            looks.clear()
        for _ in range(MAX_LOOKS):
            if not looks or looks[0][0] > now:
                break
            sequence = heapq.heappop(looks)[2]
            if self.population.by_id.get(sequence.request_id) is not sequence or sequence.admission:
                continue  # it has ended, or it runs
            estimate = self.estimate(sequence, now)
            partial = sequence.request.takes_partial
            if sequence.status is Status.WAITING and estimate.least(partial=partial) > estimate.left:
                sequence.estimate = estimate
                found.append((sequence, f"it still waits: {in_words(estimate, partial=partial)}; try later"))
            elif estimate.left > 0.0:
                self._look_again(sequence, estimate, now)
        return found

    def _look_again(self, sequence: Sequence, estimate: Estimate, now: float) -> None:
        spare = max(0.0, estimate.left - estimate.least(partial=sequence.request.takes_partial))
        pause = max(spare / 2, estimate.left * _LEAST_SHARE, _LEAST_PAUSE)
        heapq.heappush(self._looks, (now + pause, next(self._numbers), sequence))

    # --- the prediction

    def estimate(self, sequence: Sequence, now: float) -> Estimate:
        """When a request with a deadline that has no slot would have its first token and its end."""
        request = sequence.request
        assert request.deadline is not None
        company = self._company = self._company or self._look_around()
        wait = self._wait(sequence)
        key, own = self._own_prompt(sequence)
        work = company.ahead_of(key, own)
        # Who waits may find its prompt computed by others.
        last = _Work(1, sequence.num_prompt_tokens) if wait[0] > 0.0 and self.kv.prefix_caching else own
        first = max(wait[0] + self._prompt_least(last), self._prompt_least(work))
        usual, slow = self._prompt_usual(work)
        firsts = (first, max(first, wait[1] + usual), max(first, wait[2] + slow))
        ends = self._ends(sequence, company, firsts, self._steps(work))
        left, alone = round(request.deadline - now, 6), None
        if (firsts if request.takes_partial else ends)[0] > left:
            answer = 0.0 if request.takes_partial else self._tokens_least(sequence, _Company(), 0)
            alone = round(self._prompt_least(own) + answer, 6)
        return Estimate(left, _rounded(wait), _rounded(firsts), _rounded(ends), alone)

    @property
    def _counts_queued(self) -> bool:
        """Whether all that wait now join with a newcomer, and before it."""
        return not self.signals.service_rate.held and self.controls.now.scheduling_policy == "fcfs"

    def _look_around(self) -> _Company:
        company, lengths = _Company(), self.signals.output_lengths
        for sequence in self.population.running:
            if sequence.is_prefilling:
                company.add_prompt(*self._prompt_from(sequence, sequence.num_computed_tokens))
            if sequence.request.reading is None:
                room = sequence.max_total_tokens - len(sequence.token_ids)
                if not _has_known_length(sequence):
                    usual = lengths.trusted(sequence.request.tenant)
                    room = min(room, 0 if usual is None else max(0, usual[1] - sequence.num_output_tokens))
                company.peers.append(_Peer(room, len(sequence.token_ids)))
                company.context += len(sequence.token_ids)
        if self._counts_queued:
            for sequence in self.population.queued.values():
                company.add_prompt(*self._own_prompt(sequence))
        return company

    def _own_prompt(self, sequence: Sequence) -> tuple[object, _Work]:
        """Of one that has no slot."""
        return self._prompt_from(sequence, self.kv.num_cached(sequence))

    def _prompt_from(self, sequence: Sequence, computed: int) -> tuple[object, _Work]:
        """What is to be computed of its prompt, and a key that is the same for two prompts of which one takes over what
        the other computes."""
        left = sequence.num_prompt_tokens - computed
        key = self.kv.key_after(sequence, computed) or sequence.request_id
        return key, _Work(left, left * (computed + left // 2))

    def _wait(self, sequence: Sequence) -> Quantiles:
        ahead = self.population.waiting.num_ahead(sequence)
        if not self.signals.service_rate.held:
            ahead -= self.population.num_free_slots
        expected = self.signals.service_rate.seconds_for(ahead + 1) if ahead >= 0 else None
        if expected is not None:
            return expected
        usual = sequence.expected_wait or 0.0
        return (0.0, usual, usual)

    def _steps(self, work: _Work) -> int:
        return -(-work.tokens // self.controls.now.max_num_batched_tokens)

    def _each(self, work: _Work) -> StepLoad:
        """The mean load of the steps that prompts are computed in."""
        steps = max(1, self._steps(work))
        return StepLoad(prefill_tokens=work.tokens // steps, prefill_pairs=work.pairs // steps)

    def _prompt_least(self, work: _Work) -> float:
        return self._steps(work) * self.step_time.least(self._each(work))

    def _prompt_usual(self, work: _Work) -> tuple[float, float]:
        """p50 and p90."""
        steps, predicted = self._steps(work), self.step_time.predict(self._each(work))
        return steps * predicted.p50, steps * predicted.p90

    def _ends(self, sequence: Sequence, company: _Company, firsts: Quantiles, prompt_steps: int) -> Quantiles:
        if sequence.request.reading is not None:
            return firsts
        most = sequence.max_total_tokens - sequence.num_prompt_tokens
        usual = self.signals.output_lengths.expect(sequence.request.tenant)
        likely = (most, most) if usual is None or _has_known_length(sequence) else usual[1:]
        rows = min(len(company.peers) + 1, self.controls.now.max_num_seqs)
        context = company.context + sequence.num_prompt_tokens + most // 2
        predicted = self.step_time.predict(StepLoad(decode_rows=rows, decode_context=context))
        least = firsts[0] + self._tokens_least(sequence, company, prompt_steps)
        p50 = max(least, firsts[1] + (min(most, likely[0]) - 1) * predicted.p50)
        return least, p50, max(p50, firsts[2] + (min(most, likely[1]) - 1) * predicted.p90)

    def _tokens_least(self, sequence: Sequence, company: _Company, passed: int) -> float:
        """Seconds from its first token to its last one, at least. ``passed``: steps in which its neighbours go on until
        then; those that join meanwhile take the places of those that leave, as far as anybody is held back."""
        if sequence.request.reading is not None:
            return 0.0
        most = sequence.max_total_tokens - sequence.num_prompt_tokens
        tokens = most
        if not _has_known_length(sequence):
            usual = self.signals.output_lengths.trusted(sequence.request.tenant)
            tokens = min(most, max(1, sequence.request.sampling.min_tokens, 0 if usual is None else usual[0]))
        pace = self.tokens_per_row()
        steps = ceil(max(0, tokens - 1) / pace)
        if steps == 0:
            return 0.0
        passed = 0 if self.signals.service_rate.held else int(passed * pace)
        shared = context = 0
        for left, length in company.peers:
            together = min(max(0, left - passed), tokens)
            shared += together
            context += together * length
        own = sequence.num_prompt_tokens + tokens // 2
        load = StepLoad(decode_rows=1 + shared // tokens, decode_context=own + context // tokens)
        return steps * self.step_time.least(load)


def _has_known_length(sequence: Sequence) -> bool:
    """Whether nothing but its length can end the answer."""
    sampling = sequence.request.sampling
    return sampling.ignore_eos and not (sampling.stop or sampling.stop_token_ids or sampling.grammar)


def _rounded(seconds: Quantiles) -> Quantiles:
    """To microseconds, as all times in the ledger are."""
    p10, p50, p90 = seconds
    return round(p10, 6), round(p50, 6), round(p90, 6)


def in_words(estimate: Estimate, *, partial: bool, alone: bool = False) -> str:
    """What the client is told."""
    what, when = ("first token", estimate.first_token) if partial else ("answer", estimate.end)
    text = f"the deadline is in {estimate.left:.2f} s and the {what} would take at least {when[0]:.2f} s"
    if alone and estimate.alone is not None:
        return f"{text}, {estimate.alone:.2f} s of that on an engine with nothing else to do"
    waits = f", {estimate.wait[0]:.2f} s of that in the queue" if estimate.wait[0] > 0.0 else ""
    return f"{text}{waits} (most likely {when[1]:.2f} to {when[2]:.2f} s)"
