"""The running guard: it looks at the ledger about once a second, steps its rules' ladder, and acts on the engine.

Rules:
- What is decided is in the file (:mod:`ekiden.guard.kept`) before anything is done, and then in the ledger, by a change
  of the controls. While the engine cannot be asked, decisions wait for the next one. So none is lost.
- It never harms serving. It runs on a thread of its own, and looks less often rather than take more than
  :data:`MOST_SHARE` of the machine. What goes wrong in a look is counted, told by ``/metrics`` and ``/ready``, and
  tried again. While looks fail nothing is renewed, so what was in force expires.
- With ``watch`` everything is done but changing the engine: what would have been done is recorded and paged.
- What persons do to it is in :mod:`ekiden.guard.people`.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from ekiden.guard.approvals import opened, withdrawn
from ekiden.guard.files import StateFile
from ekiden.guard.hands import Hands
from ekiden.guard.holding import raised, values_by_rule
from ekiden.guard.kept import ACKNOWLEDGE, GUARD, Decision, Kept
from ekiden.guard.new_rules import take_up
from ekiden.guard.paging import Channel, Page, Pager, WaitingPage, told_of
from ekiden.guard.senses import Sense
from ekiden.guard.settling import Settling
from ekiden.guardrails.actions import Surroundings
from ekiden.guardrails.force import held_after
from ekiden.guardrails.ladder import RuleState, Step, in_words, step, waits_for_person
from ekiden.guardrails.readings import Reading
from ekiden.guardrails.rules import Rules, RulesError
from ekiden.state.controls import Controls

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0
MAX_POLL_SECONDS: Final = 4.0
"""Under the ladder's ``STALE_SECONDS``, or no rule would ever fire."""
MOST_SHARE: Final = 0.005
"""Of the machine's processors, and never more than of four: it shares an interpreter with the HTTP side. A look that
takes longer is followed by a longer pause, up to ``MAX_POLL_SECONDS``."""
QUIET_SECONDS: Final = 60.0
_HELD_AFTER_PAUSE: Final = 2.0


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Guard:
    """``mode``: off, watch or act. ``configured``: the controls that the server was started with.

    ``clock`` gives Unix time, ``engine_clock`` the engine's, ``cpu`` the seconds that this thread has computed.
    ``stop_server`` asks the server to end in order. ``server`` names it to those who are paged.
    """

    def __init__(
        self,
        rules: Rules,
        hands: Hands,
        sense: Sense,
        *,
        mode: str,
        configured: Controls,
        block_size: int = 32,
        file: StateFile[Kept] | None = None,
        channels: Sequence[Channel] = (),
        two_person: bool = False,
        server: str = "",
        stop_server: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
        engine_clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self.mode, self.two_person, self.configured = mode, two_person, configured
        self.rules = rules if mode != "off" else msgspec.structs.replace(rules, rules=())
        self.hands, self._sense = hands, sense
        self.around = Surroundings(objectives=rules.objectives, known_good=configured, block_size=block_size)
        self._file = file or StateFile(None, Kept)
        self._server, self._stop_server = server, stop_server
        self.clock, self.engine_clock, self._cpu = clock, engine_clock, cpu
        self.lock = threading.Lock()
        """Held by whoever reads or changes what follows."""
        self.kept = self._file.load()
        stored = self.kept.ladder
        self.kept.ladder = {rule.name: stored.get(rule.name, RuleState()) for rule in self.rules.rules}
        self.kept.held = {name: rungs for name, rungs in self.kept.held.items() if name in self.kept.ladder}
        self.readings: Mapping[str, Reading] = {}
        self._settling = Settling(
            self.kept, hands, acts=mode == "act", words=lambda: self.words, clock=clock, engine_clock=engine_clock
        )
        self._outcomes: deque[tuple[WaitingPage, str | None]] = deque()
        self._saved = self._mark()
        self._told_at = -float("inf")
        self.pager = Pager(channels, clock, lambda page, error: self._outcomes.append((page, error)))
        self.pager.take_up(self.kept.pages)
        self.failure = ""
        """Why the newest look failed; empty when it did not."""
        self.looks_total = self.steps_total = self.failures_total = 0
        self.seconds_total = 0.0
        self._cores = cores()
        self.pause_seconds = POLL_SECONDS
        """Until the next look."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    # --- its thread

    def start(self) -> None:
        self.pager.start()
        self._thread = threading.Thread(target=self._run, name="ekiden-guard", daemon=True)
        self._thread.start()

    def stop(self, seconds: float = 1.0) -> None:
        """Harmless when it was never started. What is in force expires with the engine, or in half a minute."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(seconds)
        self.pager.stop(seconds)
        if self.lock.acquire(timeout=seconds):  # else it waits for an engine, and has saved what it decided
            try:
                self._save()
                self._sense.close()
            finally:
                self.lock.release()

    def _run(self) -> None:
        while not self._stopping.wait(self.pause_seconds):
            self.look()

    @property
    def state(self) -> str:
        """In one word, for probes: off, ok, paused or failing."""
        if self.mode == "off":
            return "off"
        return "failing" if self.failure else "paused" if self.kept.paused else "ok"

    @property
    def rungs(self) -> int:
        """How many rungs are in force, over all rules."""
        return sum(state.rung for state in self.kept.ladder.values())

    def look(self) -> None:
        """Look once. Never raises: what goes wrong is kept in :attr:`failure`."""
        started = self._cpu()
        with self.lock:
            try:
                self._look(self.clock())
                self.failure = ""
            except Exception as error:  # noqa: BLE001 - a fault of the guard must not end the server
                self.failures_total += 1
                self.failure = f"{type(error).__name__}: {error}"
                self._complain(f"the guard could not look: {self.failure}")
        took = self._cpu() - started
        self.looks_total += 1
        self.seconds_total += took
        self.pause_seconds = min(MAX_POLL_SECONDS, max(POLL_SECONDS, took / (MOST_SHARE * min(self._cores, 4))))

    def _complain(self, message: str) -> None:
        if time.monotonic() - self._told_at >= QUIET_SECONDS:
            self._told_at = time.monotonic()
            logger.error("%s", message)

    def tell(self, what: str, why: str, *, who: str) -> None:
        """Keep and record what concerns those who look after the server. May wait for the engine."""
        with self.lock:
            self.kept.note(at=self.clock(), what=what, why=why, who=who)
            self._settle()

    def reread(self, read: Callable[[], Rules], who: str) -> None:
        """Go on under the rules that ``read`` gives; where it raises :class:`RulesError`, under those there are. Either
        is recorded as asked for by ``who``."""
        if self.mode == "off":
            return
        try:
            rules = read()
        except RulesError as error:
            logger.error("the guard's rules stay as they were: %s", error)
            self.tell("the rules stay as they were", str(error), who=who)
            return
        with self.lock:
            now = self.clock()
            told = take_up(self.kept, self.rules, rules, now)
            self.rules, self.around = rules, self.around._replace(objectives=rules.objectives)
            self.kept.note(at=now, what="the rules were read again", why=told, who=who)
            logger.info("the guard's rules were read again: %s", told)
            self.decide(now)

    def reconfigure(self, configured: Controls) -> None:
        """The controls are configured otherwise since the server's start."""
        with self.lock:
            self.configured, self.around = configured, self.around._replace(known_good=configured)

    # --- one look; the lock is held

    def _look(self, now: float) -> None:
        kept = self.kept
        kept.expire(now)
        while self._outcomes:
            page, error = self._outcomes.popleft()
            kept.note(at=now, what="page", why=told_of(page, error), who=GUARD, rule=page.page.rule)
        if kept.paused is not None and kept.paused.until is not None and kept.paused.until <= now:
            kept.note(at=now, what="resumed", why=f"the pause of {kept.paused.who} is over", who=GUARD)
            kept.paused = None
        self.readings = self._sense.readings(self.hands.run, self.engine_clock(), self.rules.objectives) or {}
        self.decide(now)

    def decide(self, now: float) -> None:
        """Step the ladder on the newest readings, and act. Also called when a person has changed something."""
        outside = self._step(now)
        self._settle()
        for action, why in outside:
            if self.mode == "act":
                self._outside(action, why)

    def _step(self, now: float) -> list[tuple[str, str]]:
        """Step every rule's ladder; returns the actions outside the controls that are to be done, and why."""
        kept, outside = self.kept, list[tuple[str, str]]()
        if kept.paused is not None:
            until = now + _HELD_AFTER_PAUSE
            for name, state in kept.ladder.items():
                if (state.overridden_until or 0.0) < until:
                    who = kept.paused.who
                    kept.ladder[name] = msgspec.structs.replace(state, overridden_until=until, overridden_by=who)
        kept.ladder, steps = step(self.rules, kept.ladder, self.readings, now)
        controls = self.hands.controls().controls
        for values in values_by_rule(kept.held, kept.given_up).values():  # also where no engine has answered yet
            controls = msgspec.structs.replace(controls, **values)
        for taken in steps:
            controls = self._take(taken, controls)
            outside += [(action, f"{taken.rule}: {taken.why}") for action in taken.actions if taken.up]
        for rule in self.rules.rules:
            self._ask_for_acknowledgement(rule.name, rule.owner, now)
        return outside

    def _take(self, taken: Step, controls: Controls) -> Controls:
        """One step of one rule; returns the controls as they will be after it."""
        kept, rule = self.kept, taken.rule
        kept.held = held_after(kept.held, taken, controls, self.around)
        if not taken.after:
            del kept.held[rule]
            kept.given_up.pop(rule, None)
        elif taken.up:
            kept.held = raised(kept.held, rule)
            for values in kept.held[rule][taken.before :]:
                controls = msgspec.structs.replace(controls, **values)
        self.steps_total += 1
        verb = "raised" if taken.up else "lowered"
        what = f"{verb} from rung {taken.before} to {taken.after} ({', '.join(taken.actions)})"
        if self.mode == "watch":
            what = f"would have {what}"
        decision = kept.note(at=taken.at, what=what, why=taken.why, who=GUARD, rule=rule)
        logger.warning("guard: %s %s: %s", rule, what, taken.why)
        for action in taken.actions:
            if taken.up and action in ("page", "require_acknowledgement", "drain", "stop"):
                self._page(taken, action, decision)
        return controls

    def _page(self, taken: Step, action: str, decision: Decision) -> None:
        if not self.pager.channels:
            return
        links = {"state": "/admin/guard", "acknowledge": "POST /admin/guard", "runbook": "ekiden guard status"}
        self.pager.put(
            Page(
                key=f"{int(taken.at)}-{decision.number}-{action}",
                rule=taken.rule,
                owner=taken.owner,
                evidence=taken.why,
                action=f"{action} ({self.mode})",
                at=taken.at,
                server=self._server,
                links=links,
            )
        )

    def _ask_for_acknowledgement(self, rule: str, owner: str, now: float) -> None:
        kept, state = self.kept, self.kept.ladder[rule]
        waits = waits_for_person(self.rules.named(rule), state)
        there = kept.approvals.open_for(ACKNOWLEDGE, rule)
        if waits and there is None:
            kept.approvals, asked = opened(
                kept.approvals, kind=ACKNOWLEDGE, subject=rule, asked_by=GUARD, at=now,
                why=state.evidence.evidence if state.evidence else "", needed=1 + self.two_person, person=False,
            )  # fmt: skip
            kept.note(
                at=now, what="asks for acknowledgement", why=f"approval {asked.id} of {owner}", who=GUARD, rule=rule
            )
        elif there is not None and not waits:
            kept.approvals = withdrawn(kept.approvals, ACKNOWLEDGE, rule)

    def _outside(self, action: str, why: str) -> None:
        """What no control does. Pages have been put on their way already."""
        match action:
            case "restart":
                self.hands.restart(why)
            case "stop":
                self._stop_server()

    # --- what is decided comes into force, and into the ledger

    def _settle(self) -> None:
        """Keep what was decided, then put it in force and record it, as far as the engine answers."""
        self._settling.give_way()
        self._save()
        self._settling.settle()
        self._save()

    @property
    def words(self) -> str:
        """The rungs in force, for people."""
        told = in_words(self.rules, self.kept.ladder)
        if self.kept.paused is not None:
            told = f"paused by {self.kept.paused.who}" + (f"; {told}" if told else "")
        return f"watching only; {told}" if told and self.mode == "watch" else told

    def _save(self) -> None:
        """Only where something has changed that must outlive the process."""
        self.kept.pages = self.pager.waiting()
        if (mark := self._mark()) == self._saved:
            return
        try:
            self._file.save(self.kept)
            self._saved = mark
        except OSError as error:
            self._complain(f"what the guard decides cannot be kept over a restart: {error}")

    def _mark(self) -> tuple[int, int, int]:
        """Differs when something has changed that must be kept."""
        kept = self.kept
        return kept.numbered, len(kept.unrecorded), sum(1 + page.tries for page in kept.pages)
