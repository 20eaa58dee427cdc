"""``config.json`` to a spec: both spellings of rotary settings, the classes' defaults, windows, and what is refused."""

import json

import pytest

from ekiden.models.architectures.hf_config import spec_from_config
from ekiden.models.errors import ModelError

BASE = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
}


def spec(family: str = "llama", **changes: object):
    config = {"model_type": family, **BASE, **changes}
    return spec_from_config("config.json", {key: value for key, value in config.items() if value != "absent"})


@pytest.mark.parametrize("name", ["llama", "llama-rope-llama3", "llama-rope-linear", "llama-rope-yarn"])
def test_the_older_spelling_of_rotary_settings_means_the_same(reference_dir, name):
    config = json.loads((reference_dir / name / "config.json").read_text())
    newer = spec_from_config("c", config)
    parameters = dict(config.pop("rope_parameters"))
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = None if parameters["rope_type"] == "default" else parameters
    assert spec_from_config("c", config) == newer
    if config["rope_scaling"]:
        parameters["type"] = parameters.pop("rope_type")  # older still
        assert spec_from_config("c", config) == newer


def test_defaults_of_the_classes():
    assert spec(num_key_value_heads="absent").num_kv_heads == 4
    assert spec(num_key_value_heads=None).num_kv_heads == 4
    assert spec("mistral", num_key_value_heads="absent", num_attention_heads=8).num_kv_heads == 8
    assert spec(head_dim=None).head_dim == 16
    assert spec("qwen3").head_dim == 128
    assert spec().rope.inverse_frequencies[1] == pytest.approx(10000 ** (-2 / 16))
    assert not spec().tie_word_embeddings


def test_biases_and_norms_by_family():
    assert (spec().attention_bias, spec().output_bias, spec().qk_norm) == (False, False, False)
    biased = spec(attention_bias=True, mlp_bias=True)
    assert (biased.attention_bias, biased.output_bias, biased.mlp_bias) == (True, True, True)
    assert (spec("qwen2").attention_bias, spec("qwen2").output_bias) == (True, False)
    assert (spec("qwen3").attention_bias, spec("qwen3").qk_norm) == (False, True)
    assert not spec("mistral", attention_bias=True).attention_bias  # the class has no such thing


class TestSlidingWindow:
    def test_mistral(self):
        assert spec("mistral", sliding_window=4096).sliding_window == 4096
        assert spec("mistral").sliding_window == 4096  # the class's default
        assert spec("mistral", sliding_window=None).sliding_window is None
        assert spec("mistral", sliding_window=8192).sliding_window is None  # never cuts anything

    def test_llama_has_none(self):
        assert spec(sliding_window=128).sliding_window is None

    @pytest.mark.parametrize("family", ["qwen2", "qwen3"])
    def test_qwen_only_where_it_is_switched_on_for_every_layer(self, family):
        assert spec(family, sliding_window=128).sliding_window is None
        on = {"use_sliding_window": True, "sliding_window": 128}
        assert spec(family, **on, max_window_layers=0).sliding_window == 128
        assert spec(family, **on, max_window_layers=2).sliding_window is None
        assert spec(family, **on).sliding_window is None  # 28 layers come first by default
        assert spec(family, **on, layer_types=["sliding_attention"] * 2).sliding_window == 128
        with pytest.raises(ModelError, match="1 of 2 layers use a sliding window"):
            spec(family, **on, max_window_layers=1)


class TestRefused:
    @pytest.mark.parametrize("family", ["gemma2", "phi3", None, 5, "absent"])
    def test_other_architectures(self, family):
        with pytest.raises(ModelError, match=r"is not supported \(llama, mistral, qwen2, qwen3 are\).*optimum-cli"):
            spec(family)

    @pytest.mark.parametrize(
        "key",
        [
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "max_position_embeddings",
        ],
    )
    @pytest.mark.parametrize("value", ["absent", None, 0, -1, 1.5, "64", True, 10**12])
    def test_needed_numbers(self, key, value):
        with pytest.raises(ModelError, match=f"config.json: '{key}' is"):
            spec(**{key: value})

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"num_key_value_heads": 3}, "cannot share 3"),
            ({"head_dim": 15}, "must be even"),
            ({"hidden_act": "gelu"}, "activation 'gelu'"),
            ({"quantization_config": {"quant_method": "gptq"}}, "quantised with 'gptq'"),
            ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic' is not supported"),
            ({"rope_scaling": {"rope_type": "linear"}}, "'factor' is missing"),
            ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "'factor' is 0, not a positive"),
            ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "'low_freq_factor'"),
            ({"rope_scaling": 5}, "not an object"),
            ({"rope_theta": -1}, "'rope_theta' is -1"),
            ({"rope_theta": float("nan")}, "rope_theta"),
            ({"partial_rotary_factor": 0.5}, "partial rotary"),
            ({"rms_norm_eps": 0}, "rms_norm_eps"),
            ({"tie_word_embeddings": "yes"}, "not true or false"),
        ],
    )
    def test_what_does_not_fit(self, changes, words):
        with pytest.raises(ModelError, match=words):
            spec(**changes)
