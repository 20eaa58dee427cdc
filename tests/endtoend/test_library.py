"""The package as a library, as its README shows it."""

import pytest

import ekiden
from ekiden.config import ConfigError
from ekiden.state.sampling_params import SamplingParams


def test_a_model_is_loaded_and_answers() -> None:
    with ekiden.load(max_num_seqs=4, kv_cache_size="64MiB") as llm:
        completions = llm.generate(["The capital of France is", "2 + 2 ="], SamplingParams(temperature=0, max_tokens=5))
    assert [len(completion.token_ids) for completion in completions] == [5, 5]
    assert "Paris" in (completions[0].text or "")


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(ConfigError, match="max_seqs: no such setting"):
        ekiden.load(max_seqs=4)
