"""Prompts that are only read: what intake refuses, what they may share, how they end, and how they are recorded."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ekiden.backends.fake import hidden_state
from ekiden.build.core import build_core
from ekiden.evidence.decision_replay import replay
from ekiden.evidence.explain import explain
from ekiden.evidence.token_replay import replay_tokens
from ekiden.evidence.why import Question, why
from ekiden.sampling.reduction import FloatRow
from ekiden.state.request import FinishReason, Pooling, Reading, RefusalReason, RequestUpdate
from tests.fake_answers import likely_tokens, pooled_states
from tests.unit.engine.fake_parts import make_fake_parts
from tests.unit.evidence.directed import Directed

PROMPT = tuple(range(1, 41))
MEAN, LAST = Reading(pooling=Pooling.MEAN), Reading(pooling=Pooling.LAST)


def last_of(world: Directed, name: str) -> RequestUpdate:
    found = [update for update in world.updates if update.request_id == name]
    assert [update.terminal for update in found].count(True) == 1
    return found[-1]


def test_it_ends_with_its_prompt_and_gives_back_all() -> None:
    world = Directed()
    for name, reading in {"mean": MEAN, "last": LAST, "scored": Reading(scored_from=30)}.items():
        world.submit(name, tokens=PROMPT, reading=reading)
    world.submit("answer", tokens=PROMPT, output=5)
    world.run()
    for name, pooling in {"mean": Pooling.MEAN, "last": Pooling.LAST}.items():
        update = last_of(world, name)
        assert update.pooled == pooled_states(PROMPT, pooling)
        assert update.prompt_logprobs is None
    scored = last_of(world, "scored")
    assert scored.pooled is None
    assert [score.rank == 1 for score in scored.prompt_logprobs or ()] == likely_tokens(PROMPT, 50, 30)
    for name in ("mean", "last", "scored"):
        finish = last_of(world, name).finish
        assert finish is not None
        assert (finish.reason, finish.num_output_tokens, finish.num_prompt_tokens) == (FinishReason.STOP, 0, 40)
        assert finish.first_token_time is None
    stats = world.core.stats()
    assert stats.finished_total == {"stop": 3, "length": 1}
    assert (stats.prompt_tokens_total, stats.generation_tokens_total, stats.kv_blocks_used) == (160, 5, 0)
    assert world.core.population.num_free_slots == 4
    # What is read says nothing about how long answers are.
    assert world.core.intake.signals.output_lengths.expect("default") == (5, 5, 5)


@pytest.mark.parametrize(
    ("reading", "cached"),
    [(MEAN, 0), (LAST, 32), (Reading(scored_from=1), 0), (Reading(scored_from=20), 16), (Reading(scored_from=39), 32)],
)
def test_it_shares_blocks_before_the_first_position_that_it_needs(reading: Reading, cached: int) -> None:
    world = Directed(prefix_caching=True)
    world.submit("first", tokens=PROMPT, output=1)
    world.run()
    world.submit("read", tokens=PROMPT, reading=reading)
    world.run()
    update = last_of(world, "read")
    assert update.finish is not None
    assert update.finish.num_cached_tokens == cached
    if reading.pooling is not None:
        assert update.pooled == pooled_states(PROMPT, reading.pooling)
    else:
        assert reading.scored_from is not None
        assert len(update.prompt_logprobs or ()) == len(PROMPT) - reading.scored_from


def test_what_it_computes_others_may_share() -> None:
    world = Directed(prefix_caching=True)
    world.submit("read", tokens=PROMPT, reading=MEAN)
    world.run()
    world.submit("answer", tokens=PROMPT, output=1)
    world.run()
    finish = last_of(world, "answer").finish
    assert finish is not None
    assert finish.num_cached_tokens == 32


def test_it_may_fill_the_context() -> None:
    world = Directed(num_blocks=400)
    context = world.runner.info.max_model_len
    world.submit("fits", prompt=context, reading=MEAN)
    world.submit("too long", prompt=context + 1, reading=MEAN)
    world.submit("no room for an answer", prompt=context)
    world.run()
    assert last_of(world, "fits").finish is not None
    for name in ("too long", "no room for an answer"):
        refusal = last_of(world, name).refusal
        assert refusal is not None
        assert refusal.reason is RefusalReason.CONTEXT_LENGTH_EXCEEDED


@pytest.mark.parametrize(("place", "allowed"), [(0, "between 1 and 39"), (40, "between 1 and 39"), (-1, "between 1")])
def test_scores_begin_within_the_prompt(place: int, allowed: str) -> None:
    world = Directed()
    world.submit("read", tokens=PROMPT, reading=Reading(scored_from=place))
    world.run()
    refusal = last_of(world, "read").refusal
    assert refusal is not None
    assert refusal.reason is RefusalReason.INVALID
    assert f"scored_from is {place}; it must be {allowed}" in refusal.message


def test_a_model_whose_states_cannot_be_had_says_so() -> None:
    world = Directed()
    world.core.intake.gives_states = False
    world.submit("read", tokens=PROMPT, reading=MEAN)
    world.submit("scored", tokens=PROMPT, reading=Reading(scored_from=1))
    world.run()
    refusal = last_of(world, "read").refusal
    assert refusal is not None
    assert refusal.param == "pooling"
    assert last_of(world, "scored").finish is not None


@pytest.mark.parametrize("swap_blocks", [0, 100], ids=["computed again", "swapped"])
def test_taken_out_in_the_middle_it_gives_the_same_vector(swap_blocks: int) -> None:
    world = Directed(num_swap_blocks=swap_blocks, max_num_batched_tokens=36)
    long = tuple(1 + at % 49 for at in range(90))
    world.submit("read", tokens=long, reading=MEAN)
    world.step(2)
    world.core.pause("read")
    world.step()
    assert world.core.all_paused
    world.core.resume("read")
    world.run()
    assert last_of(world, "read").pooled == pooled_states(long, Pooling.MEAN)
    assert world.runner.computed_tokens == (90 if swap_blocks else 90 + 64)


def test_an_abort_ends_it_between_chunks() -> None:
    world = Directed(max_num_batched_tokens=36)
    world.submit("read", tokens=PROMPT, reading=MEAN)
    world.step()
    world.core.abort("read")
    world.run()
    update = last_of(world, "read")
    assert update.finish is not None
    assert (update.finish.reason, update.pooled) == (FinishReason.ABORT, None)


def test_it_leaves_no_padding_row_behind() -> None:
    world = Directed(batching="static-padded")
    world.submit("answer", output=20)
    world.submit("read", tokens=PROMPT, reading=MEAN)
    world.step(4)
    assert last_of(world, "read").finish is not None
    assert list(world.core.population.padding) == []


def test_it_is_recorded_explained_and_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Directed(keep_prompts=True)
    world.submit("mean", tokens=PROMPT, reading=MEAN)
    world.submit("again", tokens=PROMPT, reading=MEAN)
    world.submit("scored", tokens=PROMPT, reading=Reading(pooling=Pooling.LAST, scored_from=10))
    world.run()
    parts = replace(make_fake_parts(world.config), runner=Directed().runner)
    with world.stored(tmp_path) as reader:
        assert replay(reader.header, reader.everything()).difference is None
        told = explain(reader, reader.requests_named("mean")[0])
        assert told.headline.startswith("Took ")
        assert " to read 40 tokens, " in told.headline
        assert told.max_tokens == told.output_tokens == 0
        assert sum(cause.seconds for cause in told.causes) == pytest.approx(told.e2e_seconds)
        mean, again, scored = (reader.requests_named(name)[0] for name in ("mean", "again", "scored"))
        assert "only read" in why(reader, mean, Question.TRUNCATED).words
        assert "not answered differently" in why(reader, mean, Question.DIFFERENT, again).words
        assert "asked differently from scored: reading" in why(reader, mean, Question.DIFFERENT, scored).words
        result = replay_tokens(reader, partial(build_core, parts), world.config)
        assert (result.same, result.different, result.not_kept) == (3, [], 0)
        monkeypatch.setattr("ekiden.backends.fake.hidden_state", lambda state: -hidden_state(state))
        result = replay_tokens(reader, partial(build_core, parts), world.config)
        assert sorted(result.different) == ["again", "mean", "scored"]


def test_states_that_are_not_numbers_end_only_the_request_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Directed()

    def broken(state: int) -> FloatRow:
        vector = hidden_state(state)
        return vector * np.float32("nan") if vector[0] > 0.9 else vector

    monkeypatch.setattr("ekiden.backends.fake.hidden_state", broken)
    prompts = [(*PROMPT[:30], token, 3) for token in range(1, 49)]
    for number, prompt in enumerate(prompts):
        world.submit(f"r{number}", tokens=prompt, reading=LAST)
    world.run()
    seen = set()
    for number, prompt in enumerate(prompts):
        update = last_of(world, f"r{number}")
        assert update.finish is not None
        wanted = np.frombuffer(pooled_states(prompt, Pooling.LAST), np.float32)
        if wanted[0] > 0.9:
            assert update.finish.reason is FinishReason.ERROR
            assert "hidden states that are not numbers" in (update.finish.message or "")
        else:
            assert update.pooled == wanted.tobytes()
        seen.add(update.finish.reason)
    assert seen == {FinishReason.STOP, FinishReason.ERROR}
