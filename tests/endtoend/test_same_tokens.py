"""The promise: the same request gives the same tokens whatever its neighbours, order, chunking, policy or memory.

Real chat prompts on the real model, greedy and sampled, compared token by token with each one run alone.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice

import pytest

from ekiden.build.engines import build_llm
from ekiden.config import BATCHING, ORDERS, CacheConfig, Config, SchedulerConfig
from ekiden.engine.parts import EngineParts
from ekiden.state.sampling_params import SamplingParams
from tests.endtoend.conftest import SmallPool

PROMPTS, OUTPUT = 16, 24
LONG, LONG_OUTPUT = 8, 64
"""So many of the prompts get answers that outgrow what admission sets aside."""
TOGETHER = [name for name in BATCHING if name != "sequential"]
POLICIES = list(islice(zip(cycle(TOGETHER), cycle(ORDERS), strict=False), max(len(TOGETHER), len(ORDERS))))
"""Each batching policy and each order of the waiting queue at least once; all pairs are the simulation's."""
Tokens = list[tuple[int, ...]]


def sampling(index: int, output: int = OUTPUT) -> SamplingParams:
    """Two in three greedy, one in three drawn with its own seed; all long enough to diverge if they could."""
    if index % 3 == 2:
        return SamplingParams(temperature=0.8, top_p=0.95, seed=index, max_tokens=output, ignore_eos=True)
    return SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)


def run(
    parts: EngineParts,
    prompts: Sequence[list[int]],
    config: Config,
    order: Sequence[int] | None = None,
    output: int = OUTPUT,
) -> Tokens:
    """The tokens of each prompt by its own number, when they are submitted in ``order``."""
    order = range(len(prompts)) if order is None else order
    llm = build_llm(parts, config)
    completions = llm.generate([prompts[i] for i in order], [sampling(i, output) for i in order])
    llm.core.check_integrity()
    assert llm.core.stats().kv_blocks_used == 0
    by_number = dict(zip(order, (completion.token_ids for completion in completions), strict=True))
    return [by_number[i] for i in sorted(order)]


def settings(*, prefix_caching: bool = False, **scheduler: object) -> Config:
    values = {"max_num_seqs": 24, "max_num_batched_tokens": 512, **scheduler}
    return Config(
        scheduler=SchedulerConfig(**values),  # type: ignore[arg-type]
        cache=CacheConfig(enable_prefix_caching=prefix_caching),
    )


@pytest.fixture(scope="module")
def prompts(chat_prompts: list[list[int]]) -> list[list[int]]:
    return chat_prompts[:PROMPTS]


@pytest.fixture(scope="module")
def long_alone(parts: EngineParts, prompts: list[list[int]]) -> Tokens:
    """The first prompts with long answers, each by itself, one at a time."""
    return run(parts, prompts[:LONG], settings(batching="sequential"), output=LONG_OUTPUT)


@pytest.fixture(scope="module")
def alone(parts: EngineParts, prompts: list[list[int]], long_alone: Tokens) -> Tokens:
    """Each prompt by itself; where a long answer is at hand, its beginning is the short one."""
    rest = run(parts, prompts, settings(batching="sequential"), range(LONG, len(prompts)))
    return [tokens[:OUTPUT] for tokens in long_alone] + rest


def test_a_longer_answer_begins_as_the_shorter_one(parts: EngineParts, prompts: list[list[int]], alone: Tokens) -> None:
    """So that one run serves for both; drawn and greedy rows."""
    assert run(parts, prompts, settings(batching="sequential"), range(1, 3)) == alone[1:3]


@pytest.mark.parametrize(("batching", "order"), POLICIES)
def test_together_under_every_batching_policy(
    parts: EngineParts, prompts: list[list[int]], alone: Tokens, batching: str, order: str
) -> None:
    assert run(parts, prompts, settings(batching=batching, scheduling_policy=order, max_num_seqs=8)) == alone


@pytest.mark.parametrize("budget", [88, 120, 1024])
def test_in_any_order_of_arrival_and_any_allowed_chunking(
    parts: EngineParts, prompts: list[list[int]], alone: Tokens, budget: int
) -> None:
    order = list(range(PROMPTS))
    random.Random(budget).shuffle(order)
    config = settings(max_num_batched_tokens=budget, target_itl_ms=0.0, max_concurrent_prefills=3)
    assert run(parts, prompts, config, order) == alone


def test_with_prompts_found_in_the_prefix_cache(parts: EngineParts, prompts: list[list[int]], alone: Tokens) -> None:
    config = settings(prefix_caching=True, max_num_seqs=12)
    llm = build_llm(parts, config)
    for _ in range(2):
        completions = llm.generate(prompts, [sampling(i) for i in range(PROMPTS)])
        assert [completion.token_ids for completion in completions] == alone
    cached = sum(completion.finish.num_cached_tokens for completion in completions if completion.finish)
    assert cached >= PROMPTS * 32, "the second round found less than a block for each prompt"


@pytest.mark.parametrize("swap_blocks", [2000, 0], ids=["swapped out and back", "dropped and computed again"])
def test_with_a_pool_so_small_that_sequences_are_preempted(
    parts: EngineParts, prompts: list[list[int]], long_alone: Tokens, swap_blocks: int
) -> None:
    long = prompts[:LONG]
    blocks = sum(-(-len(prompt) // 32) for prompt in long) + LONG - 1  # just enough to admit them all
    pool = SmallPool(parts.runner, num_blocks=blocks, num_swap_blocks=swap_blocks)
    # Drafts, whose number follows from measured times, would decide who is preempted.
    llm = build_llm(replace(parts, runner=pool), settings(max_num_seqs=LONG, num_speculative_tokens=0))
    completions = llm.generate(long, [sampling(i, LONG_OUTPUT) for i in range(LONG)])
    assert [completion.token_ids for completion in completions] == long_alone
    preempted = sum(completion.finish.num_preemptions > 0 for completion in completions if completion.finish)
    assert preempted >= 3, f"only {preempted} of {LONG} were preempted"
    assert (pool.swapped_out > 0) == (swap_blocks > 0)


def test_while_neighbours_are_aborted_and_paused(parts: EngineParts, prompts: list[list[int]], alone: Tokens) -> None:
    llm = build_llm(parts, settings(max_num_seqs=12))
    core = llm.core
    rng = random.Random(3)
    victims = {f"offline-{number}" for number in rng.sample(range(PROMPTS), 5)}

    aborted = set(victims)
    for index in range(PROMPTS):
        core.add_request(llm._request(prompts[index], sampling(index)))
    tokens: dict[str, list[int]] = {f"offline-{index}": [] for index in range(PROMPTS)}
    while core.has_work:
        for update in core.step().updates:
            tokens[update.request_id] += update.token_ids
        if victims:
            core.abort(victims.pop())
        for request_id in core.population.paused:
            core.resume(request_id)
        if len(core.population.running) > 1:
            core.pause(rng.choice(core.population.running).request_id)
    for index, reference in enumerate(alone):
        got = tuple(tokens[f"offline-{index}"])
        assert got == (reference[: len(got)] if f"offline-{index}" in aborted else reference)
