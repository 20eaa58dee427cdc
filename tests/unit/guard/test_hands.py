"""What the guard does to an engine on an event loop, from a thread of its own."""

import asyncio
import time

import pytest

from ekiden.engine.interface import EngineDied
from ekiden.guard.hands import EngineHands, NoAnswer
from ekiden.guard.runtime import Guard
from ekiden.guardrails.rules import Rules
from ekiden.state.controls import ControlChange, ControlState, InvalidControls, SetBy
from tests.api.scripted import ScriptedEngine, make_tokenizer
from tests.unit.guard.desk import CONFIGURED, FakeSense, rule


class Engine(ScriptedEngine):
    """Whose changes of the controls may fail, or get no answer."""

    fault: Exception | None = None
    silent = False

    async def set_controls(self, change: ControlChange) -> ControlState:
        if self.fault is not None:
            raise self.fault
        if self.silent:
            await asyncio.Event().wait()
        return await super().set_controls(change)


def change(**values: int) -> ControlChange:
    return ControlChange(
        values=dict(values), set_by=SetBy.SOFTWARE_RULE, who="guard:x", expires_at=time.monotonic() + 30
    )


async def test_changes_are_made_on_the_loop_and_their_refusals_are_told() -> None:
    engine, loop = Engine(make_tokenizer()), asyncio.get_running_loop()
    hands = EngineHands(engine, lambda: loop, patience=5.0)
    await asyncio.to_thread(hands.apply, change(max_num_seqs=3))
    assert hands.controls().controls.max_num_seqs == 3
    assert hands.run is None
    for fault, told in (
        (InvalidControls("it is 0"), InvalidControls),
        (EngineDied("it is being restarted"), NoAnswer),
    ):
        engine.fault = fault
        with pytest.raises(told, match="it is"):
            await asyncio.to_thread(hands.apply, change(max_num_seqs=4))
    await asyncio.to_thread(hands.restart, "stalled")
    assert engine.commands[-1] == ("restart", "stalled")


async def test_an_engine_that_gives_no_answer_holds_the_guard_up_for_a_moment_only() -> None:
    engine, loop = Engine(make_tokenizer()), asyncio.get_running_loop()
    engine.silent = True
    hands = EngineHands(engine, lambda: loop, patience=0.0)
    with pytest.raises(NoAnswer, match="has not answered in time"):
        await asyncio.to_thread(hands.apply, change(max_num_seqs=3))


def test_a_loop_that_has_been_closed_is_no_answer() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    hands = EngineHands(Engine(make_tokenizer()), lambda: loop)
    with pytest.raises(NoAnswer):
        hands.apply(change(max_num_seqs=3))
    hands.restart("nobody is left")


async def test_its_threads_begin_and_end() -> None:
    engine, loop = Engine(make_tokenizer()), asyncio.get_running_loop()
    rules = Rules(rules=(rule("slow", "page"),))
    guard = Guard(rules, EngineHands(engine, lambda: loop), FakeSense(), mode="act", configured=CONFIGURED, channels=[])
    guard.stop()
    guard.start()
    assert guard._thread is not None
    await asyncio.to_thread(guard.stop)
    assert not guard._thread.is_alive()
