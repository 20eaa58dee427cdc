"""What made a run: every deciding value moves the digest, nothing else does, and what is missing stops nobody."""

import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from ekiden.build import installation
from ekiden.build.installation import code_section, dependency_section
from ekiden.evidence.lineage import ABSENT, Change, changes, lineage_of
from ekiden.state.lineage import SECTIONS, Lineage

MADE = Lineage(
    code={"version": "1"},
    model={"weights": "ab"},
    settings={"engine.seed": 0},
    sources={"engine.seed": "default"},
    apart={"server.port": 8000},
)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_value_of_any_section_moves_the_digest(section: str) -> None:
    changed = msgspec.structs.replace(MADE, **{section: {**getattr(MADE, section), "new": 1}})
    assert changed.digest != MADE.digest
    assert changes(MADE, changed) == [Change(section, "new", ABSENT, 1)]


def test_names_folders_and_where_a_value_came_from_do_not() -> None:
    elsewhere = msgspec.structs.replace(MADE, sources={"engine.seed": "--seed"}, apart={"server.port": 9000})
    assert elsewhere.digest == MADE.digest
    assert changes(MADE, elsewhere) == [Change("apart", "server.port", 8000, 9000)]


def test_it_is_read_back_as_it_was_written_and_an_altered_one_is_not() -> None:
    whole = MADE.as_object()
    assert lineage_of(msgspec.json.decode(msgspec.json.encode(whole))) == MADE
    with pytest.raises(ValueError, match="altered"):
        lineage_of({**whole, "settings": {"engine.seed": 1}})
    with pytest.raises(ValueError, match="no lineage"):
        lineage_of({"requests": 3})
    with pytest.raises(ValueError, match="cannot be read"):
        lineage_of({**whole, "settings": 3})


def test_the_source_is_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "ekiden"
    package.mkdir(parents=True)
    (package / "core.py").write_text("x = 1\n")
    monkeypatch.setattr(installation, "_PACKAGE", package)
    before = code_section()
    (package / "core.py").write_text("x = 2\n")
    after = code_section()
    assert before["source"] != after["source"]
    assert (before["commit"], before["dirty"]) == (None, None), "an installed package is no checkout"
    assert dependency_section()["lock"] is None


def test_a_checkout_tells_its_commit_and_whether_it_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = shutil.which("git")
    assert git is not None, "the tests of a checkout need git"
    package = tmp_path / "src" / "ekiden"
    package.mkdir(parents=True)
    (package / "core.py").write_text("x = 1\n")
    (tmp_path / "requirements.lock").write_text("numpy==2\n")

    def run(*words: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run([git, "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    run("init")
    run("add", ".")
    run("commit", "-m", "one")
    monkeypatch.setattr(installation, "_PACKAGE", package)
    clean = code_section()
    assert isinstance(clean["commit"], str)
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (package / "core.py").write_text("x = 2\n")
    assert code_section()["dirty"] is True
    assert dependency_section()["lock"] is not None
    monkeypatch.setenv("PATH", str(tmp_path))
    without_git = code_section()
    assert (without_git["commit"], without_git["dirty"]) == (None, None)


def test_dependencies_are_those_in_use() -> None:
    found = dependency_section()
    assert found["msgspec"] == msgspec.__version__
    assert {"openvino", "numpy", "starlette"} <= found.keys(), "also what is needed by what we need"
    assert "pytest" not in found


def test_changes_of_a_value_show_both() -> None:
    other = msgspec.structs.replace(MADE, model={"weights": "cd"})
    assert changes(MADE, other) == [Change("model", "weights", "ab", "cd")]
    assert changes(MADE, MADE) == []


def test_fields_that_nothing_covers_would_be_noticed() -> None:
    """A new field of the lineage must be either in the digest or known to be apart."""
    assert set(Lineage.__struct_fields__) == {*SECTIONS, "sources", "apart"}
