"""Runs a fixed set of requests through an engine core on this thread.

The core's own scheduling is measured and nothing else: no queue between threads, no HTTP, no text.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from ekiden.engine.engine_core import EngineCore
from ekiden.state.request import Finish, Refusal, Request


@dataclass(slots=True)
class Answer:
    """Tokens of one request and how it ended: one of ``finish`` and ``refusal`` is set."""

    token_ids: list[int] = field(default_factory=list)
    finish: Finish | None = None
    refusal: Refusal | None = None


def run_batch(
    core: EngineCore,
    requests: Sequence[Request],
    *,
    concurrency: int | None = None,
    on_finish: Callable[[Request, Answer], None] | None = None,
) -> list[Answer]:
    """Answers in the order of the requests, each of which enters the engine at its ``arrival_time`` or soon after.

    With ``concurrency`` only so many are in the engine at once, and each counts as arrived when it may enter.
    Raises RuntimeError when the engine has work and can never do it.
    """
    answers = {request.request_id: Answer() for request in requests}
    by_id = {request.request_id: request for request in requests}
    todo = deque(sorted(requests, key=lambda request: request.arrival_time))
    in_flight = 0
    while todo or core.has_work:
        now = time.monotonic()
        while todo and todo[0].arrival_time <= now and (concurrency is None or in_flight < concurrency):
            request = todo.popleft()
            core.add_request(request if concurrency is None else msgspec.structs.replace(request, arrival_time=now))
            in_flight += 1
        result = core.step()
        for update in result.updates:
            answer = answers[update.request_id]
            answer.token_ids.extend(update.token_ids)
            if update.terminal:
                in_flight -= 1
                answer.finish, answer.refusal = update.finish, update.refusal
                if on_finish is not None:
                    on_finish(by_id[update.request_id], answer)
        if not result.computed and (todo or core.has_work):
            _wait_for(result.next_change, todo[0].arrival_time if todo else None, core.has_work)
    return list(answers.values())


def _wait_for(next_change: float | None, next_arrival: float | None, has_work: bool) -> None:
    """Sleep until an arrival, or the timer of a windowed batch; without either nothing would ever change."""
    times = [moment for moment in (next_change if has_work else None, next_arrival) if moment is not None]
    if not times:
        raise RuntimeError("the engine has work but scheduled none and waits for nothing")
    time.sleep(max(0.0, min(times) - time.monotonic()))
