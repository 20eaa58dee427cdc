"""The files of the page: small, of one piece, and with nothing that a strict policy would refuse."""

import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ekiden.dashboard
from ekiden.config import meanings_of_controls
from ekiden.guardrails.readings import SIGNALS

ROOM = Path(ekiden.dashboard.__file__).parent
PAGE = ROOM / "page"
OWN = sorted(path for path in PAGE.glob("*.*") if path.is_file())
LANGUAGES = ("en", "ja")


def words() -> dict[str, list[str]]:
    """The words for each key, one a language; what is the same in all is there once."""

    def leaves(value: Any, key: str) -> Iterator[tuple[str, list[str]]]:
        if isinstance(value, dict):
            for name, part in value.items():
                yield from leaves(part, f"{key}.{name}" if key else name)
        else:
            yield key, [value] if isinstance(value, str) else value

    return dict(leaves(json.loads((PAGE / "words.json").read_text(encoding="utf-8")), ""))


def test_it_is_small():
    assert sum(path.stat().st_size for path in PAGE.rglob("*") if path.is_file()) < 300_000


def test_what_others_wrote_is_as_it_was_taken_and_has_its_licence():
    taken = json.loads((ROOM / "vendor" / "digests.json").read_text(encoding="utf-8"))
    lock = json.loads((ROOM / "vendor" / "package-lock.json").read_text(encoding="utf-8"))
    packed = {path.name.removesuffix(".gz"): path.read_bytes() for path in (PAGE / "vendor").iterdir()}
    assert {name: hashlib.sha256(gzip.decompress(content)).hexdigest() for name, content in packed.items()} == (
        taken["digests"]
    )
    for name, version in taken["versions"].items():
        assert lock["packages"][f"node_modules/{name}"]["version"] == version
        assert "permission" in (ROOM / "vendor" / "licences" / f"{name}.txt").read_text(encoding="utf-8").lower()


def test_every_language_has_the_same_words_with_the_same_gaps():
    found = words()
    # The server words the formulas of signals, and what controls do, in English.
    for group, names in (("formula", set(SIGNALS)), ("control", set(meanings_of_controls()))):
        others = {key: found.pop(key) for key in list(found) if key.startswith(f"{group}.")}
        assert {key.removeprefix(f"{group}.") for key in others} == names
        assert {texts[0] for texts in others.values()} == {None}
    for key, texts in found.items():
        assert len(texts) in (1, len(LANGUAGES)), key
        assert len({frozenset(re.findall(r"\{(\w+)\}", text)) for text in texts}) == 1, key


def test_every_word_that_is_asked_for_is_there():
    there = set(words())
    for path in OWN:
        for key in re.findall(r"""\b(?:t|parts)\("([a-z_.]+)"[,)]""", path.read_text(encoding="utf-8")):
            assert key in there or f"{key}.other" in there, f"{path.name}: {key}"
        for key in re.findall(r"""\bof="([a-z_.]+)\"""", path.read_text(encoding="utf-8")):
            assert f"help.{key}" in there, f"{path.name}: {key}"


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_nothing_could_run_that_is_not_a_file_of_ours(path: Path):
    text = path.read_text(encoding="utf-8")
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "dangerouslySetInnerHTML", "document.write", "eval(",
                "new Function", "srcdoc", "sessionStorage", "document.cookie", "javascript:"):  # fmt: skip
        assert way not in text, way
    assert not re.search(r"""(https?:)?//[a-z0-9-]+\.[a-z]""", text.replace("http://www.w3.org/2000/svg", "")), (
        "an address"
    )
    if path.suffix == ".html":
        assert not re.search(r"""<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=""", text)
    assert ("localStorage" in text) == (path.name == "kept.js")
