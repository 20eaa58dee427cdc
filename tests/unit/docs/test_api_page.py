"""The page of the HTTP API says what the code does."""

from pathlib import Path

import pytest

from ekiden.api.schemas import NO_EFFECT, REFUSED

PAGE = Path(__file__).parents[3] / "docs" / "api.md"


@pytest.mark.parametrize(
    ("title", "table"), [("Accepted without effect", NO_EFFECT), ("Refused with the reason", REFUSED)]
)
def test_tables_of_fields_are_those_of_the_code(title: str, table: dict[str, str]) -> None:
    section = PAGE.read_text(encoding="utf-8").split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("| ").split(" | ", 1) for line in section.splitlines() if line.startswith("| `")]
    assert {name.strip("`"): text for name, text in rows} == table
