"""``llm``, the command, told of both servers in its own list of models."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from report import AGENT_MODEL, AGENT_URL, MODEL, QUESTION, URL, WEATHER, run

HOME = Path(os.environ["HOME"]) / "llm"
TOOL = '''
def weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: 21 degrees"
'''
models: list[dict[str, Any]] = [
    {"model_id": "ekiden", "model_name": MODEL, "api_base": f"{URL}/v1", "supports_schema": True},
    {"model_id": "text", "model_name": MODEL, "api_base": f"{URL}/v1", "completion": True},
    {"model_id": "agent", "model_name": AGENT_MODEL, "api_base": f"{AGENT_URL}/v1", "supports_tools": True},
]


def llm(*arguments: str) -> str:
    environment = {**os.environ, "LLM_USER_PATH": str(HOME), "LLM_LOAD_PLUGINS": ""}
    command = [sys.executable, "-m", "llm", *arguments]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


short = ["-o", "temperature", "0", "-o", "max_tokens", "8"]


def chat() -> None:
    assert llm("-m", "ekiden", "--no-stream", *short, QUESTION)


def stream() -> None:
    assert llm("-m", "ekiden", *short, QUESTION) == llm("-m", "ekiden", "--no-stream", *short, QUESTION)


def completions() -> None:
    assert llm("-m", "text", "-o", "max_tokens", "8", "The sky")


def tools() -> None:
    said = llm("-m", "agent", "--functions", TOOL, "--td", "How is the weather in Oslo?")
    assert "It is 21 degrees." in said, said


def structured_output() -> None:
    said = llm("-m", "ekiden", "--schema", json.dumps(WEATHER), "-o", "temperature", "0", QUESTION)
    assert json.loads(said)["city"] in ("Oslo", "Kyoto")


if __name__ == "__main__":
    HOME.mkdir(parents=True, exist_ok=True)
    (HOME / "extra-openai-models.yaml").write_text(json.dumps(models), encoding="utf-8")
    run(
        "llm",
        {
            "chat": chat,
            "stream": stream,
            "completions": completions,
            "tools": tools,
            "structured output": structured_output,
        },
    )
