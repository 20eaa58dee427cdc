"""A draft model beside a model on OpenVINO: other tiny models with the same tokenizer, and one with another."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ekiden.build.engines import build_llm
from ekiden.build.model import load_model
from ekiden.config import CacheConfig, Config, ConfigError, EngineConfig, ModelConfig, SchedulerConfig
from ekiden.models.load import describe
from ekiden.models.resolve import files_in_folder
from ekiden.state.sampling_params import SamplingParams
from tests.guessing import FreeRows, speculation_of

PROMPTS = [[5 + (3 * number + at) % 90 for at in range(20 + 7 * number)] for number in range(6)]


def sampling(number: int) -> SamplingParams:
    drawn: dict[str, Any] = {"temperature": 0.8, "seed": number} if number % 2 else {"temperature": 0.0}
    return SamplingParams(max_tokens=24, ignore_eos=True, **drawn)


def config(folder: Path, cache: Path, draft: Path | None, **engine: Any) -> Config:
    return Config(
        model=ModelConfig(model=str(folder), model_cache=str(cache)),
        cache=CacheConfig(kv_cache_size="8MiB", swap_size="1MiB", enable_prefix_caching=False),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=128, target_itl_ms=0.0),
        engine=EngineConfig(draft_model=None if draft is None else str(draft), draft_kv_cache_size="8MiB", **engine),
    )


@pytest.mark.parametrize(
    ("draft", "least"), [("llama", 0.95), ("llama-tied", 0.0)], ids=["the model itself", "one that knows nothing"]
)
def test_answers_are_those_without_it(reference_dir: Path, tmp_path: Path, draft: str, least: float) -> None:
    model = reference_dir / "llama"
    settings = config(model, tmp_path, reference_dir / draft, speculation="draft-model")
    parts = load_model(settings)
    assert parts.draft_runner is not None
    assert (
        parts.card.lineage.model["draft_weights"]
        == describe(files_in_folder(reference_dir / draft, draft, tmp_path)).digests["weights"]
    )
    plain = build_llm(parts, config(model, tmp_path, None, speculation="none"))
    expected = plain.generate(PROMPTS, [sampling(number) for number in range(6)])
    llm = build_llm(parts, settings)
    speculation_of(llm.core).step_time = FreeRows()
    found = llm.generate(PROMPTS, [sampling(number) for number in range(6)])
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    stats = llm.core.stats()
    assert stats.spec_decode_num_draft_tokens_total > 0
    assert stats.spec_decode_num_accepted_tokens_total >= least * stats.spec_decode_num_draft_tokens_total
    assert (stats.steps_total < plain.core.stats().steps_total / 2) == (least > 0)
    parts.runner.close()
    parts.draft_runner.close()


def test_a_model_with_another_tokenizer_is_refused_by_name(reference_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(reference_dir / "llama-tied", other)
    path = other / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[40:42]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(
        ConfigError, match=r"draft_model is '.*other', whose tokenizer is not that of llama: token \d+ is"
    ):
        load_model(config(reference_dir / "llama", tmp_path, other))


def test_a_draft_model_without_its_speculation_is_refused() -> None:
    with pytest.raises(ConfigError, match="draft_model is 'tiny' and speculation ngram, which does not use it"):
        EngineConfig(draft_model="tiny", speculation="ngram")
    with pytest.raises(ConfigError, match="speculation is draft-model and no draft model is given"):
        EngineConfig(speculation="draft-model")
