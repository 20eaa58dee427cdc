"""How many drafts each row gets, counted in steps and in the virtual time of a machine on which each row costs time."""

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekiden.backends.fake import FakeRunner
from ekiden.config import CacheConfig, Config, SchedulerConfig, controls_of
from ekiden.engine.engine_core import EngineCore
from ekiden.engine.simulated import EngineSpeed, SimulatedRunner
from ekiden.engine.step_time import StepCost
from ekiden.policies.draft_price import StepSize
from ekiden.state.controls import ControlChange, SetBy
from ekiden.state.drafting import NO_GUESS, Ask, Drafter, Guess, NoDrafts
from ekiden.state.policy import StepLoad, StepTimePredictor, TimeRange
from ekiden.state.request import Request
from ekiden.state.sampling_params import SamplingParams
from tests.fake_answers import answer_to
from tests.guessing import speculation_of
from tests.steps import StepView, StepWatcher

VOCAB = 1000
SPEED = EngineSpeed(cost=StepCost(0.014, 0.0008, 4e-7, 0.0003, 1e-8))
"""About that of SmolLM2-135M on two cores: 15 ms for one row, 65 ms for 64."""


@dataclass
class Odds(Drafter):
    """Drafts of which each is right with the same chance; after a wrong one all are wrong."""

    chance: float
    match: int = 12
    source: random.Random = field(default_factory=lambda: random.Random(1))

    def guess(self, ask: Ask) -> Guess:
        right = answer_to(ask.token_ids, VOCAB, ask.limit)
        count = next((at for at in range(ask.limit) if self.source.random() >= self.chance), ask.limit)
        return Guess([*right[:count], *((token + 1) % VOCAB for token in right[count:])], self.match)


@dataclass
class Served(StepWatcher):
    """What came of a run."""

    seconds: float = 0.0
    steps: int = 0
    tokens: dict[str, list[int]] = field(default_factory=dict)
    views: list[StepView] = field(default_factory=list)
    why: Counter[NoDrafts] = field(default_factory=Counter)
    accepted: int = 0

    def on_step(self, view: StepView) -> None:
        self.views.append(view)
        self.why.update(view.formed.num_no_drafts)

    @property
    def drafts(self) -> list[int]:
        """Of each step."""
        return [sum(row.num_drafts for row in view.formed.plan.rows) for view in self.views]


def serve(
    rows: int,
    drafter: Drafter | None,
    *,
    tokens: int = 100,
    change: dict[str, Any] | None = None,
    predictor: StepTimePredictor | None = None,
    tokens_per_change: int | None = None,
) -> Served:
    """Serve so many answers together. With ``tokens_per_change`` the engine knows from the start what a row costs."""
    fake = FakeRunner(vocab_size=VOCAB, num_blocks=64 * rows, block_size=16, max_drafts=16)
    runner = SimulatedRunner(SPEED, info=replace(fake.info, tokens_per_change=tokens_per_change or 0), inner=fake)
    run = Served()
    config = Config(
        scheduler=SchedulerConfig(max_num_seqs=max(rows, 8), max_num_batched_tokens=512, **(change or {})),
        cache=CacheConfig(block_size=16),
    )
    core = EngineCore(
        runner=runner,
        controls=controls_of(config),
        cache=config.cache,
        clock=runner.clock.now,
        recorder=run,
        drafter=drafter,
    )
    for running in (1, 4, 16, 64) if tokens_per_change is not None else ():  # the machine is known
        load = StepLoad(running, 50 * running)
        core.step_time.observe(load, SPEED.seconds(load))
    if predictor is not None:
        speculation_of(core).step_time = predictor
    sampling = SamplingParams(temperature=0.0, max_tokens=tokens)
    for number in range(rows):
        prompt = (number + 1, *range(20))
        core.add_request(Request(request_id=str(number), prompt_token_ids=prompt, sampling=sampling, arrival_time=0.0))
        run.tokens[str(number)] = []
    while core.has_work:
        for update in core.step().updates:
            run.tokens[update.request_id] += update.token_ids
        core.check_integrity()
    for number in range(rows):
        assert run.tokens[str(number)] == answer_to((number + 1, *range(20)), VOCAB, tokens)
    run.seconds, run.steps = runner.busy_seconds, runner.steps
    run.accepted = core.stats().spec_decode_num_accepted_tokens_total
    return run


