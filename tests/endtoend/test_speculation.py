"""Drafts change no token: answers of the real model with and without them, compared token by token."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ekiden.build.engines import build_llm
from ekiden.build.model import load_model
from ekiden.config import CacheConfig, Config, EngineConfig, SchedulerConfig
from ekiden.engine.engine_core import EngineCore
from ekiden.engine.llm import LLM
from ekiden.engine.parts import EngineParts
from ekiden.state.drafting import Drafter
from ekiden.state.request import FinishReason, RequestUpdate, TokenLogprobs
from ekiden.state.sampling_params import Grammar, GrammarKind, SamplingParams
from tests.endtoend.conftest import SmallPool
from tests.guessing import KnowsAnswers, guess_by

OUTPUT = 24
LONG, LONG_OUTPUT = 12, 64
"""So many of the prompts get answers that outgrow what admission sets aside."""
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["plant", "animal"]}},
    "required": ["name", "kind"],
}
Outcome = tuple[tuple[int, ...], tuple[TokenLogprobs, ...], FinishReason, str | int | None]
"""Tokens, their log-probabilities, why the answer ended, and with what."""


def sampling(index: int, output: int) -> SamplingParams:
    """Each prompt has its own way of sampling; long answers are those that nothing ends earlier."""
    every: list[dict[str, Any]] = [
        {"temperature": 0.0, "ignore_eos": True},
        {"temperature": 0.8, "top_p": 0.95, "seed": index, "ignore_eos": True},
        {"temperature": 0.0, "repetition_penalty": 1.3, "logprobs": 3},
        {"temperature": 1.0, "top_k": 40, "frequency_penalty": 0.6, "presence_penalty": 0.2, "seed": index},
        {"temperature": 0.7, "logprobs": 1, "min_tokens": 20, "seed": index},
        {"temperature": 0.0, "stop": (" the",), "min_tokens": 3},
        {"temperature": 0.9, "min_p": 0.05, "logit_bias": {260: 2.0}, "seed": index, "ignore_eos": True},
        {"temperature": 0.0, "grammar": Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(SCHEMA))},
    ]
    if output == LONG_OUTPUT:
        every = [each for each in every if "ignore_eos" in each]
    return SamplingParams(max_tokens=output, **every[index % len(every)])


def settings(speculation: str = "ngram", **scheduler: object) -> Config:
    values = {"max_num_seqs": 24, "max_num_batched_tokens": 512, **scheduler}
    return Config(
        scheduler=SchedulerConfig(**values),  # type: ignore[arg-type]
        cache=CacheConfig(enable_prefix_caching=False),
        engine=EngineConfig(speculation=speculation),
    )


class Compared:
    """The answers of 24 prompts without drafts, and runs with drafts that must give the same."""

    def __init__(self, parts: EngineParts, prompts: list[list[int]], output: int = OUTPUT) -> None:
        self.parts, self.prompts, self.output = parts, prompts, output
        self.plain = self._run(build_llm(parts, settings("none")), range(len(prompts)))
        self.answers = {tuple(prompt): one[0] for prompt, one in zip(prompts, self.plain, strict=True)}

    def knowing(self, wrong: int = 3) -> KnowsAnswers:
        return KnowsAnswers(self.answers, wrong)

    def check(
        self,
        config: Config,
        drafter: Drafter | None = None,
        order: Sequence[int] | None = None,
        parts: EngineParts | None = None,
    ) -> EngineCore:
        """The core that gave the same answers, with the same ends and log-probabilities, by drafts."""
        llm = build_llm(parts or self.parts, config)
        if drafter is not None:
            guess_by(llm.core, drafter)
        numbers = list(range(len(self.prompts))) if order is None else list(order)
        found = self._run(llm, numbers)
        for number, one in zip(numbers, found, strict=True):
            assert one == self.plain[number], f"prompt {number} with {sampling(number, self.output)}"
        stats = llm.core.stats()
        assert stats.spec_decode_num_accepted_tokens_total > 0
        assert stats.spec_decode_num_draft_tokens_total > stats.spec_decode_num_accepted_tokens_total
        return llm.core

    def _run(self, llm: LLM, numbers: Sequence[int]) -> list[Outcome]:
        requests = [llm._request(self.prompts[number], sampling(number, self.output)) for number in numbers]
        updates: dict[str, list[RequestUpdate]] = {request.request_id: [] for request in requests}
        for request in requests:
            llm.core.add_request(request)
        while llm.core.has_work:
            for update in llm.core.step().updates:
                updates[update.request_id].append(update)
            llm.core.check_integrity()
        found = []
        for request in requests:
            mine = updates[request.request_id]
            finish = mine[-1].finish
            assert finish is not None
            tokens = tuple(token for update in mine for token in update.token_ids)
            logprobs = tuple(each for update in mine for each in update.logprobs or ())
            found.append((tokens, logprobs, finish.reason, finish.stop_reason))
        assert llm.core.stats().kv_blocks_used == 0
        return found


@pytest.fixture(scope="module")
def compared(parts: EngineParts, chat_prompts: list[list[int]]) -> Compared:
    assert parts.runner.info.max_drafts > 0
    return Compared(parts, chat_prompts)


@pytest.fixture(scope="module")
def long(parts: EngineParts, chat_prompts: list[list[int]]) -> Compared:
    return Compared(parts, chat_prompts[:LONG], LONG_OUTPUT)


def test_alone(compared: Compared) -> None:
    drafter = compared.knowing()
    each = range(8)  # every way of sampling once
    core = compared.check(settings(batching="sequential"), drafter, each)
    assert core.stats().steps_total < sum(len(compared.plain[number][0]) for number in each), "several a step"
    assert len(drafter.forgotten) == len(each), "what is known of a request ends with it"


def test_together(compared: Compared) -> None:
    core = compared.check(settings(), compared.knowing(wrong=5))
    assert core.stats().spec_decode_num_draft_tokens_total > 200


def test_in_any_order_with_few_slots_and_a_small_budget(compared: Compared) -> None:
    order = list(range(24))
    random.Random(7).shuffle(order)
    compared.check(settings(max_num_seqs=7, max_num_batched_tokens=88), compared.knowing(), order)


@pytest.mark.parametrize("swap_blocks", [2000, 0], ids=["swapped out and back", "dropped and computed again"])
def test_preempted(long: Compared, swap_blocks: int) -> None:
    blocks = sum(-(-len(prompt) // 32) for prompt in long.prompts) + LONG - 1  # just enough to admit them all
    pool = SmallPool(long.parts.runner, num_blocks=blocks, num_swap_blocks=swap_blocks)
    core = long.check(settings(max_num_seqs=LONG), long.knowing(wrong=3), parts=replace(long.parts, runner=pool))
    assert core.stats().preemptions_total > 0
    assert (pool.swapped_out > 0) == (swap_blocks > 0)


def test_with_prompts_found_in_the_prefix_cache(compared: Compared) -> None:
    config = replace(settings(), cache=CacheConfig(enable_prefix_caching=True))
    core = compared.check(config, compared.knowing(), [*range(12), *range(12)])
    assert core.stats().prefix_cache_hits_total > 0


def test_by_lookup_as_it_is_served(compared: Compared) -> None:
    compared.check(settings("auto", batching="sequential", target_itl_ms=0.0), order=range(8))


def test_with_another_number_of_threads(chat_prompts: list[list[int]]) -> None:
    config = replace(settings(), engine=EngineConfig(threads=3), cache=CacheConfig(kv_cache_size="64MiB"))
    loaded = load_model(config)
    try:
        one = Compared(loaded, chat_prompts[:8])
        one.check(settings(), one.knowing())
    finally:
        loaded.runner.close()
