"""Prompts that are only read by the real model: the same vectors and scores whatever runs beside them, and whether they
tell related texts from others at all."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ekiden.build.core import build_core
from ekiden.config import CacheConfig, Config, SchedulerConfig
from ekiden.engine.driver import Answer, run_batch
from ekiden.engine.parts import EngineParts
from ekiden.models.resolve import ModelFiles
from ekiden.state.request import Pooling, Reading, Request
from ekiden.state.sampling_params import SamplingParams
from tests.endtoend.conftest import SmallPool
from tests.endtoend.serving import server

READ = 6
"""So many prompts are read in two ways, beside as many answers."""
OUTPUT = 8


def readings(prompts: Sequence[Sequence[int]]) -> list[Request]:
    """Prompts are joined in pairs, so that the longest take several chunks."""
    made: list[Request] = []
    for index in range(READ):
        prompt = (*prompts[index], *prompts[index + 1])
        kinds = (Reading(pooling=Pooling.MEAN), Reading(pooling=Pooling.LAST, scored_from=len(prompts[index])))
        made += [
            Request(
                request_id=f"read-{index}-{place}",
                prompt_token_ids=prompt,
                sampling=SamplingParams(temperature=0.0),
                arrival_time=0.0,
                reading=reading,
            )
            for place, reading in enumerate(kinds)
        ]
    return made


def answers(prompts: Sequence[Sequence[int]]) -> list[Request]:
    sampling = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
    return [
        Request(request_id=f"answer-{index}", prompt_token_ids=tuple(prompt), sampling=sampling, arrival_time=0.0)
        for index, prompt in enumerate(prompts)
    ]


def settings(*, prefix_caching: bool = False, **scheduler: object) -> Config:
    values = {"max_num_seqs": 24, "max_num_batched_tokens": 512, **scheduler}
    return Config(
        scheduler=SchedulerConfig(**values),  # type: ignore[arg-type]
        cache=CacheConfig(enable_prefix_caching=prefix_caching),
    )


def run(parts: EngineParts, requests: list[Request], config: Config) -> dict[str, tuple[object, ...]]:
    core = build_core(parts, config)
    found = {answer.request.request_id: what(answer) for answer in run_batch(core, requests)}
    assert core.stats().kv_blocks_used == 0
    return found


def what(answer: Answer) -> tuple[object, ...]:
    assert answer.finish is not None
    return tuple(answer.token_ids), answer.pooled, answer.prompt_logprobs


@pytest.fixture(scope="module")
def alone(parts: EngineParts, chat_prompts: list[list[int]]) -> dict[str, tuple[object, ...]]:
    config = settings(batching="sequential", max_num_batched_tokens=1024)
    return run(parts, [*readings(chat_prompts), *answers(chat_prompts[:READ])], config)


@pytest.mark.parametrize(
    "config",
    [
        settings(max_num_batched_tokens=88, target_itl_ms=0.0, max_concurrent_prefills=3),
        settings(prefix_caching=True),
    ],
    ids=["in small chunks", "with prefixes shared"],
)
def test_the_same_bits_beside_anything(
    parts: EngineParts, chat_prompts: list[list[int]], alone: dict[str, tuple[object, ...]], config: Config
) -> None:
    read, asked = readings(chat_prompts), answers(chat_prompts[:READ])
    found = run(parts, [*asked[:2], *read, *asked[2:]], config)
    assert found == alone


@pytest.mark.parametrize("swap_blocks", [2000, 0], ids=["swapped out and back", "dropped and computed again"])
def test_the_same_bits_after_a_preemption(
    parts: EngineParts, chat_prompts: list[list[int]], alone: dict[str, tuple[object, ...]], swap_blocks: int
) -> None:
    """Answers that were admitted first outgrow the pool while later prompts are read in small chunks."""
    pool = SmallPool(parts.runner, num_blocks=40, num_swap_blocks=swap_blocks)
    config = settings(max_num_batched_tokens=88, target_itl_ms=0.0, max_concurrent_prefills=3)
    core = build_core(replace(parts, runner=pool), config)
    read = readings(chat_prompts)
    paused: set[str] = set()
    for request in read:
        core.add_request(request)
    found: dict[str, tuple[object, ...]] = {}
    while core.has_work:
        for update in core.step().updates:
            found[update.request_id] = update.token_ids, update.pooled, update.prompt_logprobs
        # Each is taken out once, in the middle of its prompt where it has one.
        for request_id in list(core.population.paused):
            core.resume(request_id)
        for sequence in core.population.running:
            if sequence.num_computed_tokens and sequence.request_id not in paused:
                paused.add(sequence.request_id)
                core.pause(sequence.request_id)
    assert len(paused) >= 4
    assert (pool.swapped_out > 0) == (swap_blocks > 0)
    assert found == {request.request_id: alone[request.request_id] for request in read}


RELATED = [
    ("How do bees make honey?", "Workers collect nectar from flowers and fan it in the hive until it thickens."),
    ("Who painted the Mona Lisa?", "Leonardo da Vinci worked on the portrait for years; it hangs in the Louvre."),
    ("How can I repair a flat bicycle tyre?", "Pull the tube out, find the hole in water, and glue a patch over it."),
    ("What causes earthquakes?", "Plates of the crust are stuck until the rock breaks along a fault and shakes."),
    ("How do vaccines work?", "The immune system is shown a harmless piece of a germ and makes antibodies."),
    ("What do pandas eat?", "Almost all of their food is bamboo, of which they chew leaves and stems all day."),
]


async def test_related_texts_come_first(parts: EngineParts, smollm2_files: ModelFiles) -> None:
    """Of six, five at least: the tyre's patch is second by a hair in float32 too. More pairs are in decision 17."""
    queries, documents = map(list, zip(*RELATED, strict=True))
    async with server(parts, smollm2_files) as client:
        model = client.engine.card.model_id
        body = {"model": model, "input": queries + documents}
        made = (await client.http.post("/v1/embeddings", json=body)).json()
        vectors = np.array([each["embedding"] for each in made["data"]])
        assert vectors.shape == (12, 576)
        nearest = (vectors[:6] @ vectors[6:].T).argmax(axis=1)
        assert (nearest == np.arange(6)).sum() >= 5
        first = 0
        for index, query in enumerate(queries):
            asked = {"model": model, "query": query, "documents": documents, "top_n": 1}
            best = (await client.http.post("/v1/rerank", json=asked)).json()["results"]
            first += [each["index"] for each in best] == [index]
        assert first >= 5
