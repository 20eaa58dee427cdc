"""Folders as Optimum-Intel writes them, and other people's graphs: the head found, or logits gathered without it."""

import shutil
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op
from openvino.op.util import Variable, VariableInfo

from ekiden.backends.openvino.graph import build_model
from ekiden.backends.openvino.paged import to_paged
from ekiden.backends.openvino.weights.table import FORMATS
from ekiden.config import ConfigError
from ekiden.models.errors import ModelError
from ekiden.models.load import describe, open_checkpoint
from ekiden.models.resolve import files_in_folder
from tests.backends.driving import load_folder, sequence, step

TOLERANCE = 1e-3


def stateful(folder: Path, cache: Path) -> ov.Model:
    files = files_in_folder(folder, folder.name, cache)
    spec = describe(files).spec
    assert spec is not None
    return build_model(spec, open_checkpoint(files), FORMATS["fp32"])


def export(reference: Path, target: Path, model: ov.Model) -> Path:
    target.mkdir()
    ov.save_model(model, target / "openvino_model.xml", compress_to_fp16=False)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(reference / name, target / name)
    return target


def rewire_logits(model: ov.Model, change) -> ov.Model:
    """Put something between the logits and the result."""
    result = model.get_results()[0]
    changed = change(result.input_value(0))
    replacement = op.result(changed)
    replacement.output(0).set_names({"logits"})
    model.add_results([replacement])
    model.remove_result(result)
    return model


def gathered(model):
    """What reads the tokens whose states are wanted, as sorted kinds of node."""
    return sorted(
        target.get_node().get_type_name()
        for node in model.get_ops()
        if node.get_type_name() == "Gather" and node.input_value(1).get_node().get_friendly_name() == "state_rows"
        for target in node.output(0).get_target_inputs()
    )


BEHIND_THE_LAST_ATTENTION = ["Add", "MatMul"]
"""The residual and the output projection: the last MLP runs for the wanted tokens only."""

BEFORE_THE_HEAD = ["Gather", "Result"]
"""The rows that the head computes, and the states that are given out."""


def test_a_format_cannot_be_chosen_for_a_graph_that_is_given(reference_dir, tmp_path):
    reference = reference_dir / "llama"
    folder = export(reference, tmp_path / "llama", stateful(reference, tmp_path))
    with pytest.raises(ConfigError, match=r"weights is int8-rotated, but llama is an OpenVINO folder.*leave --weights"):
        load_folder(folder, tmp_path, weights="int8-rotated")


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_an_exported_folder_gives_the_references_logits(name, reference_dir, tmp_path):
    reference = reference_dir / name
    folder = export(reference, tmp_path / name, stateful(reference, tmp_path))
    runner = load_folder(folder, tmp_path, kv_dtype="f32", kv_cache_size="8MiB")
    vectors = np.load(reference / "logits.npz")
    token_ids, expected = vectors["input_ids"].tolist(), vectors["logits"]
    logits = step(runner, [(sequence(token_ids[:n], [2 * n, 2 * n + 1]), n) for n in range(2, 41)])
    for row, found in logits.items():
        assert np.abs(found - expected[row + 1]).max() <= TOLERANCE
    assert runner.info.details["weights"] == "as exported"


CHANGES = {
    "softcap": lambda x: op.multiply(
        op.tanh(op.multiply(x, op.constant(np.float32(1 / 30)))), op.constant(np.float32(30))
    ),
    "bias": lambda x: op.add(x, op.constant(np.full((1, 1, 264), 0.5, np.float32))),
    "convert": lambda x: op.convert(op.convert(x, ov.Type.f16), ov.Type.f32),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_head_is_found_behind_element_wise_work(change, reference_dir, tmp_path):
    model = rewire_logits(stateful(reference_dir / "llama", tmp_path), CHANGES[change])
    to_paged(model)
    assert gathered(model) == BEHIND_THE_LAST_ATTENTION


def test_what_is_not_known_to_keep_tokens_apart_is_not_skipped(reference_dir, tmp_path):
    """Something between the last layer and the head that mixes tokens must see all of them."""
    model = stateful(reference_dir / "llama", tmp_path)
    head = next(r for r in model.get_results() if "logits" in r.output(0).get_names()).input_value(0).get_node()
    source = head.input_value(0)
    head.input(0).replace_source_output(op.cum_sum(source, op.constant(np.int64(1))).output(0))
    to_paged(model)
    assert gathered(model) == BEFORE_THE_HEAD


def test_logits_are_gathered_where_the_head_is_not_found(reference_dir, tmp_path):
    reference = reference_dir / "llama"
    model = rewire_logits(
        stateful(reference, tmp_path),
        lambda x: op.softmax(x, axis=-1),  # probabilities: not element-wise
    )
    folder = export(reference, tmp_path / "probabilities", model)
    again = ov.Core().read_model(folder / "openvino_model.xml")
    to_paged(again)
    assert gathered(again) == ["Gather"]  # the rows whose logits are wanted
    runner = load_folder(folder, tmp_path, kv_dtype="f32", kv_cache_size="8MiB")
    vectors = np.load(reference / "logits.npz")
    found = step(runner, [(sequence(vectors["input_ids"].tolist(), [0, 1]), 40), (sequence([1, 2, 3], [2]), 3)])[0]
    expected = np.exp(vectors["logits"][-1].astype(np.float64))
    assert np.abs(found - expected / expected.sum()).max() <= 1e-4
    assert runner.info.hidden_size is None  # nothing says which of the graph's values the states are


def test_a_model_without_state_is_refused_with_the_way_out(reference_dir, tmp_path):
    tokens = op.parameter([-1, -1], ov.Type.i64, name="input_ids")
    tokens.output(0).set_names({"input_ids"})
    result = op.result(op.convert(tokens, ov.Type.f32))
    result.output(0).set_names({"logits"})
    folder = export(reference_dir / "llama", tmp_path / "stateless", ov.Model([result], [tokens], "stateless"))
    with pytest.raises(ModelError, match="no key/value state; export it with Optimum-Intel"):
        load_folder(folder, tmp_path)


def test_state_without_attention_is_refused(tmp_path):
    data = op.parameter([1, 4], ov.Type.f32, name="x")
    info = VariableInfo()
    info.data_shape, info.data_type, info.variable_id = ov.PartialShape([1, 4]), ov.Type.f32, "v"
    variable = Variable(info)
    summed = op.add(op.read_value(data, variable), data)
    model = ov.Model([op.result(summed)], [op.assign(summed, variable)], [data], "counter")
    with pytest.raises(ModelError, match="attention"):
        to_paged(model)


@pytest.mark.parametrize("damage", ["xml", "bin"])
def test_a_damaged_folder_is_one_clear_error(damage, reference_dir, tmp_path):
    reference = reference_dir / "llama"
    folder = export(reference, tmp_path / "broken", stateful(reference, tmp_path))
    path = folder / f"openvino_model.{damage}"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ModelError, match=r"openvino_model.xml: OpenVINO cannot read it"):
        load_folder(folder, tmp_path)
