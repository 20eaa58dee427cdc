"""Load on any OpenAI-compatible server: closed loop (so many streams at once) or open loop (arrivals of their own).

Open loop is the honest one: a request is due when its arrival says so, whatever became of the others, and every latency
counts from that moment. Closed loop shows capacity. Both end by themselves: their requests are counted beforehand.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ekiden.evaluation.metrics import RequestRecord
from ekiden.evaluation.sse_client import Connection, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """The records of a run in the order of the requests, and its duration in seconds."""

    records: list[RequestRecord]
    duration: float


def completion_requests(
    target: Target,
    model: str,
    prompts: Sequence[list[int] | str],
    *,
    output_tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int | None = None,
) -> list[bytes]:
    """Streamed ``/v1/completions`` calls of exactly ``output_tokens`` tokens (where ignore_eos is known)."""
    common: dict[str, Any] = {
        "model": model,
        "max_tokens": output_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if seed is not None:
        common["seed"] = seed
    return [target.request_bytes("/completions", {**common, "prompt": prompt}) for prompt in prompts]


async def closed_loop(target: Target, requests: Sequence[bytes], *, concurrency: int, timeout: float) -> LoadRun:
    """Keep ``concurrency`` requests in flight until all have been asked. Arrival is the moment of asking."""
    records = [RequestRecord(intended=0.0) for _ in requests]
    todo = iter(range(len(requests)))
    start = time.monotonic()

    async def stream() -> None:
        connection: Connection | None = None
        for index in todo:
            records[index].intended = time.monotonic()
            connection = await _ask(target, connection, requests[index], records[index], timeout)
        if connection is not None:
            await connection.close()

    await asyncio.gather(*(stream() for _ in range(min(concurrency, len(requests)))))
    return LoadRun(records=records, duration=_duration(records, start))


async def open_loop(target: Target, requests: Sequence[bytes], arrivals: Sequence[float], *, timeout: float) -> LoadRun:
    """Send request ``i`` at ``arrivals[i]`` seconds after the start, whatever the server does."""
    idle: list[Connection] = []
    start = time.monotonic()
    records = [RequestRecord(intended=start + due) for due in arrivals]

    async def one(index: int) -> None:
        connection = await _ask(target, idle.pop() if idle else None, requests[index], records[index], timeout)
        if connection is not None:
            idle.append(connection)

    async with asyncio.TaskGroup() as group:
        for index, record in enumerate(records):
            wait = record.intended - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            group.create_task(one(index))
    for connection in idle:
        await connection.close()
    return LoadRun(records=records, duration=_duration(records, start))


async def _ask(
    target: Target, connection: Connection | None, request: bytes, record: RequestRecord, timeout: float
) -> Connection | None:
    """Ask over ``connection`` or a new one; gives back the connection when it can be used again."""
    try:
        if connection is None or not connection.reusable:
            connection = await asyncio.wait_for(Connection.open(target), timeout)
    except (OSError, TimeoutError):
        record.sent = record.end = time.monotonic()
        record.failure = "connect"
        return None
    await connection.ask(request, record, timeout=timeout)
    if connection.reusable:
        return connection
    await connection.close()
    return None


def _duration(records: Sequence[RequestRecord], start: float) -> float:
    return max((record.end for record in records), default=start) - start
