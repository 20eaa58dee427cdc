"""Runs a fixed set of requests through an engine core on this thread, all of them waiting from the start.

The core's own scheduling is measured and nothing else: no queue between threads, no HTTP, no text.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ekiden.engine.engine_core import EngineCore
from ekiden.state.request import Finish, Refusal, Request


@dataclass(slots=True)
class Answer:
    """Tokens of one request and how it ended: one of ``finish`` and ``refusal`` is set."""

    token_ids: list[int] = field(default_factory=list)
    finish: Finish | None = None
    refusal: Refusal | None = None


def run_batch(
    core: EngineCore, requests: Sequence[Request], *, on_finish: Callable[[Request, Answer], None] | None = None
) -> list[Answer]:
    """Answers in the order of the requests. Raises RuntimeError when the engine has work and can never do it."""
    answers = {request.request_id: Answer() for request in requests}
    by_id = {request.request_id: request for request in requests}
    for request in requests:
        core.add_request(request)
    while core.has_work:
        result = core.step()
        for update in result.updates:
            answer = answers[update.request_id]
            answer.token_ids.extend(update.token_ids)
            if update.terminal:
                answer.finish, answer.refusal = update.finish, update.refusal
                if on_finish is not None:
                    on_finish(by_id[update.request_id], answer)
        if not result.computed and core.has_work:
            _wait_for(result.next_change)
    return list(answers.values())


def _wait_for(next_change: float | None) -> None:
    """A windowed batch waits for its timer; without a timer nothing would ever change."""
    if next_change is None:
        raise RuntimeError("the engine has work but scheduled none and waits for nothing")
    time.sleep(max(0.0, next_change - time.monotonic()))
