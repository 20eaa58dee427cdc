"""The page of the HTTP API says what the code does."""

from pathlib import Path

import pytest

from ekiden.api.doors.chat import ChatRequest
from ekiden.api.doors.completions import CompletionRequest

PAGE = Path(__file__).parents[3] / "docs" / "api.md"


@pytest.mark.parametrize(("title", "refused"), [("Accepted without effect", False), ("Refused with the reason", True)])
def test_tables_of_fields_are_those_of_the_code(title: str, refused: bool) -> None:
    fates = dict(ChatRequest.shape.all_fates()) | dict(CompletionRequest.shape.all_fates())
    table = {name: fate.words for name, fate in fates.items() if fate.refused is refused}
    section = PAGE.read_text(encoding="utf-8").split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("| ").split(" | ", 1) for line in section.splitlines() if line.startswith("| `")]
    assert {name.strip("`"): text for name, text in rows} == table
