"""Our own kernels in a model's graph (their arithmetic is tested in ``tests/kernels``)."""

import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType

import numpy as np
import openvino as ov
import pytest

from ekiden.backends.openvino import kernels, machine
from ekiden.backends.openvino.graph import build_model
from ekiden.backends.openvino.kernels import Kernels
from ekiden.backends.openvino.paged import to_paged
from ekiden.backends.openvino.weights.table import FORMATS, choose_format
from ekiden.config import ConfigError
from ekiden.models.errors import ModelError
from ekiden.models.load import describe, open_checkpoint
from ekiden.models.resolve import files_in_folder
from tests.backends.driving import configuration, load_folder

LIBRARY = "libekiden_kernels.so"
AVX2, VNNI = Kernels(LIBRARY, "1", "avx2"), Kernels(LIBRARY, "1", "avx512_vnni")
UNKNOWN = Kernels(LIBRARY, "1", "avx2_vnni")
MISSING = Kernels(reason="the package ekiden-kernels is not installed")


@pytest.fixture
def usable() -> None:
    """Skips where there is no C++ compiler to have built them with."""
    if not kernels.installed():
        pytest.skip(kernels.installed().reason)


def test_packed_weights_are_blocks_of_16_channels_by_4_inputs():
    values = np.arange(18 * 64, dtype=np.int64).reshape(18, 64).astype(np.int8)
    packed = kernels.packed(values, np.arange(18, dtype=np.float16), 32)
    assert packed.dtype == np.int8
    blocks = packed[: 2 * 16 * 64].reshape(2, 16, 16, 4)
    scales = packed[2 * 16 * 64 :][: 32 * 4].view(np.float32)
    sums = packed[2 * 16 * 64 + 32 * 4 :].view(np.int32).reshape(2, 2, 16)
    for channel, at in ((0, 0), (5, 33), (17, 63)):
        assert blocks[channel // 16, at // 4, channel % 16, at % 4] == values[channel, at]
        assert sums[channel // 16, at // 32, channel % 16] == values[channel, at // 32 * 32 :][:32].sum(dtype=np.int32)
    assert not blocks[1, :, 2:].any()
    assert scales.tolist() == [*range(18), *[0] * 14]


@pytest.mark.parametrize(("width", "group"), [(576, 192), (1536, 256), (64, 64), (960, 192), (5120, 256), (80, None)])
def test_the_largest_group_that_divides_a_width(width, group):
    assert kernels.group_of(width) == group


@pytest.mark.parametrize(
    ("flags", "found", "settings", "format"),
    [
        ("avx2", AVX2, {}, "int8-kernels"),
        ("avx2", AVX2, {"expand_weights": "never"}, "int8"),
        ("avx2", AVX2, {"weights": "int8"}, "int8-float32"),
        ("avx2", MISSING, {}, "int8-float32"),
        ("avx2 avx512_vnni", VNNI, {}, "int8-kernels"),
        ("avx2 avx512_vnni", VNNI, {"expand_weights": "never"}, "int8-rotated"),
        ("avx2 avx512_vnni", VNNI, {"weights": "int8-rotated"}, "int8-rotated"),
        ("avx2 avx512_vnni", MISSING, {}, "int8-rotated"),
        ("avx2 avx512_vnni amx_int8", VNNI, {}, "int8-rotated"),
        ("avx2 avx512_vnni amx_int8", VNNI, {"weights": "int8-kernels"}, "int8-kernels"),
        ("avx2 avx_vnni", UNKNOWN, {}, "int8-rotated"),
    ],
)
def test_auto_is_the_kernels_where_they_are_known_to_be_faster(
    flags, found, settings, format, reference_dir: Path, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(machine, "cpu_flags", lambda: flags)
    monkeypatch.setattr(kernels, "installed", lambda: found)
    spec = describe(files_in_folder(reference_dir / "llama", "llama", tmp_path)).spec
    assert spec is not None
    assert choose_format(configuration(**settings).model, spec).format.name == format


def test_asked_for_and_missing_they_are_named_with_the_way_out(reference_dir: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(kernels, "installed", lambda: MISSING)
    with pytest.raises(ConfigError, match=r"int8-kernels, but the package ekiden-kernels is not installed; .*--we"):
        load_folder(reference_dir / "llama", tmp_path, weights="int8-kernels")


def test_a_library_for_another_openvino_or_of_another_version_is_not_loaded(monkeypatch):
    package = ModuleType("ekiden_kernels")
    vars(package).update(OPENVINO="2025.1", LIBRARY=Path("/nowhere.so"))
    monkeypatch.setitem(sys.modules, "ekiden_kernels", package)
    found = kernels.installed.__wrapped__()
    assert not found
    assert found.reason == f"ekiden-kernels was built for OpenVINO 2025.1, and this is {ov.get_version()}"
    vars(package).update(OPENVINO=ov.get_version())
    monkeypatch.setattr(metadata, "version", lambda name: "0.1.0")
    assert kernels.installed.__wrapped__().reason == f"ekiden-kernels is version 0.1.0, and {kernels.VERSION} is needed"
    monkeypatch.setattr(metadata, "version", lambda name: kernels.VERSION)
    assert kernels.installed.__wrapped__().reason.startswith("ekiden-kernels cannot be loaded: /nowhere.so")


def test_the_version_is_that_of_the_package_beside_it():
    text = Path(__file__).parents[2].joinpath("kernels/pyproject.toml").read_text()
    assert tomllib.loads(text)["project"]["version"] == kernels.VERSION


class Library:
    """Stands for the library of a processor that computes ``wrong`` instruction sets wrongly."""

    def __init__(self, usable: set[int], wrong: set[int]) -> None:
        self.usable, self.wrong, self.preferred = usable, wrong, -1

    def ekiden_usable(self, number):
        return number in self.usable

    def ekiden_agrees(self, number):
        return number not in self.wrong

    def ekiden_prefer(self, number):
        self.preferred = number


def test_instructions_that_compute_wrongly_here_are_not_used(caplog):
    library = Library(usable={0, 1, 3}, wrong={3})
    assert kernels._fastest_right(library) == "avx2"
    assert library.preferred == 1
    assert caplog.messages == ["the kernels for avx512_vnni compute wrongly on this processor; slower ones are used"]


@pytest.mark.usefixtures("usable")
def test_the_lineage_names_the_kernels_and_a_row_is_the_same_in_any_pass(reference_dir: Path, tmp_path: Path):
    runner = load_folder(reference_dir / "qwen2", tmp_path, weights="int8-kernels", kv_cache_size="8MiB")
    details = runner.info.details
    found = kernels.installed()
    assert (details["weights"], details["kernels"]) == ("int8-kernels", f"{found.version} {found.instructions}")
    assert (details["self_test"], details["pass_limit"], details["logit_limit"]) == ("passed", "none", "none")


@pytest.mark.usefixtures("usable")
def test_a_width_without_a_group_is_named(reference_dir: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(kernels, "group_of", lambda width: 64 if width == 64 else None)
    with pytest.raises(ModelError, match=r"is int8-kernels, .* but the model has intermediate_size \d+; choose"):
        load_folder(reference_dir / "llama", tmp_path, weights="int8-kernels")


@pytest.mark.usefixtures("usable")
@pytest.mark.parametrize(
    ("name", "blocks"), [("llama", True), ("llama-tied", True), ("qwen2", True), ("qwen3", True), ("llama-bias", False)]
)
def test_a_layer_is_one_block_unless_a_bias_stands_between_its_products(
    name: str, blocks: bool, reference_dir: Path, tmp_path: Path
):
    description = describe(files_in_folder(reference_dir / name, name, tmp_path))
    assert description.spec is not None
    graph = build_model(description.spec, open_checkpoint(description.files), FORMATS["int8-kernels"])
    found = [node for node in graph.get_ordered_ops() if node.get_type_name() == kernels.BLOCK]
    assert len(found) == (description.spec.num_layers if blocks else 0)
    assert [len(node.outputs()) for node in found[:-1]] == [4] * len(found[:-1])
    if blocks:
        # Of the last layer only the tokens are computed whose states are wanted.
        to_paged(graph)
        entries = [value.get_node() for value in found[-1].input_values()[:2]]
        assert [node.get_type_name() for node in entries] == ["Gather"] * 2
        assert {node.input_value(1).get_node().get_friendly_name() for node in entries} == {"state_rows"}
