"""The subject in this process, on the fake model: every token, refusal and step is counted, and runs are alike."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ekiden.backends.fake import FakeRunner
from ekiden.config import CacheConfig, Config, LedgerConfig, LimitsConfig, SchedulerConfig
from ekiden.engine.driver import RealClock
from ekiden.engine.interface import ModelCard
from ekiden.engine.parts import EngineParts
from ekiden.errors import UserError
from ekiden.evaluation.load.engine_subject import WARM_UP, EngineSubject
from ekiden.evaluation.load.run_figures import run_figures
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.workloads.offer import Kind, Offer, Workload
from ekiden.evidence.reader import LedgerReader
from ekiden.sampling.sampler import Sampler
from tests.fake_answers import answer_to

END = 7
CONFIG = Config(
    cache=CacheConfig(block_size=16),
    scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=128, target_itl_ms=0.0),
)
EASY = Objectives(ttft=6000.0, tpot=6000.0)


def make_parts(**runner: Any) -> EngineParts:
    """The fake model, with an end token and logits, so that biases and forbidden tokens count."""
    fake = FakeRunner(vocab_size=400, sampler=Sampler(eos_token_ids=frozenset({END})), **runner)
    info = fake.info
    card = ModelCard(
        model_id="fake", max_model_len=info.max_model_len, vocab_size=400, block_size=16,
        num_blocks=info.num_blocks, created=0, fingerprint="f",
    )  # fmt: skip
    return EngineParts(runner=fake, card=card, tokenizer=cast(Any, SimpleNamespace(eos_token_ids=frozenset({END}))))


def workload(*offers: Offer, seconds: float = 0.1) -> Workload:
    return Workload(name="w", kind=Kind.NORMAL, seconds=seconds, offers=offers, made={}, sources={})


def offer(index: int, output: int, stated: int | None, **rest: Any) -> Offer:
    return Offer(id=f"r{index}", at=rest.pop("at", 0.0), output_tokens=output, max_tokens=stated, **rest)


def prompts_of(served: Workload) -> list[list[int]]:
    return [[100 + index, 20, 30] for index in range(len(served.offers))]


def subject(parts: EngineParts | None = None, config: Config = CONFIG, **rest: Any) -> EngineSubject:
    given: dict[str, Any] = {"objectives": EASY, "prompts": prompts_of} | rest
    return EngineSubject(parts or make_parts(), config, **given)


def test_answers_have_the_offered_lengths_whatever_limit_is_stated():
    served = workload(*(offer(i, 3 + i, (3 + i, 50, None)[i % 3]) for i in range(9)))
    run = subject().serve(served)
    assert [result.record.failure for result in run.results] == [None] * 9
    assert [len(result.token_ids or ()) for result in run.results] == [3 + i for i in range(9)]
    # With the length as its limit an answer is the model's own; one that is ended has the end token for its last.
    assert run.results[0].token_ids == tuple(answer_to([100, 20, 30], 400, 3))
    for result in run.results[1::3]:
        assert (result.token_ids or ())[-1] == END
    assert run.void is None
    assert (run.workload, run.workload_digest, run.arrival_seconds) == ("w", served.digest, 0.1)


def test_the_scheduler_sees_the_stated_limit(tmp_path: Path):
    config = replace(CONFIG, ledger=LedgerConfig(ledger_dir=str(tmp_path)))
    served = workload(offer(0, 4, 4), offer(1, 4, 90), offer(2, 4, None))
    run = subject(config=config, ledger=True).serve(served)
    assert run.run_id is not None
    reader = _reader(tmp_path, run.run_id)
    told = {row.request_id: row.max_tokens for row in reader.all_requests()}
    reader.close()
    assert {name: told[name] for name in ("r0", "r1", "r2")} == {
        "r0": 4,
        "r1": 90,
        "r2": 4096 - 3,  # none: all that is left of the context
    }
    # The warm-up is in the ledger, and in nothing else.
    assert sum(name.startswith(WARM_UP) for name in told) == 6
    assert len(run.results) == 3


def _reader(folder: Path, run_id: str) -> LedgerReader:
    (path,) = [path for path in folder.iterdir() if path.name.startswith(run_id) and not path.name.endswith(".lock")]
    return LedgerReader(path)


def test_both_policies_give_the_same_tokens_and_say_what_their_steps_did():
    parts, served = make_parts(), workload(*(offer(i, 2 + 5 * (i % 2), 2 + 5 * (i % 2)) for i in range(8)))
    runs = {}
    for batching in ("static", "continuous"):
        arm = replace(CONFIG, scheduler=replace(CONFIG.scheduler, batching=batching))
        runs[batching] = subject(parts, arm).serve(served)
    tokens = [[result.token_ids for result in run.results] for run in runs.values()]
    assert tokens[0] == tokens[1]
    for run in runs.values():
        steps = run.steps
        assert steps is not None
        assert steps.slot_steps == 4 * steps.steps
        assert steps.budget_tokens > 0
        # Prompts of three tokens, and each token of an answer but the last goes through the model.
        assert steps.computed_tokens == sum(3 + offer.output_tokens - 1 for offer in served.offers)
        assert 0 <= steps.used_block_steps <= steps.block_steps == 256 * steps.steps
    static, continuous = runs["static"].steps, runs["continuous"].steps
    assert static is not None
    assert continuous is not None
    assert continuous.steps < static.steps
    assert static.useful_slot_steps == continuous.useful_slot_steps


def test_nothing_is_left_of_a_run_for_the_next():
    """The same prompts again, with prefix caching: every token is computed again."""
    shared = workload(offer(0, 2, 2), offer(1, 2, 2))
    long = [list(range(100, 164))] * 2
    config = replace(CONFIG, cache=replace(CONFIG.cache, enable_prefix_caching=True))
    engine = subject(config=config, prompts=lambda served: long)
    computed = [run.steps.computed_tokens for run in (engine.serve(shared), engine.serve(shared)) if run.steps]
    assert len(computed) == 2
    assert computed[0] == computed[1] >= 64


def test_refusals_and_deadlines_are_failures_of_their_kinds():
    few = replace(CONFIG, limits=LimitsConfig(max_num_queued_reqs=6))
    served = workload(offer(0, 3, 3, deadline=0.0), *(offer(i, 3, 3) for i in range(1, 10)))
    run = subject(config=few).serve(served)
    kinds = [result.record.failure for result in run.results]
    assert kinds.count("refused_queue_full_requests") == 4
    assert kinds[0] == "deadline"
    assert kinds.count(None) == 5
    figures = run_figures(run, EASY)
    assert figures["requests"] == 10
    assert figures["good"] == 5
    assert figures["slo_attainment"] == 0.5


def test_tenant_priority_and_language_come_back_with_the_result():
    run = subject().serve(workload(offer(0, 2, 2, tenant="t", priority=3, language="ja", pair="p")))
    (result,) = run.results
    assert (result.tenant, result.priority, result.language, result.pair) == ("t", 3, "ja", "p")
    assert (result.prompt_tokens, result.output_tokens) == (3, 2)


def test_answers_are_told_as_they_end_and_the_warm_up_is_not():
    told: list[int] = []
    subject().serve(workload(*(offer(i, 2, 2) for i in range(5))), on_answer=lambda: told.append(1))
    assert len(told) == 5


def test_an_overload_is_cut_where_no_answer_can_be_good_any_more():
    hopeless = Objectives(ttft=1e-9, tpot=1e-9)
    run = subject(objectives=hopeless, cut=True).serve(workload(*(offer(i, 200, 200) for i in range(8)), seconds=1e-9))
    assert {result.record.failure for result in run.results} == {"unfinished"}
    whole = subject(objectives=EASY, cut=True).serve(workload(*(offer(i, 20, 20) for i in range(8))))
    assert {result.record.failure for result in whole.results} == {None}


def test_a_late_generator_voids_its_run_and_says_by_how_much(monkeypatch):
    monkeypatch.setattr(RealClock, "wait_until", lambda clock, moment: _oversleep(moment + 0.03))
    run = subject(objectives=Objectives(ttft=1.0, tpot=1.0)).serve(workload(offer(0, 2, 2), seconds=0.1))
    assert run.void is not None
    assert "at most 10.0 ms is allowed" in run.void
    assert run.results[0].record.sent - run.results[0].record.intended >= 0.029


def _oversleep(moment: float) -> None:
    while RealClock().now() < moment:
        pass


def test_a_closed_loop_is_labelled_and_counts_from_entry():
    run = subject(concurrency=1).serve(workload(*(offer(i, 3, 3, at=50.0) for i in range(4)), seconds=60.0))
    assert run.loop == "closed"
    assert [result.record.failure for result in run.results] == [None] * 4
    entered = [result.record.intended for result in run.results]
    ended = [result.record.end for result in run.results]
    assert all(later >= earlier for earlier, later in zip(ended, entered[1:], strict=False)), "one at a time"
    assert run.arrival_seconds == run.seconds < 50.0


def test_a_model_without_an_end_token_is_refused_limits_that_are_not_lengths():
    parts = replace(make_parts(), tokenizer=None)
    with pytest.raises(UserError, match="no end token"):
        subject(parts).serve(workload(offer(0, 2, 9)))


def test_ctrl_c_leaves_the_ledger_closed_and_the_next_run_whole(tmp_path: Path):
    def interrupt() -> None:
        raise KeyboardInterrupt

    config = replace(CONFIG, ledger=LedgerConfig(ledger_dir=str(tmp_path)))
    engine = subject(config=config, ledger=True)
    with pytest.raises(KeyboardInterrupt):
        engine.serve(workload(offer(0, 2, 2), offer(1, 9, 9)), on_answer=interrupt)
    assert not list(tmp_path.glob("*.lock"))
    assert [result.record.failure for result in engine.serve(workload(offer(0, 2, 2))).results] == [None]


def test_the_steps_of_the_last_run_can_be_drawn():
    engine = subject()
    engine.serve(workload(offer(0, 3, 3), offer(1, 2, 2)))
    names = {row.request_id for step in engine.last_steps for row in step.rows}
    assert names == {"r0", "r1"}
