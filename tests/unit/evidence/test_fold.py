"""Folding the ledger gives back the engine's state: who waits, who runs, and how many KV blocks each one holds.

Written apart from the recorder and the engine: from the stored rows alone, by the rules of the stages.
"""

import random
from dataclasses import dataclass, field

import pytest

from ekiden.evidence.reader import decisions_of, inputs_of
from ekiden.ledger.records import EventKind, Rows
from tests.simulation.simulator import draw_world
from tests.unit.evidence.recorded import finished

SEEDS = 250


@dataclass(slots=True)
class Row:
    """What is known of one live request."""

    prompt: int
    status: str = "waiting"
    length: int = 0
    computed: int = 0
    blocks: int = 0
    admitted: bool = False


@dataclass(slots=True)
class Fold:
    block_size: int
    live: dict[int, Row] = field(default_factory=dict)
    decodes: list[int] = field(default_factory=list)

    def turn(self, rows: Rows) -> None:
        decisions, failed = decisions_of(rows.turn), inputs_of(rows.turn).failure is not None
        for request in rows.requests:
            if request.refusal is None:
                length = request.prompt_tokens + (request.carried or 0)
                self.live[request.request] = Row(request.prompt_tokens, length=length)
        late = [event for event in rows.events if event.late]
        for event in (event for event in rows.events if not event.late):
            self._event(event.request, EventKind(event.kind), event.value)
        for number, _, blocks, cached, _ in decisions.admitted_start:
            self._admit(number, blocks, cached)
        if decisions.decodes is not None:
            self.decodes = decisions.decodes
        if decisions.budget and not failed:
            self._compute(decisions.prefills)
        for event in late:
            self._event(event.request, EventKind(event.kind), event.value)
        for number, _, blocks, cached, _ in decisions.admitted:
            self._admit(number, blocks, cached)

    def _compute(self, prefills: list[tuple[int, int]]) -> None:
        for number in self.decodes:
            row = self.live[number]
            row.blocks += row.computed >= row.blocks * self.block_size
            row.computed += 1
            row.length += row.computed == row.length
        for number, tokens in prefills:
            row = self.live[number]
            row.computed += tokens
            row.length += row.computed == row.length

    def _admit(self, number: int, blocks: int, cached: int) -> None:
        row = self.live.get(number)
        if row is not None:  # it may have ended in the same turn
            row.status, row.blocks, row.computed, row.admitted = "running", blocks, cached, True

    def _event(self, number: int, kind: EventKind, value: int) -> None:
        row = self.live.get(number)
        if row is None:
            return
        match kind:
            case EventKind.ENDED:
                del self.live[number]
            case EventKind.TOKENS:  # one of them is counted with the decode rows
                row.computed, row.length = row.computed + value - 1, row.length + value - 1
                row.blocks = -(-row.computed // self.block_size)
            case EventKind.PREEMPTED:
                row.status, row.blocks = "preempted", 0
                row.computed = row.computed if value else 0
            case EventKind.RESUMED:
                row.status, row.blocks = "running", -(-row.length // self.block_size)
            case EventKind.PAUSED:
                back = "preempted" if row.admitted else "waiting"
                row.status = "paused" if value else back if row.status == "paused" else row.status

    def count(self, status: str) -> int:
        return sum(row.status == status for row in self.live.values())


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_the_queue_and_the_running_ones_come_back(first: int) -> None:
    for seed in range(first, first + 50):
        simulation = finished(seed)
        fold = Fold(simulation.world.block_size)
        for rows in simulation.kept.turns:
            if not simulation.world.batching.endswith("padded"):
                fold.turn(rows)
                assert fold.count("waiting") == rows.turn.waiting, f"seed {seed}, turn {rows.turn.turn}"
                assert fold.count("running") == rows.turn.running, f"seed {seed}, turn {rows.turn.turn}"
        assert not fold.live, f"seed {seed}: {fold.live}"


def test_the_blocks_come_back() -> None:
    """Without prefix sharing and pauses every block is in one table, so the tables' sizes are the pool's state."""
    preemptions = turns = 0
    for seed in range(3 * SEEDS):
        world = draw_world(random.Random(seed))
        if world.prefix_caching or world.pause_rate or world.batching.endswith("padded"):
            continue
        simulation = finished(seed)
        fold = Fold(world.block_size)
        for rows in simulation.kept.turns:
            fold.turn(rows)
            used = sum(row.blocks for row in fold.live.values())
            assert used == world.num_blocks - rows.turn.free_blocks, f"seed {seed}, turn {rows.turn.turn}"
            preemptions += len(decisions_of(rows.turn).victims)
            turns += 1
    assert preemptions > 20
    assert turns > 1000
