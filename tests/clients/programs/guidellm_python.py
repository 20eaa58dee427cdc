"""GuideLLM, its command: a short load of each kind of request, and no request failed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from report import MODEL, URL, run

HOME = Path(os.environ["HOME"])
REQUESTS = 6


def load(request_format: str) -> dict[str, Any]:
    folder = HOME / request_format.strip("/").replace("/", "-")
    folder.mkdir()
    prompts = [json.dumps({"prompt": f"Count from {number}.", "output_tokens_count": 8}) for number in range(REQUESTS)]
    (folder / "prompts.jsonl").write_text("\n".join(prompts), encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable, "-m", "guidellm", "run",
            "--backend", f"kind=openai_http,target={URL},model={MODEL},request_format={request_format}",
            "--profile", "kind=concurrent,streams=2",
            "--constraint", f"kind=max_requests,count={REQUESTS}",
            "--data", f"kind=json_file,path={folder / 'prompts.jsonl'}",
            "--output", f"kind=json,path={folder / 'report.json'}",
            "--disable-console-interactive",
        ],
        cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (benchmark,) = json.loads((folder / "report.json").read_text(encoding="utf-8"))["benchmarks"]
    return dict(benchmark)


def _all_succeed(request_format: str) -> None:
    found = load(request_format)
    totals = found["metrics"]["request_totals"]
    assert totals["successful"] == REQUESTS, totals
    assert totals["errored"] == 0, totals


def chat() -> None:
    _all_succeed("/v1/chat/completions")


def completions() -> None:
    _all_succeed("/v1/completions")


if __name__ == "__main__":
    run("guidellm", {"chat": chat, "completions": completions})
