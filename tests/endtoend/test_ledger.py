"""The evidence of a mixed, overloaded run on the real model: many requests, three tenants, preemptions and deadlines.

Every request's causes add up to its measured time, the run replays identically in another process, and making the
tokens again without the ledger gives the same tokens.
"""

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from ekiden.build.core import build_core
from ekiden.build.recording import recorded_core
from ekiden.config import CacheConfig, Config, LedgerConfig, LimitsConfig, SchedulerConfig
from ekiden.engine.driver import Answer, run_batch
from ekiden.engine.parts import EngineParts
from ekiden.evidence.causes import Cause
from ekiden.evidence.explain import explain
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.token_replay import replay_tokens
from ekiden.state.request import FinishReason, Request
from ekiden.state.sampling_params import SamplingParams
from tests.endtoend.conftest import SmallPool

REQUESTS = int(os.environ.get("SOAK_REQUESTS", "100"))
AGAIN = REQUESTS // 3
"""How many of them are answered again without the ledger."""


@dataclass(frozen=True)
class Run:
    path: Path
    config: Config
    requests: list[Request]
    answers: list[Answer]
    preemptions: int


@pytest.fixture(scope="module")
def run(parts: EngineParts, chat_prompts: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose load is more than the machine can serve, with a pool that makes it preempt."""
    folder = tmp_path_factory.mktemp("ledger")
    config = Config(
        scheduler=SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=256, scheduling_policy="fair"),
        cache=CacheConfig(),
        limits=LimitsConfig(abstain=False),  # deadlines are to pass here, not to be foreseen
        ledger=LedgerConfig(ledger_dir=str(folder), ledger_keep_prompts=True),
    )
    small = SmallPool(parts.runner, num_blocks=9, num_swap_blocks=100)
    core, writer = recorded_core(replace(parts, runner=small), config, run_id="run")
    requests = make_requests(chat_prompts)
    answers = run_batch(core, requests)
    writer.close()
    assert writer.dropped == 0
    return Run(writer.path, config, requests, answers, core.stats().preemptions_total)


def make_requests(prompts: list[list[int]]) -> list[Request]:
    rng = random.Random(5)
    at, requests = time.monotonic() + 0.1, []
    for number in range(REQUESTS):
        at += rng.expovariate(80.0)
        prompt = prompts[number % len(prompts)][: rng.choice((12, 20, 31, 60))]
        greedy = number % 3 != 0
        requests.append(
            Request(
                request_id=f"r{number}",
                prompt_token_ids=tuple(prompt),
                sampling=SamplingParams(
                    temperature=0.0 if greedy else 0.8, max_tokens=70 if number % 50 < 5 else 4, ignore_eos=True
                ),
                arrival_time=at,
                tenant=rng.choice(("alpha", "alpha", "alpha", "beta", "gamma")),
                deadline=at + (0.2 if number % 50 else 60.0) if number % 25 == 0 else None,
            )
        )
    return requests


def test_the_causes_of_every_request_add_up_to_its_measured_time(run: Run) -> None:
    seen: set[str] = set()
    with LedgerReader(run.path) as reader:
        for request, answer in zip(run.requests, run.answers, strict=True):
            assert answer.finish is not None
            measured = answer.finish.finish_time - answer.finish.arrival_time
            told = explain(reader, reader.requests_named(request.request_id)[0])
            total = sum(cause.seconds for cause in told.causes)
            assert abs(total - measured) <= max(0.001, 0.01 * measured), told
            assert told.output_tokens == len(answer.token_ids)
            seen |= {cause.cause for cause in told.causes}
    assert {Cause.OWN_DECODE, Cause.OWN_PREFILL, Cause.OTHERS_PREFILL, Cause.TENANT_TURN} <= seen
    assert Cause.PREEMPTED in seen
    assert Cause.UNRECORDED not in seen


def test_the_run_was_hard(run: Run) -> None:
    reasons = {answer.finish.reason for answer in run.answers if answer.finish is not None}
    assert {FinishReason.LENGTH, FinishReason.DEADLINE} <= reasons
    assert run.preemptions >= 1


def test_it_replays_identically_in_another_process(run: Run) -> None:
    command = [sys.executable, "-m", "ekiden", "replay", str(run.path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout)
    assert told["first_difference"] is None
    assert told["identical"] is True
    assert told["tokens"] == sum(len(answer.token_ids) for answer in run.answers)
    print(f"{told['turns']} turns, {told['recorded_seconds']:.1f} s, {told['speed']:.0f} times as fast as recorded")


def test_without_the_ledger_the_tokens_are_the_same(run: Run, parts: EngineParts) -> None:
    with LedgerReader(run.path) as reader:
        config = replace(run.config, ledger=LedgerConfig(ledger=False))
        result = replay_tokens(reader, partial(build_core, parts), config, limit=AGAIN)
    assert result.different == []
    assert result.not_kept == 0
    assert result.same == sum(bool(answer.token_ids) for answer in run.answers[:AGAIN])


def test_it_stores_few_bytes_for_a_token(run: Run, tmp_path: Path) -> None:
    """Sizes are no timings: without kept prompts the run must stay far below 250 bytes for each token."""
    with LedgerReader(run.path) as reader:
        kept = sum(len(row.detail) for row in reader.all_requests())
        tokens = sum(len(answer.token_ids) for answer in run.answers)
    assert (run.path.stat().st_size - kept) / tokens < 150
