"""The page of the HTTP API says what the code does."""

import json
from pathlib import Path

import pytest

from ekiden.api.doors.chat import ChatRequest
from ekiden.api.doors.completions import CompletionRequest
from ekiden.api.doors.messages import MessagesRequest
from ekiden.api.doors.responses import ResponsesRequest
from ekiden.api.schema_base import Strict
from ekiden.api.shape import Fate

PAGE = Path(__file__).parents[3] / "docs" / "api.md"


def rows_under(title: str) -> list[str]:
    section = PAGE.read_text(encoding="utf-8").split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    return [line for line in section.splitlines() if line.startswith("| `")]


def row(name: str, fate: Fate) -> str:
    """A row of the tables of fields."""
    fine = f" (fine: {', '.join(f'`{json.dumps(value)}`' for value in fate.fine)})" if fate.fine else ""
    return f"| `{name}` | {fate.words}{fine} |"


@pytest.mark.parametrize(("title", "refused"), [("Taken without effect", False), ("Refused with the reason", True)])
def test_tables_of_fields_are_those_of_the_code(title: str, refused: bool) -> None:
    fates = dict(ChatRequest.shape.all_fates()) | dict(CompletionRequest.shape.all_fates())
    assert rows_under(title) == [row(name, fate) for name, fate in fates.items() if fate.refused is refused]


@pytest.mark.parametrize("model", [ResponsesRequest, MessagesRequest])
def test_the_tables_of_the_newer_routes_are_those_of_the_code(model: type[Strict]) -> None:
    fates = dict(model.shape.all_fates())
    path = "/v1/responses" if model is ResponsesRequest else "/v1/messages"
    told = [row(name, fate) for name, fate in sorted(fates.items(), key=lambda each: each[1].refused)]
    assert rows_under(f"Fields of `{path}` without effect, or refused") == told
