"""The snippets of README.md and docs/clients.md, each run as it stands against a real server.

Only the address and the model's name are replaced by those of the test's server.
"""

import asyncio
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.api.conftest import events
from tests.api.scripted import MODEL
from tests.clients.conftest import Live

ROOT = Path(__file__).parents[2]
ANSWER = "The sky scatters blue light."
ADDRESS, SERVED = "http://127.0.0.1:8000", "smollm2-135m"


@dataclass(frozen=True)
class Snippet:
    page: str
    language: str
    text: str

    def __str__(self) -> str:
        first = next(line for line in self.text.splitlines() if SERVED in line or "import" in line)
        return f"{self.page}: {first[:40]}"


def snippets(page: str, begin: str, end: str) -> list[Snippet]:
    """The fenced blocks of a page from the line ``begin`` to the line ``end``."""
    text = "\n" + (ROOT / page).read_text(encoding="utf-8")
    section = text.split(f"\n{begin}\n", 1)[1].split(f"\n{end}\n", 1)[0]
    return [Snippet(page, *found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)]


README = snippets("README.md", "Send it a request:", "## See what continuous batching is")
CLIENTS = snippets("docs/clients.md", "# Clients", "## Clients that the tests run")


async def run(snippet: Snippet, live: Live, home: Path) -> str:
    text = snippet.text.replace(ADDRESS, live.url).replace(SERVED, MODEL)
    command = [sys.executable, "-c", text] if snippet.language == "python" else ["bash", "-euo", "pipefail", "-c", text]
    environment = {
        **os.environ, "LLM_USER_PATH": str(home), "LLM_LOAD_PLUGINS": "",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, cwd=home, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    assert "Traceback" not in errors.decode()
    return output.decode()


@pytest.mark.parametrize("snippet", [*README, *CLIENTS], ids=str)
async def test_a_snippet_works_as_it_stands(snippet: Snippet, live: Live, url: str, wide: None, tmp_path: Path) -> None:
    assert ADDRESS in snippet.text
    assert SERVED in snippet.text
    output = await run(snippet, live, tmp_path)
    if '"stream": true' in snippet.text:
        output = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in events(output))
    assert output.count(ANSWER) == len(live.engine.requests) >= 1


@pytest.mark.parametrize(
    "mark",
    [
        "from openai import OpenAI", "from openai import AsyncOpenAI", "from anthropic import Anthropic",
        "from langchain_openai import ChatOpenAI", "llm ", "curl ",
    ],
)  # fmt: skip
def test_the_readme_shows_each_client_briefly(mark: str) -> None:
    shown = [snippet.text for snippet in README if mark in snippet.text]
    assert shown, f"README.md shows nothing with {mark!r}"
    lines = min(sum(bool(line.strip()) for line in text.splitlines()) for text in shown)
    assert lines <= 5
