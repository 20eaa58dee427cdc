"""The ``llm`` command-line tool, told of the server in its own list of extra OpenAI-compatible models."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from tests.api.scripted import MODEL
from tests.clients.conftest import Live

ANSWER = "The sky scatters blue light."


class Tool:
    def __init__(self, home: Path) -> None:
        self.home = home

    async def run(self, *arguments: str) -> str:
        environment = {**os.environ, "LLM_USER_PATH": str(self.home), "LLM_LOAD_PLUGINS": ""}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "llm", *arguments, env=environment,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        return output.decode()


@pytest.fixture
def llm(url: str, tmp_path: Path) -> Tool:
    models = [
        {"model_id": "ekiden", "model_name": MODEL, "api_base": url},
        {"model_id": "ekiden-text", "model_name": MODEL, "api_base": url, "completion": True},
    ]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))
    return Tool(tmp_path)


@pytest.mark.parametrize("whole", [[], ["--no-stream"]])
async def test_a_prompt(llm: Tool, live: Live, whole):
    output = await llm.run("-m", "ekiden", *whole, "-s", "Be short.", "-o", "temperature", "0", "Why is the sky blue?")
    assert output.strip() == ANSWER
    (request,) = live.engine.requests
    text = bytes(token for token in request.prompt_token_ids if token < 256).decode()
    assert "Be short." in text
    assert "Why is the sky blue?" in text
    assert request.sampling.temperature == 0


async def test_a_conversation_goes_on(llm: Tool, live: Live):
    await llm.run("-m", "ekiden", "Why is the sky blue?")
    await llm.run("-m", "ekiden", "-c", "And at night?")
    text = bytes(token for token in live.engine.requests[-1].prompt_token_ids if token < 256).decode()
    assert text.index("sky blue?") < text.index(ANSWER) < text.index("at night?")


async def test_completions(llm: Tool):
    assert (await llm.run("-m", "ekiden-text", "The sky")).strip() == ANSWER
