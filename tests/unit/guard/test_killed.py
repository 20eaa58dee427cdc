"""A process that is killed at any moment: between any two things that the guard does outside itself it ends, and
another one goes on from the file. No decision that was kept is missing in the ledgers."""

import re
from pathlib import Path

import pytest

from ekiden.guard.files import StateFile
from ekiden.guard.kept import Kept
from ekiden.state.controls import ControlChange
from tests.unit.guard.desk import Clock, Desk, FakeHands, rule


class Killed(BaseException):
    """SIGKILL, as far as the code can tell."""


class Fate:
    """Ends the process before its ``at``-th act outside itself."""

    def __init__(self, at: int) -> None:
        self.left = at

    def act(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed


class MortalHands(FakeHands):
    fate: Fate

    def apply(self, change: ControlChange) -> None:
        self.fate.act()
        super().apply(change)


class MortalFile(StateFile[Kept]):
    fate: Fate
    kept_steps: set[str]

    def save(self, value: Kept) -> None:
        self.fate.act()
        super().save(value)
        self.kept_steps |= {f"{each.at:.0f} {each.what}" for each in value.decisions if "rung" in each.what}


def mortal(desk: Desk, path: Path, fate: Fate, kept_steps: set[str]) -> MortalHands:
    hands, file = MortalHands(desk.clock), MortalFile(path, Kept)
    hands.fate = file.fate = fate
    file.kept_steps = kept_steps
    desk.hands = hands
    desk.guard.hands = desk.guard._settling.hands = hands
    desk.guard._file = file
    return hands


def life(desk: Desk) -> None:
    """Harm, an override, harm again, an acknowledgement, peace."""
    desk.looks(12, itl_p99=0.5)
    desk.people.override("slow", 10.0, "anna", "a try")
    desk.looks(25, itl_p99=0.5)
    desk.people.acknowledge("slow", "bert", "seen")
    desk.looks(60, itl_p99=0.0)


def steps_told(hands: MortalHands) -> set[str]:
    found = set()
    for change in hands.recorded:
        if match := re.match(r"((?:raised|lowered) from rung \d to \d \([^)]*\))", change.why):
            found.add(match[1])
    return found


@pytest.mark.parametrize("two_kills", [False, True])
def test_no_kept_decision_is_missing_in_the_ledgers(tmp_path: Path, two_kills: bool) -> None:
    rules = (rule("slow", "shrink_batch", "shrink_batch", "require_acknowledgement"),)
    kills = 0
    for at in range(1000):
        path, clock, kept_steps = tmp_path / f"{at}.json", Clock(), set[str]()
        lives: list[MortalHands] = []
        fates = [Fate(at), Fate(3), Fate(10**9)] if two_kills else [Fate(at), Fate(10**9)]
        for fate in fates:
            desk = Desk(*rules, clock=clock, path=path)
            lives.append(mortal(desk, path, fate, kept_steps))
            try:
                life(desk) if len(lives) == 1 else desk.looks(80, itl_p99=0.5 if len(lives) < len(fates) else 0.0)
                break
            except Killed:
                kills += 1
                clock.now += 5.0
        told = set().union(*map(steps_told, lives))
        assert {each.split(" ", 1)[1] for each in kept_steps} <= told, at
        assert desk.guard.kept.unrecorded == []
        if desk.rung("slow") == 0:
            assert desk.now.max_num_seqs == 64
        if len(lives) == 1:
            break
    assert kills >= 10
    assert at < 999
