"""The default model against float32 PyTorch (`tests/reference/make_smollm2_reference.py` made the stored answers)."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ekiden.build.engines import build_llm
from ekiden.build.model import load_model
from ekiden.config import CacheConfig, Config, ModelConfig
from ekiden.engine.parts import EngineParts
from ekiden.state.request import Request
from ekiden.state.sampling_params import SamplingParams


@pytest.fixture(scope="module")
def reference(reference_dir: Path) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((reference_dir / "smollm2_reference.json").read_text())
    return stored


def test_fp16_weights_and_f32_kv_give_the_reference_tokens(reference: dict[str, Any]) -> None:
    config = Config(model=ModelConfig(weights="fp16"), cache=CacheConfig(kv_dtype="f32", kv_cache_size="256MiB"))
    rows = reference["greedy"]
    sampling = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
    with build_llm(load_model(config), config) as llm:
        completions = llm.generate([row["prompt"] for row in rows], sampling)
    assert [list(completion.token_ids) for completion in completions] == [row["fp32"] for row in rows]


def test_perplexity_of_the_default_configuration_is_within_two_percent(
    parts: EngineParts, reference: dict[str, Any]
) -> None:
    core = build_llm(parts, Config()).core
    for index, passage in enumerate(reference["passages"]):
        core.add_request(
            Request(
                request_id=str(index),
                prompt_token_ids=tuple(passage),
                sampling=SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0),
                arrival_time=0.0,
            )
        )
    losses: list[float] = []
    while core.has_work:
        for update in core.step().updates:
            losses += [-token.logprob for token in update.prompt_logprobs or ()]
    assert len(losses) == sum(len(passage) - 1 for passage in reference["passages"])
    perplexity = math.exp(sum(losses) / len(losses))
    assert perplexity == pytest.approx(reference["perplexity"]["fp32"], rel=0.02)
    print(f"perplexity {perplexity:.3f} against {reference['perplexity']['fp32']:.3f} in float32")
