"""Pooled hidden states: those that the head reads, with the same bits however a prompt is cut and whatever runs beside
it, and neighbours that do not change by a bit."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from ekiden.backends.openvino.passes import PassLimits
from ekiden.backends.openvino.runner import OpenVINORunner
from ekiden.models.load import open_checkpoint
from ekiden.models.resolve import files_in_folder
from ekiden.sampling.pooling import mean_state
from ekiden.state.request import Pooling, Reading
from ekiden.state.sequence import Sequence
from tests.backends.driving import LENGTH, ROTATED_FORMATS, execute, load_folder, placed, step


def read(tokens: list[int], place: int, pooling: Pooling, scored_from: int | None = None) -> Sequence:
    found = placed(tokens, place)
    reading = Reading(pooling=pooling, scored_from=scored_from)
    found.request = msgspec.structs.replace(found.request, reading=reading)
    return found


def summed(runner: OpenVINORunner, asked: Sequence, chunks: list[int], others: Iterable[Sequence] = ()) -> bytes:
    """The sum over all chunks; before and behind each of them stands one of ``others``."""
    left = list(others)
    for chunk in chunks:
        before, behind, left = left[:1], left[1:2], left[2:]
        rows = [*((each, 40) for each in before), (asked, chunk), *((each, 40) for each in behind)]
        output, _ = execute(runner, rows)
        asked.state_sum = output.rows[len(before)].state_sum
    return asked.state_sum


@pytest.mark.parametrize("name", ["llama", "llama-tied", "qwen3"])
def test_the_states_are_those_that_the_head_reads(name: str, reference_dir: Path, tmp_path: Path) -> None:
    """Times the head's weights they are the logits of an independent implementation."""
    vectors = np.load(reference_dir / name / "logits.npz")
    tokens, expected = vectors["input_ids"].tolist(), vectors["logits"].astype(np.float64)
    runner = load_folder(reference_dir / name, tmp_path, weights="fp32", kv_dtype="f32", kv_cache_size="8MiB")
    checkpoint = open_checkpoint(files_in_folder(reference_dir / name, name, tmp_path))
    head = checkpoint.tensor("model.embed_tokens.weight" if name == "llama-tied" else "lm_head.weight")
    assert runner.info.hidden_size == head.shape[1]
    last = np.frombuffer(summed(runner, read(tokens, 0, Pooling.LAST), [len(tokens)]))
    assert np.abs(head @ last - expected[-1]).max() <= 1e-3
    mean = mean_state(summed(runner, read(tokens, 0, Pooling.MEAN), [len(tokens)]), len(tokens))
    assert np.abs(head @ np.frombuffer(mean, np.float32) - expected.mean(axis=0)).max() <= 1e-3


@pytest.mark.parametrize("weights", ROTATED_FORMATS)
@pytest.mark.parametrize("name", ["llama", "llama-tied"])
def test_states_of_a_rotated_model_are_turned_back(
    name: str, weights: str, reference_dir: Path, tmp_path: Path
) -> None:
    """At the first start, which builds the graph, and at the next, which reads it; the tolerance is that of int8."""
    vectors = np.load(reference_dir / name / "logits.npz")
    tokens, expected = vectors["input_ids"].tolist(), vectors["logits"][-1]
    checkpoint = open_checkpoint(files_in_folder(reference_dir / name, name, tmp_path))
    head = checkpoint.tensor("model.embed_tokens.weight" if name == "llama-tied" else "lm_head.weight")
    found = []
    for _ in range(2):
        runner = load_folder(reference_dir / name, tmp_path, weights=weights, kv_cache_size="8MiB")
        found.append(summed(runner, read(tokens, 0, Pooling.LAST), [len(tokens)]))
    assert found[0] == found[1]
    assert np.abs(head @ np.frombuffer(found[0]) - expected).max() <= 0.25 * expected.std()


@pytest.mark.parametrize("pooling", Pooling)
def test_the_same_bits_in_chunks_and_beside_others(runner: OpenVINORunner, prompt: list[int], pooling: Pooling) -> None:
    whole = summed(runner, read(prompt, 0, pooling), [LENGTH])
    assert len(whole) == 8 * 576
    for chunks in ([64, 136], [32, 96, 40, 32], [96, 104]):
        others = [placed(prompt[index : index + 40], 2 + index) for index in range(2 * len(chunks))]
        assert summed(runner, read(prompt, 1, pooling), chunks, others) == whole, chunks
    limits = runner.limits
    runner.limits = PassLimits(tokens=70)  # several passes a step
    try:
        assert summed(runner, read(prompt, 1, pooling), [96, 104]) == whole
    finally:
        runner.limits = limits


def test_together_with_scores_and_for_a_single_token(runner: OpenVINORunner, prompt: list[int]) -> None:
    """Two readings, one of them scored too, and a prompt of one token that shares its pass with decode rows."""
    lone = summed(runner, read(prompt[:1], 0, Pooling.MEAN), [1])
    whole = summed(runner, read(prompt, 0, Pooling.MEAN), [LENGTH])
    decode = placed(prompt[:33], 4)
    step(runner, [(decode, 33)])
    decode.token_ids.append(17)
    alone = step(runner, [(decode, 1)])
    decode.num_computed_tokens -= 1
    rows = [read(prompt[:1], 1, Pooling.LAST), read(prompt, 2, Pooling.MEAN, scored_from=150)]
    output, ends = execute(runner, [(decode, 1), (rows[0], 1), (rows[1], LENGTH)])
    assert [row.state_sum for row in output.rows] == [b"", lone, whole]
    assert [len(row.prompt_logprobs) for row in output.rows] == [0, 0, 50]
    assert [row.tokens for row in output.rows][1:] == [(), ()]
    assert np.array_equal(ends[0], alone[0])


@pytest.mark.parametrize("decodes", [1, 7])
def test_neighbours_do_not_change_by_a_bit(runner: OpenVINORunner, prompt: list[int], decodes: int) -> None:
    def neighbours() -> list[Sequence]:
        rows = [placed(prompt[index : index + 50], index) for index in range(decodes)]
        step(runner, [(row, 50) for row in rows])
        for row in rows:
            row.token_ids.append(17)
        return rows

    alone: dict[int, npt.NDArray[np.float32]] = step(runner, [(row, 1) for row in neighbours()])
    for beside in (placed(prompt, 20), read(prompt, 20, Pooling.MEAN)):
        _, ends = execute(runner, [*((row, 1) for row in neighbours()), (beside, LENGTH)])
        assert all(np.array_equal(ends[index], alone[index]) for index in range(decodes))
