"""A draft model on the fake backend: what it makes, what it computes again, and what it forgets."""

from typing import Any

import pytest

from ekiden.backends.fake import FakeRunner
from ekiden.engine.draft_model import CATCH_UP, DraftModel, LookupFirst
from ekiden.policies.lookup import Lookup
from ekiden.state.drafting import BY_MODEL, NO_GUESS, Ask
from ekiden.state.plan import BatchPlan, StepOutput
from tests.fake_answers import answer_to

VOCAB = 100
PROMPT = list(range(10, 30))


class Counted(FakeRunner):
    def __init__(self, **settings: Any) -> None:
        super().__init__(vocab_size=VOCAB, block_size=4, **settings)
        self.fails = False

    def execute(self, plan: BatchPlan) -> StepOutput:
        if self.fails:
            raise RuntimeError("no memory")
        return super().execute(plan)


def model(**settings: Any) -> tuple[DraftModel, Counted]:
    runner = Counted(**settings)
    return DraftModel(runner, vocab_size=VOCAB, clock=lambda: float(runner.steps)), runner


def asked(drafter: DraftModel | LookupFirst, *asks: Ask) -> list[tuple[int, ...]]:
    drafter.prepare(asks)
    return [tuple(drafter.guess(ask).tokens) for ask in asks]


def test_each_sequence_gets_what_the_model_would_say_and_all_share_its_passes() -> None:
    drafter, runner = model()
    asks = [Ask("a", PROMPT, 5, 5), Ask("b", PROMPT[3:], 3, 9), Ask("c", [1, 2], 9, 1), Ask("d", PROMPT, 4, 0)]
    found = asked(drafter, *asks)
    assert found == [
        tuple(answer_to(ask.token_ids, VOCAB, count)) for ask, count in zip(asks, (5, 3, 1, 0), strict=True)
    ]
    assert drafter.guess(asks[0]).match == BY_MODEL
    assert drafter.guess(asks[3]) == NO_GUESS
    assert runner.steps == 5
    assert drafter.micros_per_draft == round(5 / 9 * 1e6)


def test_only_what_is_new_is_computed_whatever_became_of_the_drafts() -> None:
    drafter, runner = model()
    tokens = list(PROMPT)
    for accepted in (4, 0, 2, 3, 1):
        (drafts,) = asked(drafter, Ask("a", tokens, 4, 4))
        assert list(drafts) == answer_to(tokens, VOCAB, 4)
        before = runner.computed_tokens
        tokens = [*tokens, *drafts[:accepted], 7]  # the target chose another token after them
        asked(drafter, Ask("a", tokens, 1, 1))
        assert runner.computed_tokens - before == (2 if accepted == 4 else 1)


def test_a_long_prompt_is_read_over_several_steps() -> None:
    drafter, runner = model(num_blocks=600)
    tokens = [index % VOCAB for index in range(2 * CATCH_UP + 100)]
    ask = Ask("a", tokens, 2, 2)
    assert [asked(drafter, ask)[0] for _ in range(3)] == [(), (), tuple(answer_to(tokens, VOCAB, 2))]
    assert runner.computed_tokens == len(tokens) + 1


def test_a_full_pool_costs_the_sequence_that_was_asked_for_longest_ago_its_blocks() -> None:
    drafter, runner = model(num_blocks=13)  # two sequences of six blocks
    first, second, third = (Ask(name, [*PROMPT, at], 3, 3) for at, name in enumerate("abc"))
    for ask in (first, second, third, second):
        assert asked(drafter, ask) == [tuple(answer_to(ask.token_ids, VOCAB, 3))]
    assert len(drafter) == 2
    before = runner.computed_tokens
    assert asked(drafter, first) == [tuple(answer_to(first.token_ids, VOCAB, 3))]
    assert runner.computed_tokens - before == 21 + 2, "its prompt is computed again"
    assert asked(drafter, first, second, third)[2] == (), "no sequence of this step gives up its blocks"
    for name in "abcd":
        drafter.forget(name)
    assert len(drafter) == 0
    assert sorted(drafter._free) == list(range(13))


def test_a_model_that_fails_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    drafter, runner = model()
    runner.fails = True
    assert asked(drafter, Ask("a", PROMPT, 2, 2)) == [()]
    runner.fails = False
    assert asked(drafter, Ask("a", PROMPT, 2, 2)) == [()]
    assert drafter.failed
    assert "answers go on without its drafts" in caplog.text


def test_tokens_that_the_target_has_not_end_a_guess() -> None:
    runner = Counted()
    drafter = DraftModel(runner, vocab_size=50)
    known = answer_to(PROMPT, VOCAB, 8)
    usable = next((at for at, token in enumerate(known) if token >= 50), 8)
    assert usable < 8
    assert asked(drafter, Ask("a", PROMPT, 8, 8)) == [tuple(known[:usable])]


def test_lookup_goes_before_the_model() -> None:
    drafter, _ = model()
    both = LookupFirst(Lookup(), drafter)
    again = Ask("again", [1, 2, 3, 4, 1, 2], 2, 2)
    new = Ask("new", [1, 2, 3, 4, 5, 6], 2, 2)
    assert asked(both, again, new) == [(3, 4), tuple(answer_to(new.token_ids, VOCAB, 2))]
    assert len(drafter) == 1, "the model is not asked for what lookup knows"
    both.forget("new")
    both.forget("again")
    assert len(drafter) == 0
