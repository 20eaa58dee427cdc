"""Every family's graph against logits from PyTorch: fp32 weights, f32 keys and values; and what int8 makes of it."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ekiden.backends.openvino import machine
from ekiden.backends.openvino.weights.plain import Float32
from ekiden.backends.openvino.weights.rotation import rotated
from ekiden.backends.openvino.weights.table import FORMATS
from ekiden.models.architectures.spec import Checkpoint, ModelSpec
from tests.backends.driving import ROTATED_FORMATS, load_folder, sequence, step

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
OF_OTHER_WEIGHTS = [name for name in FAMILIES if "-rope-" not in name and "-window" not in name]
"""What the others change is none of what a format compresses."""
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatedFloat32(Float32):
    """Rotated and not quantised: what a rotation alone changes."""

    def prepare(self, spec: ModelSpec, checkpoint: Checkpoint) -> tuple[ModelSpec, Checkpoint]:
        return rotated(spec, checkpoint)


@pytest.mark.parametrize("format", [Float32(), RotatedFloat32()], ids=["as given", "rotated"])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_of_a_family_are_those_of_the_reference(
    name: str, format: Float32, reference_dir: Path, tmp_path: Path, monkeypatch
):
    monkeypatch.setitem(FORMATS, "fp32", format)
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


@pytest.mark.parametrize("name", FAMILIES if "SOAK_FORMATS" in os.environ else OF_OTHER_WEIGHTS)
def test_rotated_formats_are_as_close_as_int8_in_every_family(name: str, reference_dir: Path, tmp_path: Path):
    """By the root mean square of the logits' errors at 21 positions.

    A constant range of 4 has steps up to 1.6 times as wide as those of int8: the largest of a group of 64 Gaussian
    values is 2.6 on average. A processor without integer dot products computes int8 with activations as they are, which
    our kernels quantise.
    """
    no_integers = machine.lacks_integer_dot_products()
    vectors = np.load(reference_dir / name / "logits.npz")
    token_ids, expected = vectors["input_ids"].tolist(), vectors["logits"]
    lengths = range(20, len(token_ids) + 1)
    errors = {}
    for weights in ("int8", *ROTATED_FORMATS):
        runner = load_folder(
            reference_dir / name, tmp_path, weights=weights, expand_weights="never", kv_cache_size="8MiB"
        )
        rows = [sequence(token_ids[:length], [2 * at, 2 * at + 1]) for at, length in enumerate(lengths)]
        found = step(runner, [(each, len(each.token_ids)) for each in rows])
        differences = [found[at] - expected[length - 1] for at, length in enumerate(lengths)]
        errors[weights] = float(np.sqrt(np.mean(np.square(differences))))
    bounds = {"int8-rotated": 1.3, "int8-kernels": 1.6} if no_integers else {"int8-rotated": 1.1, "int8-kernels": 1.1}
    for weights, bound in {**bounds, "int8-static": 1.6}.items():
        assert errors.get(weights, 0) <= bound * errors["int8"], errors
