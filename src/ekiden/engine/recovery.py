"""What becomes of the requests in flight when an engine ends: each is run again, given up, or refused.

- A request goes on in the next engine with the tokens that its reader has (:class:`~ekiden.state.request.Carried`). It
  is given up when :data:`MAX_FRUITLESS` engines in a row ended without giving it a token.
- Which request ends engines is seen from the *places* (:mod:`ekiden.engine.marks`) at which they end. Requests are
  deterministic, so one that ends an engine does so at the same place again. Others are in the step by chance, and
  rarely twice at the same place. A request is refused when an engine ends at a place of it for the second time and the
  engine was at work on nothing else. In company it is watched instead: of all watched requests only one at a time is
  run, beside those that are not suspected, until it has got a token. It is refused when an engine ends at its place
  again meanwhile.

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
"""So many engines may end one after another without giving a request a token; then it is given up."""


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
    """Engines that have ended while they had it; ``fruitless`` of them after its newest token."""
    fruitless: int = 0
    watched: bool = False
    places: list[Place] = field(default_factory=list)
    """Where it was when these engines ended, where they were at work on it."""
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

    def end(self, run_id: str | None, place: Place | None) -> bool:
        """An engine that had it has ended; True when one had ended at this place before."""
        self.ends += 1
        self.fruitless = 1 if self.has_moved else self.fruitless + 1
        if self.has_moved:
            self.watched = False
        self._counted, self.run_id = len(self.token_ids), run_id
        again = place is not None and any(overlap(place, earlier) for earlier in self.places)
        if place is not None:
            self.places.append(place)
        return again

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
    for flight in flights:
        if not flight.submitted:
            continue
        watched = flight.watched and not flight.has_moved
        again = flight.end(run_id, marks.get(flight.request_id))
        flight.submitted = False
        if again and (watched or len(marks) == 1):
            verdict.refused.append(flight)
        elif flight.fruitless >= MAX_FRUITLESS:
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
    """Those that are to be handed to the engine now: all that are not watched, and one that is."""
    waiting = [flight for flight in flights if not flight.submitted]
    busy = any(flight.watched and flight.submitted and not flight.has_moved for flight in flights)
    chosen = []
    for flight in waiting:
        if not flight.watched:
            chosen.append(flight)
        elif not busy:
            busy = True
            chosen.append(flight)
    return chosen
