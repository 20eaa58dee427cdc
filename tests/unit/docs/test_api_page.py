"""The page of the HTTP API says what the code does."""

import json
from pathlib import Path

import pytest

from ekiden.api.doors.chat import ChatRequest
from ekiden.api.doors.completions import CompletionRequest
from ekiden.api.shape import Fate

PAGE = Path(__file__).parents[3] / "docs" / "api.md"


def row(name: str, fate: Fate) -> str:
    """A row of the tables of fields."""
    fine = f" (fine: {', '.join(f'`{json.dumps(value)}`' for value in fate.fine)})" if fate.fine else ""
    return f"| `{name}` | {fate.words}{fine} |"


@pytest.mark.parametrize(("title", "refused"), [("Taken without effect", False), ("Refused with the reason", True)])
def test_tables_of_fields_are_those_of_the_code(title: str, refused: bool) -> None:
    fates = dict(ChatRequest.shape.all_fates()) | dict(CompletionRequest.shape.all_fates())
    section = PAGE.read_text(encoding="utf-8").split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [row(name, fate) for name, fate in fates.items() if fate.refused is refused]
