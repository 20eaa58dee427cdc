"""Puts the report into a folder: the page in each wanted language, and the JSON that it was drawn from."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ekiden.evaluation.outcome import Outcome
from ekiden.evaluation.report.page import page

JSON_NAME = "report.json"


def page_name(language: str) -> str:
    """``report.html`` in English, ``report.ja.html`` in Japanese."""
    return "report.html" if language == "en" else f"report.{language}.html"


def write_report(outcome: Outcome, folder: Path, languages: Sequence[str] = ("en",)) -> list[Path]:
    """Writes ``report.json`` and a page for each language, and returns their paths, the JSON last.

    A file that is there is replaced. Raises OSError where the folder cannot be written, UserError for a language that
    there is not; then nothing has been written.
    """
    texts = {page_name(language): page(outcome, language).encode() for language in languages}
    texts[JSON_NAME] = msgspec.json.format(msgspec.json.encode(outcome), indent=1)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in texts.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in texts]


def read_report(file: Path) -> Outcome:
    """The outcome of a ``report.json``. Raises msgspec.ValidationError for what is none."""
    return msgspec.json.decode(file.read_bytes(), type=Outcome)