@pytest.fixture(scope="module")
def plain() -> dict[int, Served]:
    """Runs without drafts, by rows."""
    return {rows: serve(rows, None) for rows in (1, 8, 32, 64)}


@pytest.mark.parametrize(("chance", "least"), [(0.95, 3.0), (0.8, 2.0), (0.5, 1.3)])
def test_a_lone_answer_takes_as_many_drafts_as_are_likely(
    plain: dict[int, Served], chance: float, least: float
) -> None:
    assert plain[1].seconds / serve(1, Odds(chance)).seconds > least


@pytest.mark.parametrize("rows", [1, 8, 32, 64])
@pytest.mark.parametrize("match", [1, 5, 30])
def test_wrong_guesses_cost_little_at_any_number_of_rows(plain: dict[int, Served], rows: int, match: int) -> None:
    run = serve(rows, Odds(0.0, match))
    assert run.accepted == 0
    assert run.seconds <= plain[rows].seconds * (1.06 if rows == 1 else 1.02)


@pytest.mark.parametrize("rows", [32, 64])
@pytest.mark.parametrize("chance", [0.3, 0.6, 0.8, 0.9])
def test_a_full_batch_is_never_slower(plain: dict[int, Served], rows: int, chance: float) -> None:
    assert serve(rows, Odds(chance)).seconds <= 1.02 * plain[rows].seconds


def test_a_full_batch_still_takes_drafts_that_are_sure(plain: dict[int, Served]) -> None:
    assert serve(32, Odds(0.98)).seconds < plain[32].seconds / 1.15
    assert serve(64, Odds(0.5)).why[NoDrafts.UNLIKELY] > 0


def test_guesses_that_fail_are_tried_ever_more_rarely() -> None:
    run = serve(1, Odds(0.0), tokens=200)
    tried = [step for step, drafts in enumerate(run.drafts) if drafts]
    gaps = [after - before for before, after in pairwise(tried)]
    assert gaps[:4] == [1] * 4
    assert max(gaps) > 5
    assert sum(run.drafts[100:]) <= 20


class DearRows:
    """By its account a row more costs as much as the whole step, so that no draft is ever worth its place."""

    def predict(self, load: StepLoad) -> TimeRange:
        return TimeRange(*(load.decode_rows * 1e-3,) * 3)


def test_a_few_drafts_are_tried_now_and_then_to_learn_what_a_row_costs() -> None:
    run = serve(2, Odds(0.5), tokens=200, predictor=DearRows())
    assert max(run.drafts) == 8
    tried = [step for step, drafts in enumerate(run.drafts) if drafts]
    assert [after - before for before, after in pairwise(tried)] == [65] * (len(tried) - 1)
    assert len(tried) > 1


def test_one_answers_bad_luck_is_not_anothers() -> None:
    class Mixed(Odds):
        def guess(self, ask: Ask) -> Guess:
            self.chance = 0.95 if ask.request_id == "0" else 0.0
            return super().guess(ask)

    run = serve(3, Mixed(0.0), tokens=150)
    drafted = Counter[int]()
    for view in run.views:
        for sequence, row in zip(view.formed.sequences, view.formed.plan.rows, strict=True):
            drafted[sequence.request_id == "0"] += row.num_drafts
    assert drafted[True] > drafted[False]


