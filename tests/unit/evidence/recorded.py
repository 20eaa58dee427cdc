"""Runs of the simulation with the production recorder, for tests of everything that reads a ledger."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import msgspec

from ekiden.build.recording import make_header
from ekiden.config import Config, controls_of
from ekiden.engine.interface import ModelCard
from ekiden.engine.parts import EngineParts
from ekiden.ledger.recorder import Recorder
from ekiden.ledger.records import Rows, RunHeader
from ekiden.ledger.store import LedgerWriter
from ekiden.state.runner import ModelRunner
from ekiden.state.turn import Turn
from tests.simulation.simulator import Simulation


@dataclass(slots=True)
class Kept:
    """A sink in memory."""

    turns: list[Rows] = field(default_factory=list)

    def put(self, rows: Rows) -> None:
        self.turns.append(rows)


def header_of(config: Config, runner: ModelRunner, run_id: str, *, has_grammars: bool = False) -> RunHeader:
    """The header of a run of a model without a name, whose end token is 0."""
    info = runner.info
    card = ModelCard(
        model_id="",
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        block_size=info.block_size,
        num_blocks=info.num_blocks,
        created=0,
        fingerprint="",
    )
    header = make_header(config, EngineParts(runner=runner, card=card), run_id=run_id, clock_base=0)
    return msgspec.structs.replace(header, eos_token_ids=[0], has_grammars=has_grammars)


class RecordedSimulation(Simulation):
    """A simulated world whose engine is recorded."""

    def __init__(self, seed: int, change_rate: float = 0.0) -> None:
        super().__init__(seed, change_rate=change_rate)
        self.header = header_of(self.config, self.runner, f"seed-{seed}", has_grammars=True)
        self.kept = Kept()
        self.recorder = Recorder(
            self.kept.put,
            clock_base=0,
            block_size=self.world.block_size,
            prefix_caching=self.world.prefix_caching,
            controls=controls_of(self.config),
        )

    def record(self, turn: Turn) -> None:
        super().record(turn)
        self.recorder.record(turn)

    def _clock(self) -> float:
        return round(super()._clock() * 1e6) / 1e6


@cache
def finished(seed: int) -> RecordedSimulation:
    """The world of ``seed`` at its end, run once for all tests that only read what it recorded."""
    simulation = RecordedSimulation(seed)
    simulation.run()
    return simulation


def stored(simulation: RecordedSimulation, folder: Path) -> Path:
    """The simulated run as a ledger file."""
    path = folder / f"{simulation.header.run_id}.sqlite"
    writer = LedgerWriter(path, simulation.header)
    for rows in simulation.kept.turns:
        writer.put(rows)
    writer.close()
    assert writer.dropped == 0
    return path
