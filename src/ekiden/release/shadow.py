"""The shadow: a candidate on the live arrivals, in the simulator, beside production.

It follows the ledger as it grows. Two engine cores serve in virtual time what production was asked: one under
production's own controls, one under the candidate's. The first is there to be compared with what was recorded: its
error says how far the prediction for the second can be trusted. Step times come from a model fitted to the run's last
steps. It sees arrivals, lengths, shared prefixes and what could be guessed ahead only, so nothing of a prompt need be
kept, and it does nothing to traffic but read a file.

It is bounded. Processor time: a share of one core (1 %), after which it waits and falls behind, and says by how much;
what it cannot make good within ``MOST_BEHIND`` it skips, and counts. Memory: the requests of one window, and
``MOST_BLOCKS`` prompt blocks, after which prefixes count as new ones once. An answer's length is known once it has
ended, so the shadow stays ``lag`` behind on purpose; of what has not ended by then the median length stands in.
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from ekiden.config import check_controls
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.recorded_controls import controls_at
from ekiden.release.plan import Objectives
from ekiden.release.shadow_report import Outcome, ShadowReport, latency_error, predicted
from ekiden.release.shadow_world import World
from ekiden.state.controls import Controls

SHARE: Final = 0.01
"""Of one core."""
MOST_BEHIND: Final = 600.0
_SLICE: Final = 0.25
"""Virtual seconds between two looks at the processor time that was used."""


class ShadowFollower:
    """``ledger`` opens the run that is being written. ``cpu`` is the processor time of the calling thread, ``now`` any
    clock that goes on; ``candidate`` are values of controls by name."""

    def __init__(
        self,
        ledger: Callable[[], LedgerReader],
        candidate: Mapping[str, Any],
        objectives: Objectives,
        *,
        share: float = SHARE,
        lag: float = 30.0,
        window: float = 600.0,
        now: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._ledger, self._candidate, self._objectives = ledger, dict(candidate), objectives
        self._share, self._lag, self._window = share, lag, window
        self._now, self._cpu = now, cpu
        self._began, self._used = now(), 0.0
        self._world: World | None = None
        self._horizon = self._simulated = self._skipped = 0.0
        self._unknown_before = 0

    def look(self) -> None:
        """Go on as far as the ledger and the allowance reach. Raises what opening the ledger raises, and
        :class:`~ekiden.config.ConfigError` for a candidate that cannot work."""
        before = self._cpu()
        if self._allowance(before) <= 0:
            return
        try:
            with self._ledger() as reader:
                self._follow(reader, before)
        finally:
            self._used += self._cpu() - before

    def _allowance(self, before: float) -> float:
        """Seconds of processor time that are left now."""
        return self._share * (self._now() - self._began) - self._used - (self._cpu() - before)

    def _follow(self, reader: LedgerReader, before: float) -> None:
        last = reader.turn(reader.bounds()[1])
        if last is None:
            return
        self._horizon = last.end / 1e6 - self._lag
        controls = controls_at(reader, last.turn)
        world = self._world
        if world is None or world.header.run_id != reader.header.run_id or world.controls != controls:
            world = self._restarted(reader, controls)
        elif self._horizon - world.time > MOST_BEHIND:
            self._skipped += self._horizon - world.time
            world = self._restarted(reader, controls)
        world.fit(reader, last.turn)
        while world.time < self._horizon and self._allowance(before) > 0:
            start = world.time
            until = min(self._horizon, start + _SLICE)
            world.advance(reader, until)
            self._simulated += world.time - start
        world.forget(world.time - self._window)

    def _restarted(self, reader: LedgerReader, controls: Controls) -> World:
        """From the horizon on."""
        changed = msgspec.convert(msgspec.to_builtins(controls) | self._candidate, Controls)
        check_controls(changed, reader.header.block_size)
        if self._world is not None:
            self._unknown_before += self._world.unknown_lengths
        self._world = World(reader, controls, changed, max(0.0, self._horizon))
        return self._world

    def report(self) -> ShadowReport:
        """What is known now; it computes over one window, and is meant to be asked for now and then."""
        world, elapsed = self._world, max(1e-9, self._now() - self._began)
        of: list[list[Outcome]] = [[], [], []]
        if world is not None:
            kinds = (world.recorded, *(arm.outcomes for arm in world.arms))
            numbers = [number for _, number in world.arrivals if all(number in kind for kind in kinds)]
            of = [[kind[number] for number in numbers] for kind in kinds]
        recorded, production, candidate = (predicted(outcomes, self._objectives) for outcomes in of)
        missed = (production.slo_missed_share, recorded.slo_missed_share)
        return ShadowReport(
            requests=len(of[0]),
            recorded=recorded,
            production=production,
            candidate=candidate,
            error=latency_error(production, recorded),
            missed_error=None if missed[0] is None or missed[1] is None else missed[0] - missed[1],
            step_error=0.0 if world is None else world.step_error,
            unknown_lengths=self._unknown_before + (0 if world is None else world.unknown_lengths),
            seconds=self._simulated,
            behind_seconds=0.0 if world is None else max(0.0, self._horizon - world.time),
            skipped_seconds=self._skipped,
            cpu_seconds=self._used,
            cpu_share=self._used / elapsed,
        )


class PlannedShadow:
    """The shadow of a plan (:class:`~ekiden.release.controller.ShadowRun`): over so many seconds of production."""

    def __init__(self, follower: ShadowFollower, *, seconds: float, patience: float, now: Callable[[], float]) -> None:
        self._follower, self._seconds = follower, seconds
        self._now, self._until = now, now() + seconds + patience

    def look(self) -> float | None:
        self._follower.look()
        report = self._follower.report()
        late = self._now() > self._until
        if report.seconds < self._seconds and not late:
            return None
        ours, theirs = report.candidate.slo_missed_share, report.production.slo_missed_share
        return math.nan if ours is None or theirs is None else ours - theirs

    def told(self) -> dict[str, object]:
        told: dict[str, object] = msgspec.to_builtins(self._follower.report())
        return {"report": told}
