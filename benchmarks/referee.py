"""Does an independent tool measure what we measure? The same load on the same server by GuideLLM and by our own client.

    make setup && python3.11 -m venv REFEREE && REFEREE/bin/pip install guidellm==0.8.1 torch==2.13.0
    .venv/bin/python benchmarks/referee.py REFEREE/bin/python

A server of our own is started on loopback. The tools take turns (ours, theirs, theirs, ours, and so on), each with the
same prompts, lengths and streams at once. Printed are the medians of p50 TTFT, p50 TPOT and output tokens a second of
both and their ratio; the exit status is 1 when one is off by more than 5 %. GuideLLM counts its figures from the moment
of sending, as a closed loop does here, and calls TPOT "inter token latency".
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from ekiden.cli.own_server import own_server
from ekiden.config import Config
from ekiden.evaluation.load.loops import closed_loop, completion_requests
from ekiden.evaluation.load.target import Target
from ekiden.evaluation.workloads.synthetic import demo_prompts
from ekiden.measure.figures import stream_figures

LIMIT = 0.05
FIGURES = ("ttft p50, s", "tpot p50, s", "output tokens/s")


def texts(count: int, turn: int) -> list[str]:
    """Prompts that no earlier turn has sent, so that nobody finds them in the prefix cache."""
    base = [prompt.prompt for prompt in demo_prompts()]
    return [f"Turn {turn}, request {index}. {base[index % len(base)]}" for index in range(count)]


def ours(url: str, prompts: list[str], tokens: int, streams: int) -> list[float]:
    target = Target.parse(url)
    requests = completion_requests(target, "smollm2-135m", prompts, output_tokens=tokens)
    run = asyncio.run(closed_loop(target, requests, concurrency=streams, timeout=120.0))
    found: Any = stream_figures(run.records, duration=run.duration)
    assert found["failures"] == 0, found["failures_by_kind"]
    return [found["ttft_seconds"]["p50"], found["tpot_seconds"]["p50"], found["output_tokens_per_second"]]


def theirs(python: str, url: str, prompts: list[str], tokens: int, streams: int) -> list[float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = [json.dumps({"prompt": prompt, "output_tokens_count": tokens}) for prompt in prompts]
        (folder / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
        done = subprocess.run(  # noqa: S603 - the interpreter that the caller named
            [
                python, "-m", "guidellm", "run",
                "--backend", f"kind=openai_http,target={url},model=smollm2-135m,request_format=/v1/completions",
                "--profile", f"kind=concurrent,streams={streams}",
                "--constraint", f"kind=max_requests,count={len(prompts)}",
                "--data", f"kind=json_file,path={folder / 'prompts.jsonl'}",
                "--output", f"kind=json,path={folder / 'report.json'}",
                "--disable-console-interactive",
            ],
            cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        (benchmark,) = json.loads((folder / "report.json").read_text(encoding="utf-8"))["benchmarks"]
    metrics = benchmark["metrics"]
    assert metrics["request_totals"]["successful"] == len(prompts), metrics["request_totals"]
    milliseconds = [metrics[name]["successful"] for name in ("time_to_first_token_ms", "inter_token_latency_ms")]
    ttft, tpot = (found["percentiles"]["p50"] / 1000 for found in milliseconds)
    # Over the whole run, as ours: tokens of all answers by the time from the first request to the last answer.
    output = metrics["output_token_count"]["successful"]["total_sum"]
    return [ttft, tpot, output / benchmark["duration"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="interpreter of the environment that has guidellm")
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    found: dict[str, list[list[float]]] = {"ours": [], "guidellm": []}
    with own_server(Config()) as url:
        ours(url, texts(given.streams, -1), given.tokens, given.streams)  # the first passes are slow
        turn = 0
        for each in range(given.rounds):
            for tool in ("ours", "guidellm") if each % 2 == 0 else ("guidellm", "ours"):
                prompts = texts(given.requests, turn)
                turn += 1
                if tool == "ours":
                    figures = ours(url, prompts, given.tokens, given.streams)
                else:
                    figures = theirs(given.python, url, prompts, given.tokens, given.streams)
                found[tool].append(figures)
                print(tool, *(f"{value:.4f}" for value in figures), flush=True)
    worst = 0.0
    for index, name in enumerate(FIGURES):
        mine, referee = (median(figures[index] for figures in found[tool]) for tool in found)
        worst = max(worst, abs(mine / referee - 1))
        print(f"{name}: ours {mine:.4f}, guidellm {referee:.4f}, ratio {mine / referee:.3f}")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
