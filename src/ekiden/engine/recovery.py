"""What becomes of the requests in flight when an engine ends: each is run again, given up, or refused.

- A request goes on in the next engine with the tokens that its reader has (:class:`~ekiden.state.request.Carried`). It
  is given up when :data:`MAX_FRUITLESS` engines in a row ended without giving anybody a token, or :data:`MAX_TRIES`
  without giving one to this request.
- Which request ends engines is seen from the *places* (:mod:`ekiden.engine.marks`) at which they end. Requests are
  deterministic, so one that ends an engine has computed everything before its place and will end the next one at the
  same place. An end at what an engine has computed before accuses nobody. A request is refused when an engine ends
  for the second time at the place that it has come to, and is at work on nothing else. In company it is watched
  instead: it is run again when all others have got a token, and of all that are watched one at a time. It is refused
  when an engine ends at its place again.

So a request that ends every engine ends two when it is alone and three in company, and its neighbours go on. An engine
that is killed from outside condemns nobody but by a coincidence of places.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ekiden.engine.marks import Place, overlap
from ekiden.state.request import Carried, Finish, FinishReason, Request
from ekiden.state.sequence import PauseReason

MAX_FRUITLESS: Final = 5
MAX_TRIES: Final = 20


@dataclass(slots=True)
class InFlight:
    """A request that an engine has, or the next one shall have."""

    request: Request
    token_ids: list[int] = field(default_factory=list)
    """All tokens that its reader was given."""
    first_token_time: float | None = None
    pauses: dict[PauseReason, str | None] = field(default_factory=dict)
    """Why it is paused, and who asked for that."""
    ended: bool = False
    """It had its terminal update, which its reader may not have taken yet."""
    submitted: bool = False
    """The engine has it. It is held back while another one is watched."""
    ends: int = 0
    """Engines that have ended while they had it."""
    fruitless: int = 0
    """The newest of them that gave nobody a token; ``tries``: that gave it none."""
    tries: int = 0
    watched: bool = False
    passed: int = -1
    """Engines have computed all its tokens before this position."""
    place: Place | None = None
    """Where the newest engine ended that was at work on what none had computed before."""
    run_id: str | None = None
    _counted: int = 0
    """Its tokens at the newest end."""

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def has_moved(self) -> bool:
        """Whether the newest engine has given it a token."""
        return len(self.token_ids) > self._counted

    def end(self, run_id: str | None, place: Place | None, *, any_moved: bool) -> bool:
        """An engine that had it has ended; True when it is the second to end at the place that the request has come
        to."""
        self.ends += 1
        moved, self._counted, self.run_id = self.has_moved, len(self.token_ids), run_id
        if self.token_ids:
            self.passed = max(self.passed, len(self.request.prompt_token_ids) + len(self.token_ids) - 1)
        came_to = place if place is not None and place[1] > self.passed else None
        self.tries = 0 if moved else self.tries + 1
        self.fruitless = 0 if any_moved else self.fruitless + 1
        self.watched = self.watched and not moved
        if came_to is None:
            return False
        before, self.place = self.place, came_to
        self.passed = max(self.passed, came_to[0])
        return before is not None and overlap(before, came_to)

    def carried(self) -> Request:
        """The request for the next engine."""
        if not self.ends:
            return self.request
        # Whole microseconds, as the ledger keeps them.
        first = None if self.first_token_time is None else round(self.first_token_time * 1e6) / 1e6
        brought = Carried(token_ids=tuple(self.token_ids), first_token_time=first, ends=self.ends, run_id=self.run_id)
        return msgspec.structs.replace(self.request, carried=brought)

    def finish(self, reason: FinishReason, now: float, message: str | None = None) -> Finish:
        """Its end where no engine tells it."""
        return Finish(
            reason=reason,
            stop_reason=None,
            num_prompt_tokens=len(self.request.prompt_token_ids),
            num_output_tokens=len(self.token_ids),
            num_cached_tokens=0,
            arrival_time=self.request.arrival_time,
            admitted_time=None,
            first_token_time=self.first_token_time,
            finish_time=now,
            message=message,
            tenant=self.request.tenant,
        )


@dataclass(slots=True)
class Verdict:
    """``refused`` are those that end engines, ``given_up`` those that got nothing from too many."""

    refused: list[InFlight] = field(default_factory=list)
    given_up: list[InFlight] = field(default_factory=list)


def judge(flights: Iterable[InFlight], marks: Mapping[str, Place], run_id: str | None) -> Verdict:
    """Judge the requests of an engine that has ended. ``marks``: what it was at work on, by the requests' ids."""
    verdict = Verdict()
    ran = [flight for flight in flights if flight.submitted]
    moved = any(flight.has_moved for flight in ran)
    for flight in ran:
        watched = flight.watched and not flight.has_moved
        again = flight.end(run_id, marks.get(flight.request_id), any_moved=moved)
        flight.submitted = False
        if again and (watched or len(marks) == 1):
            verdict.refused.append(flight)
        elif flight.fruitless >= MAX_FRUITLESS or flight.tries >= MAX_TRIES:
            verdict.given_up.append(flight)
        else:
            flight.watched = flight.watched or again
    return verdict


def judge_failed_start(flights: Iterable[InFlight]) -> list[InFlight]:
    """An engine has ended before it could take any request; returns those that are given up."""
    waiting = list(flights)
    for flight in waiting:
        flight.fruitless += 1
    return [flight for flight in waiting if flight.fruitless >= MAX_FRUITLESS]


def next_to_run(flights: Sequence[InFlight]) -> list[InFlight]:
    """Those that are to be handed to the engine now: all that are not watched; then, when each that an engine had
    before has got a token, one that is."""
    chosen = [flight for flight in flights if not (flight.submitted or flight.watched)]
    if chosen or any(f.submitted and f.ends and not (f.has_moved or f.pauses) for f in flights):
        return chosen
    return [flight for flight in flights if not flight.submitted][:1]
