"""Every command that the documentation shows exists, with the flags that it is shown with."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ekiden.cli.main import cli

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELLS = re.compile(r"```(?:sh|bash|console)\n(.*?)```", re.DOTALL)


def commands_of(page: Path) -> Iterator[str]:
    for block in SHELLS.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r";|&&|\|\s", line.split(" #", 1)[0].removeprefix("$ ")):
                if part.strip().removeprefix(".venv/bin/").startswith("ekiden "):
                    yield part.strip().rstrip("&").strip()


SHOWN = sorted({(page.name, command) for page in PAGES for command in commands_of(page)})


def unknown_flags(command: str) -> list[str]:
    words = shlex.split(command)[1:]
    found: click.Command = cli
    with click.Context(found) as context:
        while isinstance(found, click.Group) and words and not words[0].startswith("-"):
            name = words.pop(0).split("|")[0]
            below = found.get_command(context, name)
            assert below is not None, f"`ekiden` has no command {name!r}: {command}"
            found = below
        known = {flag for each in found.get_params(context) for flag in (*each.opts, *each.secondary_opts)}
    return [word.split("=")[0] for word in words if word.startswith("--") and word.split("=")[0] not in known]


def test_the_documentation_shows_commands() -> None:
    assert len(SHOWN) >= 25


@pytest.mark.parametrize(("page", "command"), SHOWN, ids=[command for _, command in SHOWN])
def test_a_command_of_the_documentation_has_its_flags(page: str, command: str) -> None:
    assert unknown_flags(command) == [], page
