"""Does an independent tool measure what we measure? The same load on the same server by GuideLLM and by our own client.

    make setup && python3.11 -m venv REFEREE && REFEREE/bin/pip install guidellm==0.8.1 torch==2.13.0
    .venv/bin/python benchmarks/referee.py REFEREE/bin/python

A server of our own is started on loopback. The tools take turns (ours, theirs, theirs, ours, and so on), each with the
same prompts, lengths and streams at once. Figures are p50 TTFT, p50 TPOT and output tokens a second. GuideLLM counts
from the moment of sending, as a closed loop does here, and calls TPOT "inter token latency".

Where tool and server share cores, a tool that works more for each event slows the server that it measures. So each tool
is held against the server's ledger of that tool's own turns. The ledger knows nothing of HTTP, which costs both tools
the same; what they say beyond it must agree within 5 % of the figure, or the exit status is 1. What else differs
between them is what they cost, and their processor time says so.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from ekiden.cli.own_server import own_server
from ekiden.config import Config, LedgerConfig
from ekiden.evaluation.load.loops import closed_loop, completion_requests
from ekiden.evaluation.load.target import Target
from ekiden.evaluation.workloads.synthetic import demo_prompts
from ekiden.evidence.runs import open_runs
from ekiden.measure.figures import stream_figures, time_per_output_token

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
    failed = benchmark["requests"]["errored"]
    assert not failed, f"{metrics['request_totals']}: {json.dumps(failed)[:1500]}"
    milliseconds = [metrics[name]["successful"] for name in ("time_to_first_token_ms", "inter_token_latency_ms")]
    ttft, tpot = (found["percentiles"]["p50"] / 1000 for found in milliseconds)
    # Over the whole run, as ours: tokens of all answers by the time from the first request to the last answer.
    output = metrics["output_token_count"]["successful"]["total_sum"]
    return [ttft, tpot, output / benchmark["duration"]]


def recorded(folder: Path, windows: list[tuple[float, float]]) -> list[list[float]]:
    """The same figures by the server's ledger, for each window of Unix time."""
    (reader,) = open_runs(folder)
    with reader:
        arrivals = {row.request: row.arrival for row in reader.all_requests()}
        ends = [(arrivals[end.request], end) for end in reader.all_ends() if end.first_token is not None]
        base = reader.header.started
    found = []
    for begin, over in windows:
        mine = [(at, end) for at, end in ends if begin <= base + at / 1e6 <= over]
        tpots = [time_per_output_token(end.first_token or 0, end.at, end.output_tokens) for _, end in mine]
        seconds = (max(end.at for _, end in mine) - min(at for at, _ in mine)) / 1e6
        found.append(
            [
                median(((end.first_token or 0) - at) / 1e6 for at, end in mine),
                median(tpot / 1e6 for tpot in tpots if tpot is not None),
                sum(end.output_tokens for _, end in mine) / seconds,
            ]
        )
    return found


def processor_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="interpreter of the environment that has guidellm")
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    tools: list[str] = []
    told: list[list[float]] = []
    windows: list[tuple[float, float]] = []
    spent = {"ours": 0.0, "guidellm": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        with own_server(Config(ledger=LedgerConfig(ledger_dir=folder))) as url:
            ours(url, texts(given.streams, -1), given.tokens, given.streams)  # the first passes are slow
            for turn in range(2 * given.rounds):
                tool = "guidellm" if turn % 4 in (1, 2) else "ours"
                prompts = texts(given.requests, turn)
                begin, processor = time.time(), processor_seconds()
                if tool == "ours":
                    figures = ours(url, prompts, given.tokens, given.streams)
                else:
                    figures = theirs(given.python, url, prompts, given.tokens, given.streams)
                windows.append((begin, time.time()))
                spent[tool] += processor_seconds() - processor
                tools.append(tool)
                told.append(figures)
        ledger = recorded(Path(folder), windows)
    worst = 0.0
    for index, name in enumerate(FIGURES):
        beyond, line = [], name
        for tool in spent:
            mine = [turn for turn, each in enumerate(tools) if each == tool]
            said, was = median(told[turn][index] for turn in mine), median(ledger[turn][index] for turn in mine)
            beyond.append(said - was)
            line += f"; {tool} {said:.4f}, the ledger of its turns {was:.4f}"
        apart = abs(beyond[0] - beyond[1]) / said
        worst = max(worst, apart)
        print(f"{line}; beyond the ledger they are {apart:.1%} apart")
    for tool, seconds in spent.items():
        print(f"{tool}: {seconds / tools.count(tool):.2f} s of processor time a turn")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
