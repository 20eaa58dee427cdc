"""The bench of quality on the fake model, whose next token and its likelihood are known."""

import math

import pytest

from ekiden.config import CacheConfig, Config, ConfigError, ModelConfig
from ekiden.errors import UserError
from ekiden.evaluation.benches.quality import (
    ANSWER_TOKENS,
    Material,
    Measured,
    formats,
    left_after,
    measure,
    perplexity,
    quality_figures,
    reference_config,
    with_weights,
)
from ekiden.evaluation.workloads.package_data import passages
from tests.fake_answers import next_token
from tests.unit.evaluation.benches.test_bench import CONFIG, make_parts

VOCABULARY = 1000
MATERIAL = Material(passages=[[1, 2, 3, 4], [5, 6]], prompts=[[7, 8, 9], [10]])
MISSED = math.log(math.e + VOCABULARY - 1)
"""The loss of a token that is not the hashed one: the fake model gives that a logit of 1 and all others 0."""


def followed(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, VOCABULARY))
    return tokens


def test_a_measurement_scores_every_token_but_the_first_and_answers_every_prompt():
    sure = followed([1], 2)  # the model's own choices: each has the higher logit
    found = measure(make_parts(), CONFIG, Material(passages=[*MATERIAL.passages, sure], prompts=MATERIAL.prompts))
    assert found.losses == pytest.approx([3 * MISSED, MISSED, 2 * (MISSED - 1)])
    assert found.answers == [followed(prompt, ANSWER_TOKENS)[len(prompt) :] for prompt in MATERIAL.prompts]
    assert (found.same_choices, found.stored_bytes) == (None, None)


def test_choices_are_compared_after_the_same_text():
    parts = make_parts()
    reference = measure(parts, CONFIG, MATERIAL)
    again = measure(parts, CONFIG, MATERIAL, reference)
    assert again.same_choices == 2 * ANSWER_TOKENS
    # One other token: it is not the likeliest, and it changes what the fake model says to all that come after it.
    other = [list(answer) for answer in reference.answers]
    other[1][-1] ^= 1
    changed = Measured(losses=reference.losses, answers=other)
    found = measure(parts, CONFIG, MATERIAL, changed)
    assert found.same_choices == 2 * ANSWER_TOKENS - 1
    figures = quality_figures(found, changed, MATERIAL)
    assert figures["left_after"] == [ANSWER_TOKENS, ANSWER_TOKENS - 1]
    assert (figures["perplexity_ratio"], figures["compared_choices"]) == (1.0, 2 * ANSWER_TOKENS)
    assert figures["perplexity"] == pytest.approx(math.exp(MISSED))


def test_perplexity_weighs_tokens_and_not_texts():
    assert perplexity([3 * math.log(2), math.log(32)], [3, 1]) == pytest.approx(4.0)
    assert [left_after(answer, [1, 2, 3]) for answer in ([1, 2, 3], [1, 0, 3], [0, 2, 3])] == [3, 1, 0]


def test_the_formats_are_those_of_the_setting():
    assert not {"fp32", "auto"} & set(formats(None))
    assert {"int8", "fp16"} <= set(formats(None))
    assert formats(" fp16 ,int8,fp16") == ["fp16", "int8"]
    with pytest.raises(UserError, match="'int3'; the formats are .*int8, .*fp32"):
        formats("int3")


def test_the_reference_is_float32_throughout_and_a_format_obeys_the_other_settings():
    config = Config(model=ModelConfig(expand_weights="always"), cache=CacheConfig(kv_dtype="u8"))
    plain = reference_config(config)
    assert (plain.model.weights, plain.cache.kv_dtype) == ("fp32", "f32")
    with pytest.raises(ConfigError, match="expand_weights is always"):
        with_weights(config, "fp16")


def test_a_request_that_the_engine_refuses_ends_the_measurement():
    with pytest.raises(UserError, match="refused a request of the bench: .*token ids are between 0 and 999"):
        measure(make_parts(), CONFIG, Material(passages=[[1, VOCABULARY]], prompts=[[1]]))


@pytest.mark.parametrize("language", ["en", "ja"])
def test_the_carried_texts_are_enough_for_both_figures(language):
    assert len(passages(language)) > 16
    assert all(text.strip() for text in passages(language))
