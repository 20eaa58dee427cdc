"""The conversion cache: built once, never trusted when damaged, never needed."""

import errno
import logging
import os
import time
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from ekiden.backends.openvino import conversion
from ekiden.backends.openvino.conversion import conversion_key, converted

DIGESTS = {"weights": "w", "config": "c", "tokenizer": "t"}


class Builder:
    """Builds a small graph whose constant tells one build from another, and counts."""

    def __init__(self) -> None:
        self.builds = 0

    def __call__(self) -> ov.Model:
        self.builds += 1
        parameter = op.parameter([-1, 64], ov.Type.f32, name="x")
        weights = op.constant(np.full((64, 64), self.builds, np.float32))
        return ov.Model([op.result(op.matmul(parameter, weights, False, False))], [parameter], "small")


@pytest.fixture
def build():
    return Builder()


@pytest.fixture
def core():
    return ov.Core()


def built_as(core: ov.Core, model: ov.Model) -> float:
    """Which build the model came from."""
    return float(core.compile_model(model, "CPU")(np.eye(64, dtype=np.float32))[0][0, 0])


def entry(cache: Path) -> Path:
    (only,) = (cache / "converted").iterdir()
    return only


def test_a_second_start_reads_what_the_first_wrote(core, build, tmp_path):
    assert built_as(core, converted(core, tmp_path, "k", build)) == 1
    assert built_as(core, converted(core, tmp_path, "k", build)) == 1
    assert build.builds == 1
    assert sorted(path.name for path in entry(tmp_path).iterdir()) == ["manifest.json", "model.bin", "model.xml"]


def test_keys_differ_by_everything_that_changes_the_graph(monkeypatch):
    keys = {
        conversion_key(DIGESTS, "int8"),
        conversion_key(DIGESTS, "fp16"),
        conversion_key({**DIGESTS, "weights": "other"}, "int8"),
        conversion_key({**DIGESTS, "config": "other"}, "int8"),
    }
    monkeypatch.setattr(conversion, "CONVERTER_VERSION", 999)
    keys.add(conversion_key(DIGESTS, "int8"))
    assert len(keys) == 5
    assert conversion_key({**DIGESTS, "tokenizer": "other"}, "int8") in keys


def truncate(folder: Path) -> None:
    os.truncate(folder / "model.bin", (folder / "model.bin").stat().st_size // 2)


def flip_a_byte(folder: Path) -> None:
    content = bytearray((folder / "model.bin").read_bytes())
    content[100] ^= 1
    (folder / "model.bin").write_bytes(content)


def lose_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def cut_the_manifest(folder: Path) -> None:
    os.truncate(folder / "manifest.json", 10)


def lose_the_graph(folder: Path) -> None:
    (folder / "model.xml").unlink()


@pytest.mark.parametrize("damage", [truncate, flip_a_byte, lose_the_manifest, cut_the_manifest, lose_the_graph])
def test_a_damaged_entry_is_built_again(damage, core, build, tmp_path, caplog):
    converted(core, tmp_path, "k", build)
    damage(entry(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert built_as(core, converted(core, tmp_path, "k", build)) == 2
    assert "is damaged" in caplog.text
    assert built_as(core, converted(core, tmp_path, "k", build)) == 2
    assert build.builds == 2


def no_space(model, path, **options):
    Path(path).write_bytes(b"half")
    raise OSError(errno.ENOSPC, "No space left on device")


def cut_off(model, path, **options):
    save(model, path, **options)
    os.truncate(Path(path).with_suffix(".bin"), 1000)


save = ov.save_model


@pytest.mark.parametrize("fault", [no_space, cut_off])
def test_a_full_disk_costs_the_cache_and_not_the_start(fault, core, build, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(ov, "save_model", fault)
    with caplog.at_level(logging.WARNING):
        assert built_as(core, converted(core, tmp_path, "k", build)) == 1
    assert "cannot be kept" in caplog.text
    assert list((tmp_path / "converted").iterdir()) == [], "nothing half-written stays"
    monkeypatch.undo()
    assert built_as(core, converted(core, tmp_path, "k", build)) == 2


def test_a_cache_that_is_no_folder_costs_the_cache_only(core, build, tmp_path, caplog):
    (tmp_path / "converted").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert built_as(core, converted(core, tmp_path, "k", build)) == 1
    assert "cannot be kept" in caplog.text


def test_what_a_killed_process_left_is_never_read_and_swept_later(core, build, tmp_path):
    left = tmp_path / "converted" / ".partial-killed"
    left.mkdir(parents=True)
    (left / "model.xml").write_text("<net")
    fresh = tmp_path / "converted" / ".partial-running"
    fresh.mkdir()
    old = time.time() - 7200
    os.utime(left, (old, old))
    assert built_as(core, converted(core, tmp_path, "k", build)) == 1
    assert not left.exists()
    assert fresh.exists(), "another process may be writing it"
