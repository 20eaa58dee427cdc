"""The one loop around :meth:`EngineCore.step`: servers, offline batches, benches and simulations all run through it.

Three ports make the difference between them:

- A *source* is an iterator that the driver advances before every step. It puts what is due into the core's inbox
  (requests, aborts, commands) and yields the time of its next item: None when it has no more, :data:`ANY_TIME` when
  one may come at any moment. The run ends with the source.
- A *clock* tells the time and waits while there is nothing to compute: real time sleeps, virtual time skips ahead.
- A *sink* takes the result of every step.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from ekiden.config import LimitsConfig
from ekiden.engine.engine_core import EngineCore, StepResult
from ekiden.state.request import Finish, Refusal, Request, TokenLogprobs

Source = Iterator[float | None]
Sink = Callable[[StepResult], None]
ANY_TIME = math.inf


class DriverClock(Protocol):
    def now(self) -> float: ...

    def wait_until(self, moment: float) -> None: ...


class StuckError(RuntimeError):
    """The engine has work, scheduled none of it, and nothing is due that could change this."""


class RealClock:
    def now(self) -> float:
        return time.monotonic()

    def wait_until(self, moment: float) -> None:
        time.sleep(max(0.0, moment - time.monotonic()))


@dataclass(slots=True)
class VirtualClock:
    """Time that moves when a simulated model spends it, and that skips what the engine would have waited."""

    time: float = 0.0

    def now(self) -> float:
        return self.time

    def wait_until(self, moment: float) -> None:
        self.time = max(self.time, moment)


def drive(core: EngineCore, source: Source, clock: DriverClock, sink: Sink) -> None:
    """Step the core until the source ends; raises :class:`StuckError`."""
    for next_due in source:
        result = core.step()
        sink(result)
        if result.computed:
            continue
        moment = _earliest(next_due, result.next_change)
        if moment is not None:
            clock.wait_until(moment)
        elif core.has_work:
            raise StuckError("the engine has work, scheduled none of it and waits for nothing")


def _earliest(*moments: float | None) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)


def abort_all(core: EngineCore, request_ids: Iterable[str], why: str | None = None) -> StepResult:
    """Abort requests and take the step that ends them; ``why`` where it was not asked for."""
    for request_id in request_ids:
        core.abort(request_id, why)
    return core.step()


def arrivals(
    core: EngineCore,
    clock: DriverClock,
    requests: Iterable[Request],
    *,
    aborts: Iterable[tuple[float, str]] = (),
    concurrency: int | None = None,
    until: float = math.inf,
) -> Source:
    """A source of requests that enter at their ``arrival_time`` or soon after. It ends when all of them have ended.

    With ``concurrency`` only so many are in the engine at once, and each counts as arrived when it may enter.
    ``aborts`` are pairs of a time and a request id. After ``until`` the run ends with whatever is unfinished.
    """
    todo = deque(sorted(requests, key=lambda request: request.arrival_time))
    leaving = deque(sorted(aborts))
    while todo or core.has_work:
        now = clock.now()
        if now > until:
            return
        room = len(todo) if concurrency is None else concurrency - len(core.population.by_id)
        while todo and todo[0].arrival_time <= now and room > 0:
            request = todo.popleft()
            core.add_request(request if concurrency is None else msgspec.structs.replace(request, arrival_time=now))
            room -= 1
        while leaving and leaving[0][0] <= now:
            core.abort(leaving.popleft()[1])
        yield _earliest(todo[0].arrival_time if todo and room > 0 else None, leaving[0][0] if leaving else None)


NO_LIMITS = LimitsConfig(max_num_queued_reqs=2**62, max_num_queued_tokens=2**62)
"""For a batch: the caller holds all requests in memory anyway, so a limit on the queue would save nothing."""


@dataclass(slots=True)
class Answer:
    """Tokens of one request and how it ended: one of ``finish`` and ``refusal`` is set.

    ``pooled`` and ``prompt_logprobs`` are what was read of its prompt (:class:`RequestUpdate`).
    """

    request: Request
    token_ids: list[int] = field(default_factory=list)
    finish: Finish | None = None
    refusal: Refusal | None = None
    pooled: bytes | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None


def run_batch(
    core: EngineCore,
    requests: Sequence[Request],
    *,
    concurrency: int | None = None,
    on_finish: Callable[[Answer], None] = lambda answer: None,
) -> list[Answer]:
    """Answer requests in real time on this thread; answers come back in the order of the requests.

    ``concurrency``: see :func:`arrivals`. ``on_finish`` is called with each answer as it is ready.
    """
    answers = {request.request_id: Answer(request) for request in requests}

    def collect(result: StepResult) -> None:
        for update in result.updates:
            answer = answers[update.request_id]
            answer.token_ids.extend(update.token_ids)
            if update.terminal:
                answer.finish, answer.refusal = update.finish, update.refusal
                answer.pooled, answer.prompt_logprobs = update.pooled, update.prompt_logprobs
                on_finish(answer)

    clock = RealClock()
    drive(core, arrivals(core, clock, requests, concurrency=concurrency), clock, collect)
    return list(answers.values())
