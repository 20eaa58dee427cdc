"""The conversion cache: built once, never trusted when damaged, never needed."""

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from ekiden.backends.openvino import conversion
from ekiden.backends.openvino.conversion import conversion_entry, converted

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
    assert built_as(core, converted(core, tmp_path / "converted" / "k", build)) == 1
    assert built_as(core, converted(core, tmp_path / "converted" / "k", build)) == 1
    assert build.builds == 1
    assert sorted(path.name for path in entry(tmp_path).iterdir()) == ["manifest.json", "model.bin", "model.xml"]


def test_keys_differ_by_everything_that_changes_the_graph(monkeypatch, tmp_path):
    keys = {
        conversion_entry(tmp_path, DIGESTS, "int8"),
        conversion_entry(tmp_path, DIGESTS, "fp16"),
        conversion_entry(tmp_path, {**DIGESTS, "weights": "other"}, "int8"),
        conversion_entry(tmp_path, {**DIGESTS, "config": "other"}, "int8"),
    }
    monkeypatch.setattr(conversion, "CONVERTER_VERSION", 999)
    keys.add(conversion_entry(tmp_path, DIGESTS, "int8"))
    assert len(keys) == 5
    assert conversion_entry(tmp_path, {**DIGESTS, "tokenizer": "other"}, "int8") in keys


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
    converted(core, tmp_path / "converted" / "k", build)
    damage(entry(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert built_as(core, converted(core, tmp_path / "converted" / "k", build)) == 2
    assert "is damaged" in caplog.text
    assert built_as(core, converted(core, tmp_path / "converted" / "k", build)) == 2
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
        assert built_as(core, converted(core, tmp_path / "converted" / "k", build)) == 1
    assert "cannot be kept" in caplog.text
    assert list((tmp_path / "converted").iterdir()) == [], "nothing half-written stays"
    monkeypatch.undo()
    assert built_as(core, converted(core, tmp_path / "converted" / "k", build)) == 2


def test_a_cache_that_is_no_folder_costs_the_cache_only(core, build, tmp_path, caplog):
    (tmp_path / "converted").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert built_as(core, converted(core, tmp_path / "converted" / "k", build)) == 1
    assert "cannot be kept" in caplog.text


def test_what_a_killed_process_left_is_never_read_and_swept_later(core, build, tmp_path):
    left = tmp_path / "converted" / ".partial-killed"
    left.mkdir(parents=True)
    (left / "model.xml").write_text("<net")
    fresh = tmp_path / "converted" / ".partial-running"
    fresh.mkdir()
    old = time.time() - 7200
    os.utime(left, (old, old))
    assert built_as(core, converted(core, tmp_path / "converted" / "k", build)) == 1
    assert not left.exists()
    assert fresh.exists(), "another process may be writing it"


def add_entry(cache: Path, name: str, *, days_old: int, made_by: object = None) -> Path:
    """An entry of 1,000 bytes and a manifest."""
    folder = cache / "converted" / name
    folder.mkdir(parents=True)
    (folder / "model.bin").write_bytes(b"0" * 1000)
    (folder / "manifest.json").write_text(json.dumps({"files": {}} if made_by is None else {"made_by": made_by}))
    used = time.time() - days_old * 86_400
    os.utime(folder, (used, used))
    return folder


@pytest.fixture
def small_bound(monkeypatch):
    monkeypatch.setattr(conversion, "OUTDATED_BYTES", 2500)


def test_entries_of_other_converters_are_removed_beyond_the_bound_the_longest_unused_first(
    core, build, tmp_path, small_bound, caplog
):
    ours = {"converter": conversion.CONVERTER_VERSION, "openvino": ov.get_version()}
    oldest = add_entry(tmp_path, "oldest", days_old=9, made_by={"converter": 1, "openvino": "2025"})
    unnamed = add_entry(tmp_path, "unnamed", days_old=8)
    newer = add_entry(tmp_path, "newer", days_old=3, made_by={**ours, "openvino": "2025"})
    newest = add_entry(tmp_path, "newest", days_old=2, made_by={**ours, "converter": 1})
    present = add_entry(tmp_path, "present", days_old=99, made_by=ours)
    with caplog.at_level(logging.INFO):
        converted(core, tmp_path / "converted" / "k", build)
    assert not oldest.exists()
    assert not unnamed.exists()
    assert newer.exists()
    assert newest.exists()
    assert present.exists(), "the present converter's entries are never removed"
    assert [record.message.split(" (")[0] for record in caplog.records] == [f"removed {oldest}", f"removed {unnamed}"]


def test_within_the_bound_nothing_is_removed(core, build, tmp_path, small_bound):
    kept = [add_entry(tmp_path, f"old{number}", days_old=number) for number in range(2)]
    converted(core, tmp_path / "converted" / "k", build)
    assert all(entry.exists() for entry in kept)


def test_an_entry_that_another_process_reads_stays(core, build, tmp_path, small_bound):
    held, others = (
        add_entry(tmp_path, "held", days_old=9),
        [add_entry(tmp_path, f"old{n}", days_old=n) for n in (1, 2, 3)],
    )
    program = (
        "import sys, pathlib; from ekiden.backends.openvino import conversion as c\n"
        "c._hold(pathlib.Path(sys.argv[1])); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(held)], stdin=-1, stdout=-1) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        os.utime(held, (0, 0))  # reading it had made it the youngest
        converted(core, tmp_path / "converted" / "k", build)
        assert held.exists()
        assert [entry.exists() for entry in others] == [True, False, False]
        reader.communicate()
    shutil.rmtree(tmp_path / "converted" / "k")
    converted(core, tmp_path / "converted" / "k", build)
    assert held.exists(), "what is left is within the bound"
