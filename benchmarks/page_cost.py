"""Measures what the page costs the engine: the processor time of a frame, and the throughput with ten pages open.

    python benchmarks/page_cost.py frames --rows 64 --steps 6000 --folder /tmp/page-bench
    python benchmarks/page_cost.py server --rounds 12 --seconds 5 --clients 32

``frames`` records a mixed, overloaded load in virtual time (``ledger_figures.py``), copies it turn by turn as an engine
would have written it, and makes a frame for every half second of it. The measure is processor time.

``server`` starts `ekiden serve` with the real model and keeps it busy. Windows with the pages open and without follow
one another in turns (off, on, on, off, ...), and the server's own counter tells the tokens of each. The pages are read
in a process of their own, which only takes the bytes: what a browser spends on drawing is spent where it runs. What the
HTTP process takes of a processor is told too: a machine that is never still hides one hundredth of a throughput.
"""

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import msgspec
from ledger_figures import Bench

from ekiden.cli.own_server import own_server
from ekiden.config import Config, LedgerConfig
from ekiden.dashboard.frames import MOST_PAUSE, Frames
from ekiden.engine.interface import Engine, EngineStats, Health
from ekiden.guard.runtime import cores
from ekiden.ledger.records import RunHeader
from ekiden.ledger.store import LedgerWriter
from ekiden.measure.percentiles import median, percentiles

STREAM = "/dashboard/data/stream"
TOKENS = "ekiden:generation_tokens_total"
TABLES = ("turns", "events", "requests", "ends", "controls")


# --- a frame


class StillEngine:
    """As much of an engine as frames ask for."""

    health = Health.OK

    def __init__(self, path: Path) -> None:
        self.ledger_path = path

    def stats(self) -> EngineStats:
        return EngineStats()


def copied(whole: Path, folder: Path) -> tuple[Path, Callable[[float], None]]:
    """A ledger that has what another one had at a time of the run, in seconds; the function lets it grow."""
    connection = sqlite3.connect(whole)
    ((header,),) = connection.execute("SELECT header FROM run").fetchall()
    connection.close()
    path = folder / "growing.sqlite"
    for old in folder.glob("growing*"):
        old.unlink()
    LedgerWriter(path, msgspec.json.decode(header, type=RunHeader)).close()
    growing = sqlite3.connect(path, isolation_level=None)
    growing.execute("ATTACH ? AS whole", (str(whole),))
    done = 0

    def upto(seconds: float) -> None:
        nonlocal done
        sql = "SELECT coalesce(max(turn), 0) FROM whole.turns WHERE turn >= ? AND start + took <= ?"
        ((turn,),) = growing.execute(sql, (done, seconds * 1e6)).fetchall()
        growing.execute("BEGIN")
        for table in TABLES:
            copy = f"INSERT INTO {table} SELECT * FROM whole.{table} WHERE turn > ? AND turn <= ?"  # noqa: S608
            growing.execute(copy, (done, turn))
        growing.execute("DELETE FROM live")
        growing.execute(
            "INSERT INTO live SELECT request FROM requests WHERE refusal IS NULL AND request NOT IN (SELECT request "
            "FROM ends)"
        )
        growing.execute("COMMIT")
        done = max(done, turn)

    return path, upto


def frames_cost(asked: argparse.Namespace) -> dict[str, Any]:
    folder: Path = asked.folder
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("bench*"):
        old.unlink()
    bench = Bench(asked.rows, folder)
    bench.run(asked.steps)
    assert bench.writer is not None
    bench.writer.close()
    end = bench.model.clock.time
    path, upto = copied(bench.writer.path, folder)
    now = [0.0]
    engine = cast(Engine, StillEngine(path))
    frames = Frames(engine, None, recording=True, clock=lambda: now[0], spawn=lambda run: None)
    viewer = frames.join(lambda: None)
    costs, sizes, pauses = [], [], []
    while now[0] < end:
        now[0] += max(0.5, frames.pause_seconds)
        upto(now[0])
        started = time.thread_time()
        frames.look()
        costs.append(time.thread_time() - started)
        event = frames.next_for(viewer)
        assert event is not None
        assert b'"state":"unreadable"' not in event.data
        sizes.append(len(event.data))
        pauses.append(frames.pause_seconds)
    settled = costs[20:]
    p95, worst = percentiles(settled, (95, 100))
    return {
        "rows": asked.rows,
        "run_seconds": end,
        "turns_per_second": asked.steps / end,
        "frames": len(costs),
        "frame_ms_p50": median(settled) * 1e3,
        "frame_ms_p95": p95 * 1e3,
        "frame_ms_max": worst * 1e3,
        "first_frame_ms": costs[0] * 1e3,
        "frame_bytes_p50": median(sizes[20:]),
        "pause_seconds_p50": median(pauses[20:]),
        "pause_seconds_most": MOST_PAUSE,
        "cores": cores(),
        "share_of_machine": sum(settled) / sum(pauses[20:]) / cores(),
    }


# --- the real server


