"""Agents in their non-interactive mode, at the server whose model calls tools. ``agents.py NAME`` runs one of them.

Each gets a question, runs the command that the model asks for in its shell, sends what the command printed, and tells
the model's answer. The command's text does not have the words of its output, so the answer shows that it was run.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import AGENT_MODEL, AGENT_URL, run

HOME = Path(os.environ["HOME"])
FOLDERS = [Path(__file__).parent / name / "node_modules" for name in ("agents", "heavy-agents")]
QUESTION = "How is the weather?"
ANSWER = "It is 21 degrees."


@dataclass
class Agent:
    package: str
    command: str
    arguments: Callable[[], list[str]]
    """Writes what configuration the agent needs, and gives its arguments, to which the question is added."""

    @property
    def folder(self) -> Path:
        return next(folder for folder in FOLDERS if (folder / self.package).exists())

    def version(self) -> str:
        about = json.loads((self.folder / self.package / "package.json").read_text(encoding="utf-8"))
        return str(about["version"])

    def __call__(self, *arguments: str) -> str:
        work = HOME / "work"
        work.mkdir(exist_ok=True)
        done = subprocess.run(
            [str(self.folder / ".bin" / self.command), *arguments], cwd=work, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout


def written(name: str, text: str) -> Path:
    path = HOME / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def codex() -> list[str]:
    settings = [
        f'model = "{AGENT_MODEL}"',
        'model_provider = "ekiden"',
        "[analytics]",
        "enabled = false",
        "[model_providers.ekiden]",
        'name = "Ekiden"',
        f'base_url = "{AGENT_URL}/v1"',
        'wire_api = "responses"',
        "request_max_retries = 0",
        "stream_max_retries = 0",
    ]
    written(".codex/config.toml", "\n".join(settings))
    return ["exec", "--skip-git-repo-check", "-s", "danger-full-access"]


def opencode() -> list[str]:
    provider: dict[str, Any] = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{AGENT_URL}/v1", "apiKey": "none"},
        "models": {AGENT_MODEL: {"name": "the model"}},
    }
    settings = {"provider": {"ekiden": provider}, "share": "disabled", "autoupdate": False, "permission": "allow"}
    written("work/opencode.json", json.dumps(settings))
    os.environ |= {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    return ["run", "-m", f"ekiden/{AGENT_MODEL}"]


def cline() -> list[str]:
    AGENTS["cline"](
        "auth", "--provider", "openai", "--apikey", "none", "--modelid", AGENT_MODEL, "--baseurl", f"{AGENT_URL}/v1"
    )
    return []


def qwen() -> list[str]:
    written(".qwen/settings.json", json.dumps({"privacy": {"usageStatisticsEnabled": False}}))
    os.environ |= {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{AGENT_URL}/v1", "OPENAI_MODEL": AGENT_MODEL}
    return ["--auth-type", "openai", "--yolo"]


def continues() -> list[str]:
    model = {"name": "ekiden", "provider": "openai", "model": AGENT_MODEL, "roles": ["chat"]}
    model |= {"apiBase": f"{AGENT_URL}/v1", "apiKey": "none"}
    settings = {"name": "ekiden", "version": "1.0.0", "schema": "v1", "models": [model]}
    os.environ["CONTINUE_TELEMETRY_ENABLED"] = "0"
    return ["--print", "--auto", "--config", str(written("config.yaml", json.dumps(settings)))]  # JSON is YAML


AGENTS = {
    "codex": Agent("@openai/codex", "codex", codex),
    "opencode": Agent("opencode-ai", "opencode", opencode),
    "cline": Agent("cline", "cline", cline),
    "qwen": Agent("@qwen-code/qwen-code", "qwen", qwen),
    "continue": Agent("@continuedev/cli", "cn", continues),
}


if __name__ == "__main__":
    agent = AGENTS[sys.argv[1]]

    def tools() -> None:
        said = agent(*agent.arguments(), QUESTION)
        assert ANSWER in said, said[-2000:]

    run(agent.package, {"tools": tools}, agent.version())
