"""The default model against float32 PyTorch (`tests/reference/make_smollm2_reference.py` made the stored answers)."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from ekiden.build.engines import build_llm
from ekiden.build.model import load_model
from ekiden.config import CacheConfig, Config, ModelConfig
from ekiden.engine.parts import EngineParts
from ekiden.state.request import Request
from ekiden.state.sampling_params import SamplingParams
from tests.backends.driving import ROTATED_FORMATS

SOAK = "SOAK_FORMATS" in os.environ
LENGTH = 48 if SOAK else 24
"""How many of the stored tokens are made again."""


@pytest.fixture(scope="module")
def reference(reference_dir: Path) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((reference_dir / "smollm2_reference.json").read_text())
    return stored


def test_fp16_weights_and_f32_kv_give_the_reference_tokens(reference: dict[str, Any]) -> None:
    config = Config(model=ModelConfig(weights="fp16"), cache=CacheConfig(kv_dtype="f32", kv_cache_size="256MiB"))
    rows = reference["greedy"]
    sampling = SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True)
    with build_llm(load_model(config), config) as llm:
        completions = llm.generate([row["prompt"] for row in rows], sampling)
    assert [list(completion.token_ids) for completion in completions] == [row["fp32"][:LENGTH] for row in rows]


def perplexity(parts: EngineParts, passages: list[list[int]]) -> float:
    """exp of the mean negative log-likelihood of every token but the first, all passages together."""
    core = build_llm(parts, Config()).core
    for index, passage in enumerate(passages):
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
    assert len(losses) == sum(len(passage) - 1 for passage in passages)
    return math.exp(sum(losses) / len(losses))


def test_perplexity_of_the_default_configuration_is_that_of_float32(
    parts: EngineParts, reference: dict[str, Any]
) -> None:
    """Within 0.5% where the model is rotated; within 2% where the processor gets int8 as it was."""
    rotated = parts.runner.info.details["weights"] in ("int8-rotated", "int8-kernels")
    found = perplexity(parts, reference["passages"])
    assert found == pytest.approx(reference["perplexity"]["fp32"], rel=0.005 if rotated else 0.02)
    print(f"perplexity {found:.3f} against {reference['perplexity']['fp32']:.3f} in float32")


@pytest.mark.skipif(not SOAK, reason="takes a minute for each format: make soak")
@pytest.mark.parametrize("weights", ["int4", *ROTATED_FORMATS])
def test_rotation_and_a_files_own_four_bits_cost_no_perplexity(weights: str, reference: dict[str, Any]) -> None:
    """Within 0.5% of float32, from which int8 is 0.9% away."""
    config = Config(model=ModelConfig(weights=weights), cache=CacheConfig(kv_cache_size="256MiB"))
    loaded = load_model(config)
    assert perplexity(loaded, reference["passages"]) == pytest.approx(reference["perplexity"]["fp32"], rel=0.005)
    loaded.runner.close()