class Pages:
    """Open streams in a process that takes their bytes and does nothing else."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and this file
            [sys.executable, "-S", "-c", _VIEWERS, str(self._url.hostname), str(self._url.port), STREAM],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def open(self, count: int) -> None:
        """Have so many streams open, and each its first frame."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(count, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == f"{count}\n"

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


_VIEWERS = """
import selectors, socket, sys
host, port, path = sys.argv[1:]
waiting, streams = selectors.DefaultSelector(), set()
waiting.register(sys.stdin, selectors.EVENT_READ)
wanted, begun, told = 0, set(), False
while True:
    for key, _ in waiting.select():
        if key.fileobj is sys.stdin:
            line = sys.stdin.readline()
            if not line:
                sys.exit()
            wanted, told = int(line), False
            for stream in streams:
                waiting.unregister(stream)
                stream.close()
            streams, begun = set(), set()
            for _ in range(wanted):
                stream = socket.create_connection((host, int(port)))
                stream.sendall(f"GET {path} HTTP/1.1\\r\\nhost: {host}:{port}\\r\\n\\r\\n".encode())
                waiting.register(stream, selectors.EVENT_READ)
                streams.add(stream)
        elif b"data: " in key.fileobj.recv(2**18):
            begun.add(key.fileobj)
    if not told and len(begun) == wanted:
        told = True
        print(wanted, flush=True)
"""


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _server_pid() -> int:
    """The server is this process's child; the engine is the server's."""
    children = Path(f"/proc/{os.getpid()}/task/{threading.main_thread().native_id}/children").read_text().split()
    return next(int(pid) for pid in children if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes())


def _tokens(http: httpx.Client) -> float:
    lines = http.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(TOKENS + "{"))


def _keep_busy(url: str, model: str, clients: int, tokens: int, over: threading.Event) -> list[threading.Thread]:
    """Clients that send their next request when the last one is answered."""

    def client(number: int) -> None:
        time.sleep(0.1 * number)  # so that they do not all begin and end together
        with httpx.Client(base_url=url, timeout=120) as http:
            sent = 0
            while not over.is_set():
                prompt = [1 + (number * 7919 + sent * 104729 + place) % 4000 for place in range(48)]
                sent += 1
                body = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
                try:
                    http.post("/v1/completions", json=body).raise_for_status()
                except httpx.HTTPError:
                    if not over.is_set():
                        raise

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(clients)]
    for thread in threads:
        thread.start()
    return threads


def server_cost(asked: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        config = replace(Config(), ledger=LedgerConfig(ledger_dir=folder))
        with own_server(config) as url, httpx.Client(base_url=url, timeout=60) as http:
            model = http.get("/v1/models").json()["data"][0]["id"]
            over, pages = threading.Event(), Pages(url)
            threads = _keep_busy(url, model, asked.clients, asked.tokens, over)
            try:
                time.sleep(asked.warm_up)
                found = _windows(http, pages, asked)
            finally:
                over.set()
                pages.close()
            for thread in threads:
                thread.join(30)
    rates, spent = ({on: [each[place] for each in found[on]] for on in (False, True)} for place in (0, 1))
    ratios = [on / off for off, on in zip(rates[False], rates[True], strict=True)]
    extra = (median(spent[True]) - median(spent[False])) / cores()
    return {
        "pages": asked.pages,
        "clients": asked.clients,
        "window_seconds": asked.seconds,
        "tokens_per_second_off": median(rates[False]),
        "tokens_per_second_on": median(rates[True]),
        "on_over_off_median": median(ratios),
        "on_over_off": ratios,
        "server_processor_share_off": spent[False],
        "server_processor_share_on": spent[True],
        "more_of_the_machine_with_pages": extra,
    }


def _windows(http: httpx.Client, pages: Pages, asked: argparse.Namespace) -> dict[bool, list[tuple[float, float]]]:
    """Of each window without pages and with them: tokens a second, and what the HTTP process took of a processor."""
    server = _server_pid()
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for pair in range(asked.rounds):
        for on in (False, True) if pair % 2 == 0 else (True, False):
            pages.open(asked.pages if on else 0)
            time.sleep(0.5)
            before, spent, began = _tokens(http), _processor_seconds(server), time.monotonic()
            time.sleep(asked.seconds)
            tokens, took = _tokens(http) - before, time.monotonic() - began
            found[on].append((tokens / took, (_processor_seconds(server) - spent) / took))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    kinds = parser.add_subparsers(dest="kind", required=True)
    frames = kinds.add_parser("frames")
    frames.add_argument("--folder", type=Path, required=True)
    frames.add_argument("--steps", type=int, default=6_000)
    frames.add_argument("--rows", type=int, default=64)
    server = kinds.add_parser("server")
    server.add_argument("--rounds", type=int, default=12, help="pairs of a window with pages and one without")
    server.add_argument("--seconds", type=float, default=5.0, help="of a window")
    server.add_argument("--warm-up", type=float, default=8.0)
    server.add_argument("--pages", type=int, default=10)
    server.add_argument("--clients", type=int, default=32)
    server.add_argument("--tokens", type=int, default=256)
    asked = parser.parse_args()
    print(json.dumps(frames_cost(asked) if asked.kind == "frames" else server_cost(asked), indent=2))


if __name__ == "__main__":
    main()