def test_the_target_bounds_a_step_with_drafts() -> None:
    free, bound = serve(4, Odds(0.95)), serve(4, Odds(0.95), change={"target_itl_ms": 22.0})
    longest = [max(view.output.timing.model for view in run.views[6:]) for run in (free, bound)]
    assert longest[0] > 0.030 > 0.023 >= longest[1]
    assert bound.why[NoDrafts.INTER_TOKEN_TARGET] > 0


def test_none_are_made_where_the_control_says_none() -> None:
    assert sum(serve(2, Odds(0.9), change={"num_speculative_tokens": 0}).drafts) == 0
    assert max(serve(1, Odds(0.9), change={"num_speculative_tokens": 3}).drafts) == 3


def test_the_control_can_change_while_answers_run() -> None:
    fake = FakeRunner(vocab_size=VOCAB, num_blocks=64, block_size=16, max_drafts=16)
    run, drafter, config = Served(), Odds(0.9), Config(cache=CacheConfig(block_size=16))
    core = EngineCore(
        runner=fake,
        controls=controls_of(config),
        cache=config.cache,
        clock=lambda: 0.0,
        recorder=run,
        drafter=drafter,
    )
    prompt, sampling = tuple(range(20)), SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    core.add_request(Request(request_id="a", prompt_token_ids=prompt, sampling=sampling, arrival_time=0.0))
    off = ControlChange(values={"num_speculative_tokens": 0}, set_by=SetBy.PERSON, who="ann")
    core.set_controls(off)
    while core.has_work:
        core.step()
    assert sum(run.drafts) == 0
    assert len(run.views) == 60


class Silent(Drafter):
    def guess(self, ask: Ask) -> Guess:
        return NO_GUESS


def test_each_step_without_drafts_has_one_reason() -> None:
    run = serve(3, Silent(), tokens=30)
    assert run.why - Counter({NoDrafts.UNLIKELY: 3}) == {NoDrafts.NO_GUESS: 3 * 27, NoDrafts.LENGTH: 3}
    told = [(s.request_id, why) for view in run.views for s, why in view.formed.no_drafts]
    whys = (NoDrafts.UNLIKELY, NoDrafts.NO_GUESS, NoDrafts.LENGTH)
    assert told == [(name, why) for why in whys for name in "012"], "only what is new"


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 12), st.floats(0.0, 1.0), st.integers(1, 30), st.integers(0, 16))
def test_whatever_the_odds_the_plan_keeps_to_its_bounds(rows: int, chance: float, match: int, most: int) -> None:
    run = serve(rows, Odds(chance, match), tokens=24, change={"num_speculative_tokens": most})
    for view in run.views:
        assert view.formed.plan.total_tokens <= 512
        for sequence, row in zip(view.formed.sequences, view.formed.plan.rows, strict=True):
            assert row.num_drafts <= most
            assert row.end <= sequence.max_total_tokens


def test_a_change_of_size_is_not_made_for_little() -> None:
    """Of eight rows one has a draft that is mostly right: worth a row, but not two changes of size."""

    class One(Odds):
        def guess(self, ask: Ask) -> Guess:
            found = super().guess(ask)
            return Guess(found.tokens[:1], found.match) if ask.request_id == "0" else NO_GUESS

    cheap, dear = (serve(8, One(0.9, match=12), tokens_per_change=change) for change in (0, 16))
    assert sum(cheap.drafts) > 20
    assert sum(dear.drafts) < sum(cheap.drafts) / 2


def test_drafts_take_the_place_of_padding() -> None:
    size = StepSize(worth=16, least=2)
    size.compute(1)
    assert (size.last, size.padding(1), size.padding(2), size.changes(3)) == (2, 1, 0, True)
    size.compute(9)
    for spent in (5, 10, 15):
        assert size.padding(4) == 5
        size.compute(4)
        assert (size.last, size.spent) == (9, spent)
    assert size.padding(4) == 0, "what it cost to keep the size is what a change costs"
    assert size.changes(4)
    assert size.padding(8) == 1
    size.compute(4)
    assert (size.last, size.spent) == (4, 0)
