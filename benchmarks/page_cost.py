"""Measures what the page costs the engine: the processor time of a frame, and the throughput with ten pages open.

    python benchmarks/page_cost.py frames --rows 64 --steps 6000 --folder /tmp/page-bench
    python benchmarks/page_cost.py server --rounds 6 --seconds 6 --clients 32

``frames`` records a mixed, overloaded load in virtual time (``ledger_figures.py``), copies it turn by turn as an engine
would have written it, and makes a frame for every half second of it. The measure is processor time.

``server`` starts `ekiden serve` with the real model and keeps it busy. Windows with the pages open and without follow
one another in turns (off, on, on, off, ...), and the server's own counter tells the tokens of each. The pages are read
in a process of their own, which only takes the bytes: what a browser spends on drawing is spent where it runs.
"""

import argparse
import asyncio
import json
import multiprocessing
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.synchronize import Event as Flag
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


async def _read(url: str, count: int, over: Flag) -> None:
    """Open so many streams and take their bytes until it is over."""
    place = urlsplit(url)

    async def one() -> None:
        reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=2**20)
        writer.write(f"GET {STREAM} HTTP/1.1\r\nhost: {place.netloc}\r\naccept: text/event-stream\r\n\r\n".encode())
        while await reader.read(2**18):
            pass
        writer.close()

    pages = [asyncio.create_task(one()) for _ in range(count)]
    await asyncio.to_thread(over.wait)
    for page in pages:
        page.cancel()


def _pages(url: str, count: int, over: Flag) -> None:
    asyncio.run(_read(url, count, over))


@contextmanager
def open_pages(url: str, count: int) -> Any:
    context = multiprocessing.get_context("spawn")
    over = context.Event()
    process = context.Process(target=_pages, args=(url, count, over))
    process.start()
    try:
        yield
    finally:
        over.set()
        process.join()


def _tokens(http: httpx.Client) -> float:
    lines = http.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(TOKENS + "{"))


def _keep_busy(url: str, model: str, clients: int, tokens: int, over: threading.Event) -> list[threading.Thread]:
    """Clients that send their next request when the last one is answered."""

    def client(number: int) -> None:
        with httpx.Client(base_url=url, timeout=120) as http:
            sent = 0
            while not over.is_set():
                prompt = [1 + (number * 7919 + sent * 104729 + place) % 4000 for place in range(48)]
                sent += 1
                body = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
                http.post("/v1/completions", json=body).raise_for_status()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    return threads


def server_cost(asked: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        config = replace(Config(), ledger=LedgerConfig(ledger_dir=folder))
        with own_server(config) as url, httpx.Client(base_url=url, timeout=60) as http:
            model = http.get("/v1/models").json()["data"][0]["id"]
            over = threading.Event()
            threads = _keep_busy(url, model, asked.clients, asked.tokens, over)
            try:
                time.sleep(asked.warm_up)
                ratios, rates = _windows(url, http, asked)
            finally:
                over.set()
                for thread in threads:
                    thread.join()
    low, high = min(ratios), max(ratios)
    return {
        "pages": asked.pages,
        "clients": asked.clients,
        "window_seconds": asked.seconds,
        "tokens_per_second_off": median(rates[False]),
        "tokens_per_second_on": median(rates[True]),
        "on_over_off_median": median(ratios),
        "on_over_off_range": [low, high],
        "on_over_off": ratios,
    }


def _windows(url: str, http: httpx.Client, asked: argparse.Namespace) -> tuple[list[float], dict[bool, list[float]]]:
    rates: dict[bool, list[float]] = {False: [], True: []}

    def window() -> float:
        before, began = _tokens(http), time.monotonic()
        time.sleep(asked.seconds)
        return (_tokens(http) - before) / (time.monotonic() - began)

    ratios = []
    for pair in range(asked.rounds):
        found = {}
        for pages in (False, True) if pair % 2 == 0 else (True, False):
            if pages:
                with open_pages(url, asked.pages):
                    time.sleep(1.5)  # the process of the pages has started, and they have their first frame
                    found[pages] = window()
            else:
                time.sleep(0.5)
                found[pages] = window()
            rates[pages].append(found[pages])
        ratios.append(found[True] / found[False])
    return ratios, rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    kinds = parser.add_subparsers(dest="kind", required=True)
    frames = kinds.add_parser("frames")
    frames.add_argument("--folder", type=Path, required=True)
    frames.add_argument("--steps", type=int, default=6_000)
    frames.add_argument("--rows", type=int, default=64)
    server = kinds.add_parser("server")
    server.add_argument("--rounds", type=int, default=6, help="pairs of a window with pages and one without")
    server.add_argument("--seconds", type=float, default=6.0, help="of a window")
    server.add_argument("--warm-up", type=float, default=8.0)
    server.add_argument("--pages", type=int, default=10)
    server.add_argument("--clients", type=int, default=32)
    server.add_argument("--tokens", type=int, default=64)
    asked = parser.parse_args()
    print(json.dumps(frames_cost(asked) if asked.kind == "frames" else server_cost(asked), indent=2))


if __name__ == "__main__":
    main()
