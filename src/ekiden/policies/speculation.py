"""How many tokens are guessed ahead for each decode row of a step. It decides; a :class:`Drafter` guesses.

Rules (docs/decisions/0027 has the figures):
- the step gets as many drafts as make the most tokens a second of it: each has a chance to be right, the drafts before
  it included, and costs what one more row costs by the step-time model. Prompt chunks in the step are left out of this,
  so that they do not make a draft look cheap;
- a step of another number of tokens than the last one takes longer, where the backend says so: drafts beyond the size
  that the backend would keep are charged for that, and for a part of the way back;
- places go to the likeliest drafts first, whoever's they are, and only what no other sequence can use of the token
  budget and the KV pool is given to them. They never break the inter-token target;
- a chance is what was accepted so far of drafts like it (:mod:`ekiden.policies.draft_chances`);
- drafts in the place of rows with which the backend would fill the step cost little, or nothing where it always does;
- a request whose drafts fail has fewer, then none for a while: each guess that was not worth a place forgives a little
  of what is known against it, so that it is tried again, ever more rarely;
- the first step with drafts has two a row at most, on average; as long as half of them are right each may have twice as
  many as the one before, and otherwise half, so that chances that are wrong cost a full batch little;
- when guesses have been too dear for long, a few are tried all the same, so that the step-time model learns what a row
  costs also where the number of rows never changes;
- each row that could have had drafts and got none has its reason (:class:`NoDrafts`).

What is kept of a request is in :attr:`Sequence.drafting`, and ends with it. All follows from recorded values.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from ekiden.kv_cache.kv_cache_manager import KVCacheManager
from ekiden.policies.draft_chances import GROUNDS, MODEL, DraftChances, ground_of
from ekiden.policies.draft_price import MARGIN, StepPrice, StepSize
from ekiden.state.containment import contained
from ekiden.state.controls import ControlsInForce
from ekiden.state.drafting import BY_GRAMMAR, BY_MODEL, NO_GUESS, Ask, Drafter, Drafting, Guess, NoDrafts
from ekiden.state.policy import StepLoad, StepTimePredictor
from ekiden.state.sequence import Sequence, Stage
from ekiden.state.turn import FormationOutcome, Guessed

_GAIN: Final = 1.03
"""Drafts must make this of a step without them: what they save is an estimate, what they cost is not."""
_LEAST_SECONDS: Final = 1e-6
_LOOK_ROWS: Final = 8
"""One more row costs an eighth of what so many more cost, and so many are tried to learn that."""
_CHANGES: Final = 3
"""Changes of size that it costs to have had drafts for some steps: back to the size without them, the rows that are
computed in vain until then, and what a new size costs once. As many steps share them as drafts usually go on for."""
_STAY: Final = 4.0
_STAY_FADING: Final = 0.7
_WIDEST: Final = 4096
_PATIENCE: Final = 64
"""Steps with guesses and without drafts after which some are tried."""
_ANSWERS: Final = 64
"""Ended answers of which the fastest tells how many tokens a row may give in a step."""


class Chosen(NamedTuple):
    """The drafts of a row of the plan, by its index; ``masks`` has one more where a grammar is followed."""

    row: int
    drafts: tuple[int, ...]
    masks: tuple[bytes, ...]


class _Offer(NamedTuple):
    """What one row could take: drafts, and for each the chance that it and all before it are right."""

    row: int
    drafts: tuple[int, ...]
    masks: tuple[bytes, ...]
    chances: list[float]


@dataclass(slots=True, kw_only=True, eq=False)
class Speculation:
    """``max_drafts``, ``tokens_per_change`` and ``least_rows``: see :class:`~ekiden.state.runner.RunnerInfo`."""

    drafter: Drafter
    controls: ControlsInForce
    kv: KVCacheManager
    step_time: StepTimePredictor
    max_drafts: int
    least_rows: int = 1
    tokens_per_change: int = 0
    _chances: DraftChances = field(default_factory=DraftChances)
    _waited: int = 0
    """Steps with guesses and without drafts, one after another."""
    _window: int = _LOOK_ROWS
    """The most drafts in a step."""
    _last_drafts: int = 0
    _last_right: int = 0
    _size: StepSize = field(init=False)
    _going_on: int = 0
    """Steps of a larger size for drafts, one after another, up to now."""
    _stay: float = _STAY
    """How many they have been usually."""
    _paces: deque[float] = field(default_factory=lambda: deque(maxlen=_ANSWERS))

    def __post_init__(self) -> None:
        self._size = StepSize(self.tokens_per_change, self.least_rows)

    @property
    def tokens_per_row(self) -> float:
        """How many tokens a row gives in a step at most: the mean of the fastest answer of late."""
        return max(self._paces) if self._paces else 1.0 + self.max_drafts

    # --- before a step

    def choose(self, outcome: FormationOutcome, total_tokens: int) -> list[Chosen]:
        """The drafts of a step whose other tokens are planned. Blocks for them are taken; rows and load are not
        changed."""
        most = min(self.max_drafts, self.controls.now.num_speculative_tokens)
        load = outcome.load
        if most <= 0 or load.decode_rows == 0:
            return []
        self._adjust_window(load.decode_rows)
        price = self._price(load, total_tokens)
        micros = outcome.micros_per_draft = self.drafter.micros_per_draft
        asks = list(self._asks(outcome, most, price, micros))
        if not asks:
            self._waited += bool(outcome.num_no_drafts)
            self._count_step(total_tokens, 0)
            return []
        self.drafter.prepare([ask for _, ask in asks])
        offers = [offer for asked in asks if (offer := self._offer(outcome, asked, price)) is not None]
        counts = self._share_out(outcome, offers, total_tokens, price)
        chosen = []
        for offer, count in zip(offers, counts, strict=True):
            sequence = outcome.sequences[offer.row]
            fits = self.kv.grow_for_drafts(sequence, count) if count else 0
            if fits:
                chosen.append(Chosen(offer.row, offer.drafts[:fits], offer.masks[: fits + 1]))
                _note(outcome, sequence, None)
            elif count:
                _note(outcome, sequence, NoDrafts.KV_BLOCKS)
        self._waited = 0 if chosen else self._waited + (NoDrafts.UNLIKELY in outcome.num_no_drafts)
        return chosen

    def _adjust_window(self, rows: int) -> None:
        """By what came of the last step's drafts."""
        window = self._window
        if self._last_drafts:
            window = window * 2 if 2 * self._last_right >= self._last_drafts else window // 2
        self._window = min(max(_LOOK_ROWS, 2 * rows, window), _WIDEST)
        self._last_drafts = self._last_right = 0

    def _price(self, load: StepLoad, total_tokens: int) -> StepPrice:
        rows, context = load.decode_rows, load.decode_context
        seconds = max(_LEAST_SECONDS, self.step_time.predict(StepLoad(rows, context)).p50)
        more = StepLoad(rows + _LOOK_ROWS, context + context * _LOOK_ROWS // rows)
        row = max(0.0, self.step_time.predict(more).p50 - seconds) / _LOOK_ROWS
        if self._waited >= _PATIENCE:
            return StepPrice(seconds, row, 0.0, rows, _LOOK_ROWS)
        size, changes = self._size, 1.0 + (0.0 if self._going_on else _CHANGES / self._stay)
        fixed, padding = size.changes(total_tokens), size.padding(total_tokens)
        free = max(0, self.least_rows - total_tokens)
        return StepPrice(seconds, row, row * self.tokens_per_change, rows, free, padding, changes, fixed)

    def _asks(self, outcome: FormationOutcome, most: int, price: StepPrice, micros: int) -> Iterator[tuple[int, Ask]]:
        """The rows for which a guess may be worth its while."""
        break_even = price.break_even
        with_model = MARGIN * (price.row + micros / 1e6) * price.tokens / price.seconds
        for index, (sequence, row) in enumerate(zip(outcome.sequences, outcome.plan.rows, strict=True)):
            if row.prefill or row.sampling is None or sequence.padding:
                continue
            drafting = sequence.drafting
            if drafting is None:
                drafting = sequence.drafting = Drafting(GROUNDS)
            tokens = sequence.token_ids
            limit = min(most, sequence.max_total_tokens - len(tokens) - 1)
            if limit <= 0:
                _note(outcome, sequence, NoDrafts.LENGTH)
                continue
            if break_even >= 1.0 and not price.free:
                _note(outcome, sequence, NoDrafts.UNLIKELY)
                continue
            drafts = _run_length(self._chances.chance(drafting, MODEL), with_model, limit)
            yield index, Ask(sequence.request_id, tokens, limit, drafts, sequence.plain_sampling)

    def _offer(self, outcome: FormationOutcome, asked: tuple[int, Ask], price: StepPrice) -> _Offer | None:
        index, ask = asked
        sequence = outcome.sequences[index]
        drafting, rules = sequence.drafting, sequence.rules
        assert drafting is not None
        guess, masks = NO_GUESS, tuple[bytes, ...]()
        chances: list[float] = []
        with contained(sequence, Stage.FORMATION, "guessing how it goes on"):
            forced = () if rules is None else rules.forced(ask.limit)
            guess = Guess(forced, BY_GRAMMAR) if forced else self.drafter.guess(ask)
            chances = self._worth_a_place(drafting, guess, price)
            if guess.tokens and not chances:
                self._chances.forgive(drafting, ground_of(guess.match, 0))
            if rules is not None and chances:
                masks = rules.masks(guess.tokens[: len(chances)])
        if sequence.fault is not None or not guess.tokens:
            # The row is computed all the same; a fault ends the sequence afterwards.
            _note(outcome, sequence, NoDrafts.NO_GUESS)
            return None
        allowed = len(masks) - 1 if masks else len(chances)
        outcome.guesses[index] = Guessed(len(guess.tokens), guess.match, allowed)
        if not allowed:
            _note(outcome, sequence, NoDrafts.FORBIDDEN if chances else NoDrafts.UNLIKELY)
            return None
        drafting.match = guess.match
        return _Offer(index, tuple(guess.tokens[:allowed]), masks, chances[:allowed])

    def _worth_a_place(self, drafting: Drafting, guess: Guess, price: StepPrice) -> list[float]:
        """For each draft, the chance that it and all before it are right, as long as that is worth a place."""
        found: list[float] = []
        chance, break_even = 1.0, price.break_even
        for place in range(min(len(guess.tokens), self._window)):
            chance *= self._chances.chance(drafting, ground_of(guess.match, place))
            if chance < break_even and place >= price.free:
                break
            found.append(chance)
        return found

    def _share_out(
        self, outcome: FormationOutcome, offers: list[_Offer], total_tokens: int, price: StepPrice
    ) -> list[int]:
        """How many of its drafts each offer gets, the likeliest first: so many in all that the step gives most tokens a
        second."""
        order: list[int] = []
        made = sum(guess.guessed for guess in outcome.guesses.values() if guess.match == BY_MODEL)
        made *= outcome.micros_per_draft
        taken, load = [0] * len(offers), outcome.load
        waiting = [(-offer.chances[0], place) for place, offer in enumerate(offers)]
        heapify(waiting)
        reason, best, right = NoDrafts.UNLIKELY, 0, 0.0
        most = price.tokens_per_second(0, 0.0) * (1.0 if price.free else _GAIN)
        while waiting and len(order) < self._window:
            chance, place = heappop(waiting)
            offer, size = offers[place], total_tokens + len(order) + 1
            load = load_with_draft(load, outcome.plan.rows[offer.row].end + taken[place])
            if size > outcome.token_budget or not self._keeps_target(load, made):
                reason = NoDrafts.TOKEN_BUDGET if size > outcome.token_budget else NoDrafts.INTER_TOKEN_TARGET
                break
            order.append(place)
            taken[place] += 1
            right -= chance
            if (rate := price.tokens_per_second(len(order), right)) > most:
                best, most = len(order), rate
            if taken[place] < len(offer.chances):
                heappush(waiting, (-offer.chances[taken[place]], place))
        counts = [0] * len(offers)
        for place in order[:best]:
            counts[place] += 1
        for offer, count in zip(offers, counts, strict=True):
            if not count:
                _note(outcome, outcome.sequences[offer.row], reason)
        self._count_step(total_tokens, best)
        return counts

    def _count_step(self, total_tokens: int, drafts: int) -> None:
        """The step has so many tokens, and so many drafts beside them."""
        self._size.compute(total_tokens + drafts)
        if total_tokens + drafts > max(total_tokens, self.least_rows):
            self._going_on += 1
        elif self._going_on:
            self._stay = max(1.0, self._stay * _STAY_FADING + self._going_on * (1.0 - _STAY_FADING))
            self._going_on = 0

    def _keeps_target(self, load: StepLoad, drafting_micros: int) -> bool:
        target = self.controls.now.target_seconds
        return target is None or self.step_time.predict(load).p90 + drafting_micros / 1e6 <= target

    # --- after it

    def learn(self, sequence: Sequence, num_drafts: int, num_accepted: int) -> None:
        """So many drafts of a row were right. ``sequence`` goes on; where it ended nobody knows of the later ones."""
        drafting = sequence.drafting
        assert drafting is not None
        drafting.num_rows += 1
        drafting.num_drafts += num_drafts
        drafting.num_accepted += num_accepted
        self._last_drafts += num_drafts
        self._last_right += num_accepted
        if sequence.finish_reason is None:
            self._chances.learn(drafting, num_drafts, num_accepted)

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        drafting = sequence.drafting
        if drafting is not None:
            steps = sequence.num_output_tokens - drafting.num_accepted
            if steps > 0:
                self._paces.append(sequence.num_output_tokens / steps)
        self.drafter.forget(sequence.request_id)


def load_with_draft(load: StepLoad, position: int) -> StepLoad:
    """The load with one more draft, at a position of its sequence."""
    rows, context = load.decode_rows + 1, load.decode_context + position
    return StepLoad(rows, context, load.prefill_tokens, load.prefill_pairs)


def _run_length(chance: float, break_even: float, most: int) -> int:
    """How many drafts with the same chance each are worth making, one after another."""
    count, together = 0, chance
    while count < most and together >= break_even:
        count, together = count + 1, together * chance
    return count


def _note(outcome: FormationOutcome, sequence: Sequence, reason: NoDrafts | None) -> None:
    """Count why a row has no drafts, and tell of it where that is new; None: it has some."""
    drafting = sequence.drafting
    assert drafting is not None
    if reason is not None:
        drafting.refused[reason] = drafting.refused.get(reason, 0) + 1
        outcome.num_no_drafts[reason] = outcome.num_no_drafts.get(reason, 0) + 1
    if reason is not drafting.reason:
        drafting.reason = reason
        outcome.no_drafts.append((sequence, reason))
