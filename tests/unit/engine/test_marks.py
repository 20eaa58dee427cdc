"""The marks name, at every step, the requests that the step computes and their positions."""

from ctypes import c_uint64
from multiprocessing import get_context

import pytest

from ekiden.build.core import build_core
from ekiden.engine.loop import EngineLoop, Stop, Submit
from ekiden.engine.marks import TAKEN_IN, Marks, Place, is_busy, marked
from ekiden.engine.spawn import NUM_WORDS, Words
from ekiden.stages.intake import Intake
from ekiden.state.request import Request
from ekiden.state.turn import FormationOutcome
from tests.simulation.simulator import Simulation
from tests.unit.engine.fake_parts import make_config, make_fake_parts, make_request


def new_words() -> Words:
    return get_context("spawn").RawArray(c_uint64, NUM_WORDS)


class Watched(Simulation):
    """Compares the marks with the plan at each step of a simulated world: drafts, preemptions, padding, pauses."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.words, self.kept = new_words(), 0
        self.marks = Marks(self.words)
        self.core.before_step = self._mark

    def _mark(self, formed: FormationOutcome) -> None:
        before = self.words[1]
        self.marks.step(formed)
        self.kept += self.words[1] > before
        rows = zip(formed.sequences, formed.plan.rows, strict=True)
        wanted = {sequence.request_id: (row.start, row.end) for sequence, row in rows}
        assert marked(self.words, self.requests) == wanted


def test_the_marks_are_the_plan_in_every_simulated_world() -> None:
    kept = steps = 0
    for seed in range(40):
        world = Watched(seed)
        world.run()
        kept, steps = kept + world.kept, steps + world.outcome.steps
    assert kept > steps / 5, "most of a busy engine's marks follow from those before"


def test_requests_are_marked_from_their_coming_until_intake_has_judged_them(monkeypatch: pytest.MonkeyPatch) -> None:
    words = new_words()
    config = make_config()
    seen: list[dict[str, Place]] = []
    requests = [make_request(name, max_tokens=3) for name in ("a", "b")]
    names = [request.request_id for request in requests]
    core = build_core(make_fake_parts(config), config)
    loop = EngineLoop(
        core,
        lambda updates, stats: seen.append(marked(words, names)),
        answer=lambda number, answer: None,
        marks=Marks(words),
    )
    accept = Intake.accept

    def noted(intake: Intake, request: Request, now: float) -> object:
        seen.append(marked(words, names))
        return accept(intake, request, now)

    monkeypatch.setattr(Intake, "accept", noted)
    for request in requests:
        loop.send(Submit(request))
    loop.send(Stop(60.0))
    loop.run()
    assert seen[:2] == [{"a": TAKEN_IN, "b": TAKEN_IN}] * 2
    assert all(TAKEN_IN not in each.values() for each in seen[2:])
    assert any(set(each.values()) == {(3, 4)} for each in seen), "both decode their second token"


def test_an_engine_that_has_nothing_to_compute_is_at_work_on_nothing() -> None:
    words = new_words()
    marks = Marks(words)
    world = Simulation(3)
    world.core.before_step = marks.step
    world.run()
    assert is_busy(words)
    marks.idle()
    assert not is_busy(words)
    assert marked(words, world.requests) == {}


def test_more_requests_than_there_is_room_for_are_left_out() -> None:
    words = new_words()
    marks = Marks(words)
    names = [f"r{number}" for number in range(3000)]
    for name in names:
        marks.enter(name)
    assert 0 < len(marked(words, names)) < 3000
    marks.entering(names[:5])
    assert marked(words, names) == dict.fromkeys(names[:5], TAKEN_IN)
