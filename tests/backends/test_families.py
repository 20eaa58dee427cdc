"""Every family's graph against logits from PyTorch: fp32 weights, f32 keys and values."""

from pathlib import Path

import numpy as np
import pytest

from tests.backends.driving import load_folder, sequence, step

FAMILIES = (
    "llama",
    "llama-bias",
    "llama-rope-linear",
    "llama-rope-llama3",
    "llama-rope-yarn",
    "llama-tied",
    "mistral",
    "mistral-window",
    "qwen2",
    "qwen3",
)
TOLERANCE = 1e-3


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_of_a_family_are_those_of_the_reference(name: str, reference_dir: Path, tmp_path: Path):
    vectors = np.load(reference_dir / name / "logits.npz")
    token_ids, expected = vectors["input_ids"].tolist(), vectors["logits"]
    runner = load_folder(reference_dir / name, tmp_path, weights="fp32", kv_dtype="f32", kv_cache_size="8MiB")

    # Every prefix as a prompt of its own, together in one plan.
    prefixes = [sequence(token_ids[:length], [2 * length, 2 * length + 1]) for length in range(1, len(token_ids) + 1)]
    prefilled = step(runner, [(each, len(each.token_ids)) for each in prefixes])
    # The same text token by token, after half of it.
    decoded = sequence(token_ids[:20], [0, 1])
    by_position = {19: step(runner, [(decoded, 20)])[0]}
    for position in range(20, len(token_ids)):
        decoded.token_ids.append(token_ids[position])
        by_position[position] = step(runner, [(decoded, 1)])[0]

    for position, row in enumerate(expected):
        assert np.abs(prefilled[position] - row).max() <= TOLERANCE, f"prefill to {position}"
    for position, logits in by_position.items():
        assert np.abs(logits - expected[position]).max() <= TOLERANCE, f"decode at {position}"


@pytest.mark.parametrize(("weights", "tolerance"), [("int8", 0.25), ("fp16", 0.01)])
def test_compressed_weights_stay_close(weights: str, tolerance: float, reference_dir: Path, tmp_path: Path):
    vectors = np.load(reference_dir / "qwen3" / "logits.npz")
    runner = load_folder(reference_dir / "qwen3", tmp_path, weights=weights, kv_dtype="f16", kv_cache_size="8MiB")
    logits = step(runner, [(sequence(vectors["input_ids"].tolist(), [0, 1]), 40)])[0]
    spread = float(vectors["logits"][-1].std())
    assert np.abs(logits - vectors["logits"][-1]).max() <= tolerance * spread
