"""Streams that outlive engines: what becomes of the requests in flight when an engine has ended.

An engine is given a request once, and again after its predecessor's end, with the tokens that its reader has. While
there is no engine, or it is kept from one, a request is aborted and meets its deadline here.
"""

import asyncio
import logging
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping

from ekiden.engine.generations import Generations
from ekiden.engine.interface import EndsEngine, EngineDied, EngineStats
from ekiden.engine.loop import Abort, Command, Submit
from ekiden.engine.marks import marked
from ekiden.engine.recovery import MAX_FRUITLESS, InFlight, judge, judge_failed_start, next_to_run
from ekiden.engine.spawn import Words
from ekiden.engine.streaming import StreamingEngine
from ekiden.engine.streams import Stream
from ekiden.ledger.dead_ends import DeadEnd
from ekiden.ledger.records import ENGINE_ENDED, REFUSED
from ekiden.state.controls import Controls
from ekiden.state.request import FinishReason, RequestUpdate
from ekiden.state.turn import Pause

logger = logging.getLogger(__name__)

NEWEST_ENDS = 1024
"""Requests that ended lately, of which an engine that dies may have told us and not its ledger."""


class LastingStreams(StreamingEngine):
    """A streaming engine behind which one engine may take the place of another."""

    def __init__(self, configured: Controls, tenants: Mapping[str, object]) -> None:
        super().__init__(configured)
        self._totals = Generations(tenants)
        self._aborting: dict[str, tuple[InFlight, str | None]] = {}
        """Requests whose end was asked for and that the engine has not ended yet, and why."""
        self._newest_ends: deque[tuple[InFlight, RequestUpdate]] = deque(maxlen=NEWEST_ENDS)
        """Which the ledger of an engine that dies may lack."""
        self._holds_back = False
        """Whether requests wait until another one is no longer watched."""

    @property
    def restarts(self) -> int:
        return self._totals.restarts

    def stats(self) -> EngineStats:
        return self._totals.stats()

    @property
    def _has_work(self) -> bool:
        return any(not stream.flight.ended for stream in self._streams.values())

    def _send(self, command: Command) -> None:
        if isinstance(command, Abort) and (stream := self._streams.get(command.request_id)) is not None:
            if not stream.flight.submitted:
                self._end(stream, FinishReason.ABORT, command.why)
                return
            self._aborting[command.request_id] = stream.flight, command.why
        self._put(command)

    @abstractmethod
    def _put(self, command: Command) -> None:
        """Puts a command into the inbox of the engine that there is, if there is one."""

    def _take_step(self, updates: list[RequestUpdate], stats: EngineStats | None) -> None:
        streams, tokens = self._streams, 0
        for update in updates:
            tokens += len(update.token_ids)
            stream = streams.get(update.request_id)
            if update.terminal:
                aborted = self._aborting.pop(update.request_id, None)
                flight = stream.flight if stream is not None else aborted[0] if aborted is not None else None
                if flight is not None:
                    self._totals.saw_end(flight.request, update)
                    self._newest_ends.append((flight, update))
            if stream is not None:  # it may have been closed meanwhile
                stream.put(update)
        self._totals.saw(tokens)
        if stats is not None:
            self._totals.report(stats)
        if self._holds_back:
            self._run_waiting()

    def _in_flight(self) -> list[InFlight]:
        return [stream.flight for stream in self._streams.values() if not stream.flight.ended]

    def _run_waiting(self) -> None:
        """Hand the engine the requests that it shall go on with."""
        flights = self._in_flight()
        for flight in next_to_run(flights):
            self._totals.carried_over += 1
            flight.submitted = True
            self._send(Submit(flight.carried()))
            for reason, by in flight.pauses.items():
                self._send(Pause(flight.request_id, reason, True, by))
        self._holds_back = not all(flight.submitted for flight in flights)

    def _judge(self, words: Words, run_id: str | None, failure: str) -> dict[str, DeadEnd]:
        """An engine has ended. Decide what becomes of the requests in flight, and return how each left it.

        ``words``: its marks. Clients are not told the ``failure``, which is for the log and the ledger.
        """
        ends = {flight.request_id: _dead_end(flight, update) for flight, update in self._newest_ends}
        self._newest_ends.clear()
        for request_id, (flight, why) in self._aborting.items():
            ends[request_id] = DeadEnd(FinishReason.ABORT, why, flight.token_ids, flight.first_token_time)
            if stream := self._streams.get(request_id):
                self._end(stream, FinishReason.ABORT, why)
            else:
                self._totals.count_end(flight.request, _ended(flight, FinishReason.ABORT, why))
        self._aborting.clear()
        flights = self._in_flight()
        verdict = judge(flights, marked(words, [flight.request_id for flight in flights]), run_id)
        self._totals.condemned += len(verdict.refused)
        self._fail(verdict.refused, EndsEngine("the engine has ended each time it was at this request"), failure)
        text = "engine after engine has ended before it gave this request a token"
        self._fail(verdict.given_up, EngineDied(text), failure)
        waiting = self._in_flight()
        logger.warning(
            "%s; %d requests go on in the next engine, %d are refused because engines end at them, %d are given up",
            failure, len(waiting), len(verdict.refused), len(verdict.given_up),
        )  # fmt: skip
        for flight in waiting:
            if (deadline := flight.request.deadline) is not None:
                asyncio.get_running_loop().call_at(deadline, self._expire, flight.request_id)
        for flight in flights:
            reason = ENGINE_ENDED if flight.request_id in self._streams else FinishReason.ERROR
            ends[flight.request_id] = DeadEnd(reason, failure, tuple(flight.token_ids), flight.first_token_time)
        return ends

    def _judge_failed_start(self, failure: str, *, permanent: bool) -> None:
        """An engine has ended before it could take a request. ``permanent``: no other one can start either."""
        flights = self._in_flight()
        given_up = flights if permanent else judge_failed_start(flights)
        if given_up:
            logger.error("no engine starts again: %s; %d requests are given up", failure, len(given_up))
        why = "no engine can start again" if permanent else f"{MAX_FRUITLESS} engines in a row ended or did not start"
        self._fail(given_up, EngineDied(f"the engine ended while this request was in flight, and {why}"), failure)

    def _expire(self, request_id: str) -> None:
        """A deadline has passed. An engine that has the request ends it itself."""
        stream = self._streams.get(request_id)
        if stream is not None and not stream.flight.submitted and not stream.flight.ended:
            self._end(stream, FinishReason.DEADLINE, "the request's deadline has passed")

    def _end(self, stream: Stream, reason: FinishReason, message: str | None = None) -> None:
        """End a request that no engine has."""
        if not stream.flight.ended:
            update = _ended(stream.flight, reason, message)
            self._totals.count_end(stream.flight.request, update)
            stream.put(update)

    def _fail(self, flights: list[InFlight], error: EngineDied, failure: str) -> None:
        """No engine goes on with these."""
        for flight in flights:
            self._totals.count_end(flight.request, _ended(flight, FinishReason.ERROR, failure))
            self._streams.pop(flight.request_id).fail(error)

    def _fail_all(self, message: str) -> None:
        self._fail(self._in_flight(), EngineDied(message), message)
        super()._fail_all(message)


def _dead_end(flight: InFlight, update: RequestUpdate) -> DeadEnd:
    """An end of which the engine could tell us."""
    finish = update.finish
    reason, message = (REFUSED, None) if finish is None else (finish.reason.value, finish.message)
    return DeadEnd(reason, message, flight.token_ids, flight.first_token_time)


def _ended(flight: InFlight, reason: FinishReason, message: str | None = None) -> RequestUpdate:
    return RequestUpdate(flight.request_id, (), flight.finish(reason, time.monotonic(), message))
