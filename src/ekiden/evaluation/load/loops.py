"""Load on any OpenAI-compatible server: closed loop (so many streams at once) or open loop (arrivals of their own).

Open loop is the honest one: a request is due when its arrival says so, whatever became of the others, and every latency
counts from that moment. Closed loop shows capacity. Both end by themselves: their requests are counted beforehand.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ekiden.evaluation.load.sse_client import Connection
from ekiden.evaluation.load.target import Target
from ekiden.measure.figures import RequestRecord

OnAnswer = Callable[[], None]


def _unheard() -> None:
    """Nobody asked to be told of answers."""


@dataclass(frozen=True, slots=True)
class LoadRun:
    """The records of a run in the order of the requests, and when it started. Times are of the monotonic clock.

    ``bodies``: the body of each answer, in pieces; None where they were not to be kept.
    """

    records: list[RequestRecord]
    start: float
    bodies: list[list[bytes] | None] = field(default_factory=list)

    @property
    def duration(self) -> float:
        return max((record.end for record in self.records), default=self.start) - self.start


def completion_request(
    target: Target, model: str, prompt: Sequence[int] | str, *, headers: Mapping[str, str] | None = None, **fields: Any
) -> bytes:
    """A greedy, streamed ``/v1/completions`` call with its usage; a field that is None is left out."""
    payload = {
        "model": model,
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **{name: value for name, value in fields.items() if value is not None},
    }
    return target.request_bytes("/completions", payload, headers)


def completion_requests(
    target: Target, model: str, prompts: Sequence[list[int] | str], *, output_tokens: int, **sampling: Any
) -> list[bytes]:
    """Streamed ``/v1/completions`` calls of exactly ``output_tokens`` tokens (where ignore_eos is known)."""
    fields = {"max_tokens": output_tokens, "ignore_eos": True, **sampling}
    return [completion_request(target, model, prompt, **fields) for prompt in prompts]


async def closed_loop(
    target: Target,
    requests: Sequence[bytes],
    *,
    concurrency: int,
    timeout: float,
    keep_bodies: bool = False,
    on_answer: OnAnswer = _unheard,
) -> LoadRun:
    """Keep ``concurrency`` requests in flight until all have been asked. Arrival is the moment of asking."""
    bodies: list[list[bytes] | None] = [[] if keep_bodies else None for _ in requests]
    run = LoadRun([RequestRecord(intended=0.0) for _ in requests], time.monotonic(), bodies)
    todo = iter(zip(requests, run.records, bodies, strict=True))

    async def stream() -> None:
        connection = Connection(target)
        try:
            for request, record, body in todo:
                record.intended = time.monotonic()
                await connection.ask(request, record, timeout=timeout, body=body)
                on_answer()
        except BaseException:
            connection.drop()
            raise
        await connection.close()

    await asyncio.gather(*(stream() for _ in range(min(concurrency, len(requests)))))
    return run


async def _until(moment: float) -> None:
    """Wait for a moment of the monotonic clock. uvloop's timers go in whole milliseconds and may end before it."""
    while (left := moment - time.monotonic()) > 0:  # noqa: ASYNC110 - it is a time that is waited for
        await asyncio.sleep(left)


async def open_loop(
    target: Target,
    requests: Sequence[bytes],
    arrivals: Sequence[float],
    *,
    timeout: float,
    keep_bodies: bool = False,
    on_answer: OnAnswer = _unheard,
) -> LoadRun:
    """Send request ``i`` at ``arrivals[i]`` seconds after the start, whatever the server does. Arrivals ascend.

    Cancelled, it leaves no connection open.
    """
    start = time.monotonic()
    bodies: list[list[bytes] | None] = [[] if keep_bodies else None for _ in requests]
    run = LoadRun([RequestRecord(intended=start + due) for due in arrivals], start, bodies)
    idle: list[Connection] = []

    async def one(request: bytes, record: RequestRecord, body: list[bytes] | None) -> None:
        connection = idle.pop() if idle else Connection(target)
        try:
            await connection.ask(request, record, timeout=timeout, body=body)
        except BaseException:
            connection.drop()
            raise
        idle.append(connection)
        on_answer()

    try:
        async with asyncio.TaskGroup() as group:
            for request, record, body in zip(requests, run.records, bodies, strict=True):
                await _until(record.intended)
                group.create_task(one(request, record, body))
    finally:
        for connection in idle:
            await connection.close()
    return run
