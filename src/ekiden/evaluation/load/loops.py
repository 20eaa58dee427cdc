"""Load on any OpenAI-compatible server: closed loop (so many streams at once) or open loop (arrivals of their own).

Open loop is the honest one: a request is due when its arrival says so, whatever became of the others, and every latency
counts from that moment. Closed loop shows capacity. Both end by themselves: their requests are counted beforehand.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ekiden.evaluation.load.sse_client import Connection
from ekiden.evaluation.load.target import Target
from ekiden.measure.figures import RequestRecord


@dataclass(frozen=True, slots=True)
class LoadRun:
    """The records of a run in the order of the requests, and when it started."""

    records: list[RequestRecord]
    start: float

    @property
    def duration(self) -> float:
        return max((record.end for record in self.records), default=self.start) - self.start


def completion_requests(
    target: Target, model: str, prompts: Sequence[list[int] | str], *, output_tokens: int, **sampling: Any
) -> list[bytes]:
    """Streamed ``/v1/completions`` calls of exactly ``output_tokens`` tokens (where ignore_eos is known)."""
    common = {
        "model": model,
        "max_tokens": output_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **sampling,
    }
    return [target.request_bytes("/completions", {**common, "prompt": prompt}) for prompt in prompts]


async def closed_loop(target: Target, requests: Sequence[bytes], *, concurrency: int, timeout: float) -> LoadRun:
    """Keep ``concurrency`` requests in flight until all have been asked. Arrival is the moment of asking."""
    run = LoadRun([RequestRecord(intended=0.0) for _ in requests], time.monotonic())
    todo = iter(zip(requests, run.records, strict=True))

    async def stream() -> None:
        connection = Connection(target)
        for request, record in todo:
            record.intended = time.monotonic()
            await connection.ask(request, record, timeout=timeout)
        await connection.close()

    await asyncio.gather(*(stream() for _ in range(min(concurrency, len(requests)))))
    return run


async def open_loop(target: Target, requests: Sequence[bytes], arrivals: Sequence[float], *, timeout: float) -> LoadRun:
    """Send request ``i`` at ``arrivals[i]`` seconds after the start, whatever the server does."""
    start = time.monotonic()
    run = LoadRun([RequestRecord(intended=start + due) for due in arrivals], start)
    idle: list[Connection] = []

    async def one(request: bytes, record: RequestRecord) -> None:
        connection = idle.pop() if idle else Connection(target)
        await connection.ask(request, record, timeout=timeout)
        idle.append(connection)

    async with asyncio.TaskGroup() as group:
        for request, record in zip(requests, run.records, strict=True):
            await asyncio.sleep(max(0.0, record.intended - time.monotonic()))
            group.create_task(one(request, record))
    for connection in idle:
        await connection.close()
    return run
