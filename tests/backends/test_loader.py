"""Loading: what is refused, what the lineage is told, and that a second start tests only briefly."""

import logging
import os
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from ekiden.backends.openvino import kernels, machine
from ekiden.backends.openvino.kernels import Kernels
from ekiden.backends.openvino.reduction import OpenVINOReducer
from ekiden.backends.openvino.self_test import SelfTest, SelfTestResult
from ekiden.build.model import load_model
from ekiden.config import Config, ConfigError, ModelConfig
from ekiden.models.errors import ModelError
from tests.backends.driving import load_folder, sequence, step

SMALL = {"kv_cache_size": "8MiB", "weights": "fp32", "kv_dtype": "f32"}


def test_another_block_size_is_refused_with_the_way_out(reference_dir: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"block_size is 16; .* leave --block-size out or set it to 32"):
        load_folder(reference_dir / "llama", tmp_path, block_size=16, **SMALL)


def test_a_context_over_the_models_own_is_refused(reference_dir: Path, tmp_path: Path):
    """By the room of building, whatever the backend."""
    model = ModelConfig(model=str(reference_dir / "llama"), model_cache=str(tmp_path), max_model_len=300)
    with pytest.raises(ConfigError, match=r"max_model_len is 300; llama was made for at most 256"):
        load_model(Config(model=model))


def test_a_pool_too_small_is_refused(reference_dir: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="kv_cache_size"):
        load_folder(reference_dir / "llama", tmp_path, **{**SMALL, "kv_cache_size": "1KiB"})


def test_info_tells_the_engine_and_the_lineage(reference_dir: Path, tmp_path: Path):
    runner = load_folder(reference_dir / "qwen2", tmp_path, max_model_len=100, threads=1, swap_size="1MiB", **SMALL)
    info = runner.info
    assert (info.backend, info.vocab_size, info.max_model_len, info.block_size) == ("openvino", 264, 100, 32)
    # 2 layers of keys and values, 2 heads of 16, 32 positions, f32
    assert info.bytes_per_block == 2 * 2 * 2 * 16 * 32 * 4
    assert info.num_blocks == 8 * 2**20 // info.bytes_per_block
    assert info.num_swap_blocks == 2**20 // info.bytes_per_block
    assert info.details["weights"] == "fp32"
    assert info.details["threads"] == "1"
    assert info.details["self_test"] == "passed"
    assert set(info.details) >= {
        "openvino",
        "cpu",
        "instruction_set",
        "kv_dtype",
        "determinism",
        "pass_limit",
        "logit_limit",
    }


def test_the_lineage_has_what_a_format_decides_and_why_it_was_chosen(reference_dir: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(machine, "cpu_flags", lambda: "avx2 avx512_vnni")
    monkeypatch.setattr(kernels, "installed", Kernels)
    found = {
        weights: load_folder(reference_dir / "llama", tmp_path, weights=weights, kv_cache_size="8MiB").info.details
        for weights in ("auto", "int8-static")
    }
    told = ("weights", "weights_reason", "rotation_seed", "static_range", "activation_group")
    assert [found["auto"].get(each) for each in told] == [
        "int8-rotated",
        "auto: this processor is not known to lack integer dot products",
        "0",
        None,
        "32",
    ]
    assert [found["int8-static"].get(each) for each in told] == ["int8-static", "set", "0", "4", "32"]


def test_integer_keys_have_a_scale_for_each_token(reference_dir: Path, tmp_path: Path):
    runner = load_folder(reference_dir / "llama", tmp_path, **{**SMALL, "kv_dtype": "u8"})
    heads, head = runner.model.pool.tensors["key_cache.0"].shape[1], 16
    assert tuple(runner.model.pool.tensors["key_cache.0"].shape)[1:] == (heads, 32, head + 8)
    assert runner.info.details["KEY_CACHE_QUANT_MODE"] == "BY_TOKEN"
    assert "KEY_CACHE_QUANT_MODE" not in load_folder(reference_dir / "llama", tmp_path, **SMALL).info.details


@pytest.mark.parametrize("device", ["CPU", "GPU.1"])
def test_the_device_reaches_openvino_and_threads_are_the_cpus_only(
    device: str, reference_dir: Path, tmp_path: Path, monkeypatch
):
    compiled: list[tuple[str, bool]] = []

    def compile_model(self: ov.Core, graph: ov.Model, device: str, properties: dict[str, str]) -> None:
        compiled.append((device, "INFERENCE_NUM_THREADS" in properties))
        raise RuntimeError("far enough")

    monkeypatch.setattr(ov.Core, "compile_model", compile_model)
    with pytest.raises(ModelError, match="far enough"):
        load_folder(reference_dir / "llama", tmp_path, device=device, **SMALL)
    assert compiled == [(device, device == "CPU")]


@pytest.mark.parametrize(("cores", "bound"), [(2, False), (1, True)])
def test_fewer_threads_than_cores_are_bound_to_none(cores: int, bound: bool, monkeypatch) -> None:
    """OpenVINO would bind them to the first cores: two such models, of two servers say, would share these."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    number = op.parameter([1], ov.Type.f32)
    compiled = ov.Core().compile_model(ov.Model([op.relu(number)], [number]), "CPU", machine.cpu_properties(1))
    assert compiled.get_property("ENABLE_CPU_PINNING") is bound


def test_the_second_start_looks_only_briefly(reference_dir: Path, tmp_path: Path, monkeypatch):
    first = load_folder(reference_dir / "llama", tmp_path, **SMALL)
    monkeypatch.setattr(SelfTest, "calibrate", None)
    second = load_folder(reference_dir / "llama", tmp_path, **SMALL)
    assert second.limits == first.limits


@pytest.mark.parametrize("text", ["", "{", "[]", '{"limits": {"tokens": "80"}}'])
def test_an_unreadable_earlier_result_is_found_anew(text: str, reference_dir: Path, tmp_path: Path):
    load_folder(reference_dir / "llama", tmp_path, **SMALL)
    (kept,) = (tmp_path / "self_test").iterdir()
    whole = kept.read_text()
    kept.write_text(text)
    load_folder(reference_dir / "llama", tmp_path, **SMALL)
    assert kept.read_text() == whole


def test_a_failed_self_test_is_told_and_not_kept(reference_dir: Path, tmp_path: Path, monkeypatch, caplog):
    failed = SelfTestResult(failure="it rounds differently")
    monkeypatch.setattr(SelfTest, "calibrate", lambda self, strict: failed)
    with caplog.at_level(logging.WARNING):
        runner = load_folder(reference_dir / "llama", tmp_path, **SMALL)
    assert "self-test failed: it rounds differently" in caplog.text
    assert runner.info.details["self_test"] == "it rounds differently"
    assert not (tmp_path / "self_test").exists()


def test_the_backends_own_reducer_comes_with_it(reference_dir: Path, tmp_path: Path):
    reducer = load_folder(reference_dir / "llama", tmp_path, threads=1, **SMALL)._sampler._reducer
    assert isinstance(reducer, OpenVINOReducer)
    reduced = reducer(np.zeros((3, 256), np.float32), np.ones(3, np.float32))
    assert reduced.maxima.shape == (3, 2)
    assert reduced.sums.tolist() == [[128.0, 128.0]] * 3


def test_a_closed_runner_lets_its_pool_go(reference_dir: Path, tmp_path: Path):
    runner = load_folder(reference_dir / "llama", tmp_path, **SMALL)
    step(runner, [(sequence([1, 2, 3], [0]), 3)])
    runner.close()
    assert runner.model.pool.tensors == {}
