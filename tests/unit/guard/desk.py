"""A guard over engine controls in memory, with a clock that tests set and readings that they choose."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ekiden.config import Config, controls_of
from ekiden.guard.files import StateFile
from ekiden.guard.hands import NoAnswer
from ekiden.guard.kept import Kept
from ekiden.guard.paging import Page, PageFailed
from ekiden.guard.people import People
from ekiden.guard.policy import check
from ekiden.guard.runtime import Guard
from ekiden.guardrails.readings import Objectives, Reading
from ekiden.guardrails.rules import Rule, Rules
from ekiden.state.controls import ControlChange, ControlsInForce, ControlState, SetBy

BOOT = 1_700_000_000.0
"""Unix time at the engine clock's zero."""
CONFIGURED = controls_of(Config())


@dataclass
class Clock:
    now: float = 100.0
    """On the engine's clock."""

    def unix(self) -> float:
        return BOOT + self.now


@dataclass
class FakeHands:
    """An engine's controls, without an engine."""

    clock: Clock
    dead: bool = False
    recorded: list[ControlChange] = field(default_factory=list)
    restarts: list[str] = field(default_factory=list)
    run: Path | None = None

    def __post_init__(self) -> None:
        self.in_force = ControlsInForce(CONFIGURED, lambda controls: check({}, controls, 32))

    def controls(self) -> ControlState:
        self.in_force.expire(self.clock.now)
        return self.in_force.state

    def apply(self, change: ControlChange) -> None:
        if self.dead:
            raise NoAnswer("the engine is being restarted")
        self.in_force.expire(self.clock.now)
        self.in_force.apply(change, self.clock.now)
        self.recorded.append(change)

    def restart(self, why: str) -> None:
        self.restarts.append(why)

    def person_sets(self, seconds: float | None = None, **values: Any) -> None:
        expires = None if seconds is None else self.clock.now + seconds
        self.in_force.apply(
            ControlChange(values=values, set_by=SetBy.PERSON, who="anna", expires_at=expires), self.clock.now
        )


@dataclass
class FakeSense:
    values: dict[str, float | None] = field(default_factory=dict)
    faults: list[Exception] = field(default_factory=list)
    objectives: Objectives | None = None
    """Those of the newest look."""

    def readings(self, run: Path | None, now: float, objectives: Objectives) -> dict[str, Reading] | None:
        self.objectives = objectives
        if self.faults:
            raise self.faults.pop(0)
        return {name: Reading(value=value, evidence=f"seen {value}") for name, value in self.values.items()}

    def close(self) -> None:
        return


@dataclass
class FakeChannel:
    """Takes pages, but fails as often as ``failing`` says."""

    name: str = "webhook"
    failing: int = 0
    taken: list[Page] = field(default_factory=list)
    tries: int = 0

    def send(self, page: Page) -> None:
        self.tries += 1
        if self.failing:
            self.failing -= 1
            raise PageFailed("the webhook answered 500")
        self.taken.append(page)


def rule(name: str, *actions: str, signal: str = "itl_p99", **more: Any) -> Rule:
    given = {
        "name": name, "signal": signal, "threshold": 0.2, "clear_threshold": 0.1, "for_seconds": 2.0,
        "actions": actions, "step_seconds": 5.0, "cooldown_seconds": 5.0, "owner": "on-call",
    }  # fmt: skip
    return Rule(**{**given, **more})


class Desk:
    """The guard, its engine, its pager's receiver and the persons."""

    def __init__(
        self,
        *rules: Rule,
        mode: str = "act",
        two_person: bool = False,
        path: Path | None = None,
        clock: Clock | None = None,
        failing: int = 0,
    ) -> None:
        self.clock = clock or Clock()
        self.hands, self.sense, self.channel = FakeHands(self.clock), FakeSense(), FakeChannel(failing=failing)
        self.stops = 0
        self.guard = Guard(
            Rules(rules=rules), self.hands, self.sense, mode=mode, configured=CONFIGURED, two_person=two_person,
            file=StateFile(path, Kept), channels=[self.channel], clock=self.clock.unix,
            engine_clock=lambda: self.clock.now, cpu=lambda: 0.0, stop_server=self._stop,
        )  # fmt: skip
        self.people = People(self.guard)

    def _stop(self) -> None:
        self.stops += 1

    def looks(self, seconds: float, **signals: float | None) -> None:
        """Look once a second for so long, with these readings."""
        self.sense.values = signals or self.sense.values
        for _ in range(round(seconds)):
            self.clock.now += 1.0
            self.guard.look()
            assert not self.guard.failure, self.guard.failure
            self.guard.pager.work()

    @property
    def now(self) -> Any:
        """The controls in force."""
        return self.hands.controls().controls

    def rung(self, name: str) -> int:
        return self.guard.kept.ladder[name].rung

    @property
    def told(self) -> list[str]:
        """What the ledger has of the guard: who and why, in order."""
        return [f"{change.who} {change.why}" for change in self.hands.recorded]
