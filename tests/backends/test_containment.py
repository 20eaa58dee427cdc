"""Containment on the compiled model: neighbours of a row that fails have the bits that they would have had."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ekiden.backends.openvino.paged_model import Inputs
from ekiden.backends.openvino.runner import OpenVINORunner
from ekiden.config import CacheConfig, Config, SchedulerConfig, controls_of
from ekiden.engine.engine_core import EngineCore
from ekiden.sampling.sampler import Sampler
from ekiden.state.plan import BatchPlan
from ekiden.state.request import FinishReason, Request
from ekiden.state.runner import CopiesLost, RunnerError
from ekiden.state.sampling_params import SamplingParams
from tests.backends.driving import load_folder, plan_of, sequence

NEIGHBOURS: list[dict[str, Any]] = [
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 0.9, "top_p": 0.9, "seed": 1},
    {"temperature": 1.0, "seed": 2, "repetition_penalty": 1.3},
    {"temperature": 0.0, "prompt_logprobs": 3},
    {"temperature": 0.7, "seed": 5, "top_k": 12},
]
MARK = 77
"""The token with which the culprit's prompt begins, and no other."""


@pytest.fixture(scope="module")
def runner(reference_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> OpenVINORunner:
    cache = tmp_path_factory.mktemp("models")
    return load_folder(reference_dir / "llama", cache, kv_cache_size="1MiB", swap_size="1MiB", threads=1)


def answers(runner: OpenVINORunner) -> dict[str, Any]:
    """What the culprit (``evil``) and its neighbours are given: tokens, log-probabilities, and how it ended."""
    core = EngineCore(
        runner=runner,
        controls=controls_of(Config(scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=96))),
        cache=CacheConfig(),
        clock=lambda: 0.0,
    )
    vocab = runner.info.vocab_size
    prompts = [tuple((7 * at + step) % 70 for step in range(10 + 22 * at)) for at in range(len(NEIGHBOURS))]
    wanted = [(str(at), prompts[at], fields) for at, fields in enumerate(NEIGHBOURS)]
    wanted.insert(2, ("evil", (MARK, *(step % vocab for step in range(30))), {"temperature": 0.8, "seed": 9}))
    for name, prompt, fields in wanted:
        params = SamplingParams(max_tokens=12, ignore_eos=True, **fields)
        core.add_request(Request(request_id=name, prompt_token_ids=prompt, sampling=params, arrival_time=0.0))
    found: dict[str, Any] = {name: [] for name, *_ in wanted}
    while core.has_work:
        for update in core.step().updates:
            assert update.refusal is None, update.refusal
            found[update.request_id].append((update.token_ids, update.logprobs, update.prompt_logprobs))
            if update.finish is not None:
                found[update.request_id].append((update.finish.reason, update.finish.message))
        core.check_integrity()
    return found


def without_evil(found: dict[str, Any]) -> dict[str, Any]:
    return {name: answer for name, answer in found.items() if name != "evil"}


@pytest.fixture(scope="module")
def usual(runner: OpenVINORunner) -> dict[str, Any]:
    found = answers(runner)
    assert found["evil"][-1] == (FinishReason.LENGTH, None)
    assert found == answers(runner)
    return found


@pytest.mark.parametrize("after_pass", [False, True], ids=["before its pass", "after its pass"])
@pytest.mark.parametrize("position", [3, 31, 37])
def test_a_pass_that_fails_for_one_row(
    runner: OpenVINORunner, usual: dict[str, Any], monkeypatch: pytest.MonkeyPatch, position: int, after_pass: bool
) -> None:
    """The culprit makes every pass fail that holds it, from a position of its sequence on: in its prompt or after."""
    culprit_blocks: set[int] = set()
    compute = runner.model.compute

    def failing(inputs: Inputs) -> Any:
        begins, tables = inputs["subsequence_begins"], inputs["block_indices_begins"]
        bad = False
        for row, past in enumerate(inputs["past_lens"].tolist()):
            first = int(inputs["block_indices"][tables[row]])
            if past == 0 and inputs["input_ids"][begins[row]] == MARK:
                culprit_blocks.add(first)
            end = past + int(begins[row + 1] - begins[row])
            bad |= first in culprit_blocks and end > position
        if bad and not after_pass:
            raise RunnerError("planted")
        result = compute(inputs)
        if bad:
            raise RunnerError("planted")
        return result

    monkeypatch.setattr(runner.model, "compute", failing)
    found = answers(runner)
    assert found["evil"][-1][0] is FinishReason.ERROR
    assert "planted" in found["evil"][-1][1]
    assert without_evil(found) == without_evil(usual)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers(
    runner: OpenVINORunner, usual: dict[str, Any], monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    sample = Sampler.sample

    def spoiled(self: Sampler, logits: Any, rows: Any) -> Any:
        for at, row in enumerate(rows):
            if row.sampling.seed == 9 and row.end > row.sampling.num_prompt_tokens + 3:
                logits[at] = value
        return sample(self, logits, rows)

    monkeypatch.setattr(Sampler, "sample", spoiled)
    found = answers(runner)
    assert found["evil"][-1] == (FinishReason.ERROR, "the model's logits are no numbers")
    assert len(found["evil"]) == 4 + 2, "four tokens came before"
    assert without_evil(found) == without_evil(usual)


def test_ids_without_a_token_are_hidden_in_the_models_buffer(runner: OpenVINORunner, monkeypatch: Any) -> None:
    plan = plan_of([(sequence([3, 4, 5], [0], prompt_logprobs=4, logprobs=1), 3)])
    (usual,) = runner.execute(plan).rows
    hidden = {*usual.tokens, *(token for token, _ in usual.prompt_logprobs[0].top)}
    monkeypatch.setattr(runner, "_sampler", Sampler(ids_without_token=sorted(hidden)))
    (found,) = runner.execute(plan).rows
    assert found.error is None
    named = {*found.tokens, *(token for each in found.prompt_logprobs for token, _ in each.top)}
    assert not named & hidden


def test_copies_that_fail_are_told_apart_and_the_check_computes(runner: OpenVINORunner) -> None:
    with pytest.raises(CopiesLost):
        runner.execute(BatchPlan(swap_out=[(10**6, 0)]))
    runner.check()
