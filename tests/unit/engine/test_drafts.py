"""Rows of several tokens: drafts change how many steps an answer takes, and nothing else."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from ekiden.backends.fake import FakeRunner
from ekiden.config import CacheConfig, Config, SchedulerConfig, controls_of
from ekiden.engine.engine_core import EngineCore
from ekiden.evaluation.charts.trace import StepRecorder, Work
from ekiden.sampling.sampler import Sampler
from ekiden.sampling.structured import GrammarCompiler
from ekiden.state.drafting import Ask, Drafter, Guess
from ekiden.state.policy import StepLoad
from ekiden.state.request import FinishReason, Request, TokenLogprobs
from ekiden.state.sampling_params import Grammar, GrammarKind, SamplingParams
from ekiden.state.turn import Turn
from tests.api.scripted import VOCAB_SIZE, make_tokenizer
from tests.fake_answers import next_token
from tests.steps import StepView, StepWatcher

BLOCK = 4
PROMPT = (5, 6, 7, 8, 9, 10)


@dataclass
class Recital(Drafter):
    """Proposes a known answer; the draft at each position of ``wrong`` is another token."""

    answers: dict[str, tuple[int, ...]]
    prompt_tokens: int = len(PROMPT)
    wrong: frozenset[int] = frozenset()
    asked: list[int] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def guess(self, ask: Ask) -> Guess:
        self.asked.append(ask.limit)
        done = len(ask.token_ids) - self.prompt_tokens
        known = self.answers.get(ask.request_id, ())[done : done + ask.limit]
        return Guess([token + (done + at in self.wrong) for at, token in enumerate(known)], match=20)

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)


@dataclass
class Run(StepWatcher):
    tokens: dict[str, tuple[int, ...]] = field(default_factory=dict)
    reasons: dict[str, FinishReason] = field(default_factory=dict)
    logprobs: dict[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    views: list[StepView] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    steps: int = 0

    def on_step(self, view: StepView) -> None:
        self.views.append(view)

    @property
    def most_drafts(self) -> int:
        return max((row.num_drafts for view in self.views for row in view.formed.plan.rows), default=0)


def request(name: str = "a", prompt: tuple[int, ...] = PROMPT, **sampling: Any) -> Request:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 20, "seed": 3, **sampling})
    return Request(request_id=name, prompt_token_ids=prompt, sampling=params, arrival_time=0.0)


def make_core(
    run: Run,
    drafter: Recital | None,
    *,
    max_drafts: int = 4,
    num_blocks: int = 64,
    sampler: Sampler | None = None,
    budget: int = 64,
    **settings: Any,
) -> EngineCore:
    core = EngineCore(
        runner=FakeRunner(
            vocab_size=VOCAB_SIZE, num_blocks=num_blocks, block_size=BLOCK, num_swap_blocks=64, max_drafts=max_drafts,
            sampler=sampler,
        ),
        controls=controls_of(Config(
            scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=budget, target_itl_ms=0.0),
            cache=CacheConfig(block_size=BLOCK),
        )),
        cache=CacheConfig(block_size=BLOCK),
        clock=lambda: 0.0,
        recorder=run,
        drafter=drafter,
        **settings,
    )  # fmt: skip
    for rows in (1, 2, 4, 8):  # on a machine on which a row more costs nothing, a guess is always worth its while
        core.step_time.observe(StepLoad(rows, 10 * rows), 0.01)
    return core


def drive(core: EngineCore, run: Run, requests: list[Request]) -> Run:
    for each in requests:
        core.add_request(each)
    while core.has_work:
        for update in core.step().updates:
            name = update.request_id
            run.tokens[name] = (*run.tokens.get(name, ()), *update.token_ids)
            if update.logprobs is not None:
                assert len(update.logprobs) == len(update.token_ids)
                run.logprobs[name] = (*run.logprobs.get(name, ()), *update.logprobs)
            if update.finish is not None:
                run.reasons[name] = update.finish.reason
                assert update.finish.num_output_tokens == len(run.tokens[name])
        run.steps += 1
        core.check_integrity()
        run.blocks.append(core.kv.pool.num_referenced)
    assert core.kv.pool.num_referenced == 0
    return run


def answer(requests: list[Request], drafter: Recital | None = None, **settings: Any) -> Run:
    run = Run()
    return drive(make_core(run, drafter, **settings), run, requests)


def greedy(count: int, prompt: tuple[int, ...] = PROMPT) -> tuple[int, ...]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, VOCAB_SIZE))
    return tuple(tokens[len(prompt) :])


def test_right_drafts_give_several_tokens_a_step() -> None:
    run = answer([request()], Recital({"a": greedy(20)}))
    assert run.tokens["a"] == greedy(20)
    assert run.reasons["a"] is FinishReason.LENGTH
    assert run.steps == 1 + 4  # the prompt gives a token; then 5 a step, and the last 4 need no drafts beyond the limit
    assert run.most_drafts == 4


def test_what_comes_after_a_wrong_draft_is_dropped_and_its_blocks_go_back() -> None:
    alone = answer([request(max_tokens=21)])
    run = answer([request(max_tokens=21)], Recital({"a": greedy(21)}, wrong=frozenset({3, 4, 11})))
    assert run.tokens == alone.tokens
    assert 21 > run.steps > 5
    computed = len(PROMPT)
    for view, held in zip(run.views[:-1], run.blocks[:-1], strict=True):
        computed += len(view.output.rows[0].tokens)
        assert held == -(-(computed - 1) // BLOCK), "blocks of dropped drafts are held"


def test_every_number_of_accepted_drafts_is_taken() -> None:
    counts = set()
    for wrong in range(6):
        run = answer([request()], Recital({"a": greedy(20)}, wrong=frozenset({1 + wrong})))
        assert run.tokens["a"] == greedy(20)
        counts.add(len(run.views[1].output.rows[0].tokens))
    assert counts == {1, 2, 3, 4, 5}


def test_no_draft_goes_beyond_the_length_or_the_room_of_a_step() -> None:
    for length in range(1, 8):
        assert answer([request(max_tokens=length)], Recital({"a": greedy(30)})).tokens["a"] == greedy(length)
    prompts = {f"r{index}": tuple(range(20 + index, 26 + index)) for index in range(8)}
    answers = {name: greedy(20, prompt) for name, prompt in prompts.items()}
    run = answer([request(name, prompt) for name, prompt in prompts.items()], Recital(answers), budget=17)
    assert run.tokens == answers
    assert max(view.formed.plan.total_tokens for view in run.views) == 17
    assert run.most_drafts > 0


def test_a_stop_token_among_accepted_drafts_ends_the_answer_there() -> None:
    known = greedy(20)
    run = answer([request(stop_token_ids=(known[7],))], Recital({"a": known}))
    assert run.tokens["a"] == known[: known.index(known[7]) + 1]
    assert run.reasons["a"] is FinishReason.STOP


def test_drafts_never_preempt_and_never_wait_for_blocks() -> None:
    prompts = {f"r{index}": tuple(range(10 * index, 10 * index + 6)) for index in range(3)}
    answers = {name: greedy(14, prompt) for name, prompt in prompts.items()}
    requests = [request(name, prompt, max_tokens=14) for name, prompt in prompts.items()]
    run = answer(requests, Recital(answers), num_blocks=16)
    assert run.tokens == answers
    assert not any(view.formed.preempted for view in run.views)
    assert run.most_drafts > 0
    short = answer(requests, Recital(answers), num_blocks=8)
    assert short.tokens == answers


def test_blocks_with_drafts_are_never_published() -> None:
    run = Run()
    core = make_core(run, Recital({"a": greedy(20)}, wrong=frozenset({2, 9})))
    drive(core, run, [request()])
    assert len(core.kv.pool._cached) == len(PROMPT) // BLOCK, "only blocks that prefill wrote have a key"
    whole = (*PROMPT, *greedy(20))
    longer = drive(core, Run(), [request("b", whole, max_tokens=5)])
    assert longer.tokens["b"] == greedy(5, whole)


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.5},
        {"frequency_penalty": 0.7, "presence_penalty": 0.3},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0.5},
        {"temperature": 1.0, "top_k": 30, "min_tokens": 15, "stop_token_ids": tuple(range(20, 60))},
        {"temperature": 0.9, "logprobs": 2},
    ],
    ids=str,
)
def test_sampled_and_penalised_answers_are_those_without_drafts(fields: dict[str, Any]) -> None:
    sampler = Sampler(eos_token_ids=frozenset({1}))
    plain = answer([request(**fields)], sampler=sampler)
    known = plain.tokens["a"]
    for wrong in (frozenset[int](), frozenset({2, 3, 10}), frozenset(range(20))):
        run = answer([request(**fields)], Recital({"a": known}, wrong=wrong), sampler=sampler)
        assert run.tokens == plain.tokens
        assert run.logprobs == plain.logprobs
        assert run.reasons == plain.reasons
        assert run.most_drafts > 0
        assert (run.steps < plain.steps) == (len(wrong) < 20)


def test_a_grammar_is_followed_through_drafts_and_back() -> None:
    tokenizer = make_tokenizer()
    compiler = GrammarCompiler(tokenizer, VOCAB_SIZE)
    grammar = Grammar(kind=GrammarKind.REGEX, source="(a[0-9]{2})*b[xyz]{3}")
    fields: dict[str, Any] = {"temperature": 1.0, "max_tokens": 30, "grammar": grammar}
    settings: dict[str, Any] = {
        "sampler": Sampler(eos_token_ids=tokenizer.eos_token_ids),
        "eos_token_ids": tokenizer.eos_token_ids,
        "make_rules": lambda grammar: compiler.compile(grammar),
    }
    seen = set()
    for seed in range(12):
        plain = answer([request(seed=seed, **fields)], **settings)
        known = plain.tokens["a"]
        seen.add(plain.reasons["a"])
        for wrong in (frozenset[int](), frozenset({1, 4, 9})):
            run = answer([request(seed=seed, **fields)], Recital({"a": known}, wrong=wrong), **settings)
            assert (run.tokens, run.reasons) == (plain.tokens, plain.reasons)
            assert run.most_drafts > 0 or len(known) < 3
    assert FinishReason.STOP in seen


def test_masks_leave_the_grammar_where_it_was_and_stop_at_what_it_forbids() -> None:
    tokenizer = make_tokenizer()
    rules = GrammarCompiler(tokenizer, VOCAB_SIZE).compile(Grammar(kind=GrammarKind.REGEX, source="ab[0-9]+"))
    a, b, nine, letter = (tokenizer.encode(text, add_special_tokens=False)[0] for text in ("a", "b", "9", "x"))
    before = rules.masks()
    masks = rules.masks((a, b, nine, nine))
    assert len(masks) == 5
    assert rules.masks() == before == masks[:1]
    assert len(rules.masks((a, letter, nine))) == 2, "a draft that the grammar forbids ends the row's drafts"
    rules.advance(a)
    assert rules.masks((b,)) == masks[1:3]


def test_whatever_counts_tokens_counts_tokens() -> None:
    run, recorder = Run(), StepRecorder()

    class Both:
        def record(self, turn: Turn) -> None:
            run.record(turn)
            recorder.record(turn)

    core = make_core(run, Recital({"a": greedy(20)}, wrong=frozenset({6})))
    core.recorder = Both()
    drive(core, run, [request()])
    stats = core.stats()
    assert stats.generation_tokens_total == 20
    assert stats.step_tokens_total == sum(view.formed.plan.total_tokens for view in run.views)
    decoded = [row.made for step in recorder.steps for row in step.rows if row.work is Work.DECODE]
    assert sum(decoded) == 19, "all but the one that the prompt gave"


def test_what_a_grammar_forces_is_guessed_and_changes_no_state() -> None:
    tokenizer = make_tokenizer()
    rules = GrammarCompiler(tokenizer, VOCAB_SIZE).compile(Grammar(kind=GrammarKind.REGEX, source="[ab]hello[0-9]"))
    assert rules.forced(9) == ()
    (a, *_) = tokenizer.encode("a", add_special_tokens=False)
    rules.advance(a)
    forced = rules.forced(9)
    assert "hello".startswith(tokenizer.decode(list(forced)))
    assert len(forced) > 1
    assert rules.forced(2) == forced[:2]
    assert len(rules.masks(forced)) == len(forced) + 1
    assert rules.forced(9) == forced


def test_a_grammar_that_forces_a_long_text_is_not_asked_again() -> None:
    compiler = GrammarCompiler(make_tokenizer(), VOCAB_SIZE)
    rules = compiler.compile(Grammar(kind=GrammarKind.REGEX, source="a{2000}b"))
    assert rules.forced(4) == ()
    assert not rules._forces


def test_a_schema_is_written_in_fewer_steps_than_it_has_tokens() -> None:
    tokenizer = make_tokenizer()
    compiler = GrammarCompiler(tokenizer, VOCAB_SIZE)
    grammar = Grammar(kind=GrammarKind.REGEX, source="first:[0-9],second:[0-9],third:[0-9]")
    settings: dict[str, Any] = {
        "sampler": Sampler(eos_token_ids=tokenizer.eos_token_ids),
        "eos_token_ids": tokenizer.eos_token_ids,
        "make_rules": lambda grammar: compiler.compile(grammar),
    }
    asked = request(temperature=1.0, max_tokens=60, grammar=grammar)
    plain, run = answer([asked], **settings), answer([asked], Recital({}), **settings)
    assert (run.tokens, run.reasons) == (plain.tokens, plain.reasons)
    assert run.steps < plain.steps
    assert run.most_drafts > 1


def test_a_drafter_is_told_of_each_end() -> None:
    drafter = Recital({"a": greedy(20)})
    answer([request(), request("b", tuple(range(30, 36)))], drafter)
    assert sorted(drafter.forgotten) == ["a", "b"]
