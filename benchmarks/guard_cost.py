"""Measures what the guard takes of a processor: one look at a time, over the whole of a recorded run.

    python benchmarks/guard_cost.py --folder /tmp/guard-bench --steps 20000 --rows 64
    python benchmarks/guard_cost.py --run ~/.local/state/ekiden/ledger/20260101-101500-9f3a.sqlite

The first form records a mixed, overloaded load in virtual time (``ledger_figures.py``). The default rules are stepped
and their changes go to controls in memory. ``share_of_machine`` is with the pauses that the running guard makes; the
measure is processor time, so that other work on the machine does not count.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from ledger_figures import Bench

from ekiden.config import Config, controls_of
from ekiden.evidence.harm import readings
from ekiden.evidence.reader import LedgerReader
from ekiden.guard.runtime import POLL_SECONDS, Guard, cores
from ekiden.guardrails.readings import Objectives, Readings
from ekiden.guardrails.rules import load_rules
from ekiden.measure.percentiles import median, percentiles
from ekiden.state.controls import ControlChange, ControlsInForce, ControlState


class Recorded:
    """The moments of a recorded run as what the guard sees, and controls in memory as what it acts on."""

    run = None

    def __init__(self, reader: LedgerReader) -> None:
        self.at = 0.0
        self._reader = reader
        self._in_force = ControlsInForce(controls_of(Config()))

    def readings(self, run: Path | None, now: float, objectives: Objectives) -> Readings:
        return readings(self._reader, at=self.at)

    def controls(self) -> ControlState:
        self._in_force.expire(self.at)
        return self._in_force.state

    def apply(self, change: ControlChange) -> None:
        self._in_force.apply(change, self.at)

    def restart(self, why: str) -> None:
        """A recorded run goes on as it did."""

    def close(self) -> None:
        """The reader is closed by whoever opened it."""


def measure(path: Path, looks: int) -> dict[str, Any]:
    with LedgerReader(path) as reader:
        first, last = (reader.turn(number) for number in reader.bounds())
        assert first is not None
        assert last is not None
        recorded = Recorded(reader)
        guard = Guard(
            load_rules(None), recorded, recorded, mode="act", configured=controls_of(Config()),
            clock=lambda: 1.7e9 + recorded.at, engine_clock=lambda: recorded.at,
        )  # fmt: skip
        begin, end = first.start / 1e6, last.end / 1e6
        count = min(looks, max(1, int(end - begin)))
        times, pauses = [], []
        for index in range(count):
            recorded.at = begin + (end - begin) * (index + 1) / count
            started = time.thread_time()
            guard.look()
            pauses.append(guard.pause_seconds)
            times.append(time.thread_time() - started)
            assert not guard.failure, guard.failure
        p95, worst = percentiles(times, (95, 100))
        return {
            "run_seconds": end - begin,
            "turns": last.turn,
            "looks": count,
            "steps_of_rules": guard.steps_total,
            "look_ms_p50": median(times) * 1e3,
            "look_ms_p95": p95 * 1e3,
            "look_ms_max": worst * 1e3,
            "pause_seconds_p50": median(pauses),
            "cores": cores(),
            "share_of_machine": sum(times) / sum(pauses) / cores(),
            "share_of_a_core_if_once_a_second": sum(times) / len(times) / POLL_SECONDS,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run", type=Path, help="a recorded run; else one is made under --folder")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--looks", type=int, default=300)
    arguments = parser.parse_args()
    path = arguments.run
    if path is None:
        if arguments.folder is None:
            parser.error("name a run with --run, or a folder for one with --folder")
        arguments.folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(arguments.rows, arguments.folder)
        bench.run(arguments.steps)
        assert bench.writer is not None
        bench.writer.close()
        path = bench.writer.path
    print(json.dumps(measure(path, arguments.looks), indent=2))


if __name__ == "__main__":
    main()
