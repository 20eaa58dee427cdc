"""Conducts an evaluation: calibrates, tunes the baselines on dev, serves all runs, and has them analysed.

What a phase needs of the plan, the data and the machine is handed in, so that the same code conducts a real evaluation
and one in virtual time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ekiden.engine.simulated import EngineSpeed
from ekiden.evaluation.charts.slots import stays
from ekiden.evaluation.experiment.order import AGAIN, DueRun, candidate_of, due_in, first_workload
from ekiden.evaluation.experiment.serving import Runs, serve_all
from ekiden.evaluation.experiment.subjects import Subjects, config_of
from ekiden.evaluation.load.subject import Subject
from ekiden.evaluation.outcome import SlotChart, SlotSegment, Tuning
from ekiden.evaluation.plan.model import Arm, Plan
from ekiden.evaluation.results import ArmRun
from ekiden.evaluation.tuning import tune
from ekiden.evaluation.workloads.source import Split
from ekiden.evaluation.workloads.sources import make
from ekiden.evaluation.workloads.spec import WorkloadSpec

Advance = Callable[[str], None]
"""Is told each piece of work that is done."""


@dataclass(slots=True, kw_only=True)
class Conductor:
    """``tunings`` and ``speed`` are found on dev and kept by the caller between phases."""

    plan: Plan
    subjects: Subjects
    tunings: list[Tuning] = field(default_factory=list)
    speed: EngineSpeed | None = None
    slots: list[SlotChart] = field(default_factory=list)
    """Who held which slot in the first run of each arm on the first workload."""
    advance: Advance = lambda what: None

    @property
    def to_tune(self) -> list[str]:
        """The arms to which the plan gives values to try."""
        return [name for name, arm in self.plan.arms.items() if arm.tune]

    def measure_speed(self) -> EngineSpeed:
        """What tuning in virtual time and the slowdowns stand on."""
        self.speed = self.subjects.speed()
        self.advance("speed of the engine")
        return self.speed

    def tune(self) -> None:
        """Tune every arm that the plan gives values to try, on dev: in virtual time, then the best on the engine."""
        speed = self.speed or self.measure_speed()
        spec = first_workload(self.plan)
        blocks = [make(spec, split="dev", block=block, seed=0) for block in range(max(1, self.plan.dev_blocks))]
        for name in self.to_tune:
            arm = self.plan.arms[name]
            if any(tuning.arm == name for tuning in self.tunings):
                continue

            def real(settings: dict[str, Any], arm: Arm = arm) -> Subject:
                return self.subjects.subject(arm, arm.settings | settings, spec)

            def simulated(settings: dict[str, Any], arm: Arm = arm) -> Subject:
                return self.subjects.simulated(arm.settings | settings, spec, speed)

            self.tunings.append(tune(arm, blocks, real, self.plan.objectives, name=name, simulated=simulated))
            self.advance(f"tuning of {name}")

    def serve(self, split: Split, kept: Runs) -> None:
        """Serve what is due in a split and not yet kept; raises what :func:`serve_all` raises."""

        def done(due: DueRun, subject: Subject, run: ArmRun) -> None:
            self._keep_slots(due, subject)
            self.advance(f"{due.workload.name}, block {due.block + 1}, {due.arm}")

        serve_all(
            self.plan,
            due_in(self.plan, split),
            kept,
            workload_of=lambda due: make(due.workload, split=split, block=due.block, seed=self.plan.confirm.seed),
            subject_of=lambda due: self._subject(due.arm, due.workload),
            complete=self._complete,
            after_run=done,
        )

    # --- inside

    def _subject(self, name: str, spec: WorkloadSpec) -> Subject:
        name = candidate_of(self.plan) if name == AGAIN else name
        arm = self.plan.arms[name]
        return self.subjects.subject(arm, self.settings_of(name), spec)

    def settings_of(self, name: str) -> dict[str, Any]:
        """An arm's settings, with what tuning chose."""
        chosen = next((tuning.chosen for tuning in self.tunings if tuning.arm == name), {})
        return {**self.plan.arms[name].settings, **chosen}

    def _complete(self, run: ArmRun) -> None:
        """Put in each answer how long it would have taken on an idle engine, for the slowdown."""
        if self.speed is None:
            return
        budget = config_of(self.plan.engine).scheduler.max_num_batched_tokens
        for each in run.results:
            if each.slowest_alone is None:
                each.slowest_alone = self.speed.alone_seconds(each.prompt_tokens, each.output_tokens, budget=budget)

    def _keep_slots(self, due: DueRun, subject: Subject) -> None:
        steps = getattr(subject, "last_steps", None)
        first = due.block == 0 and due.workload.name == first_workload(self.plan).name
        if not steps or not first or due.arm in {chart.arm for chart in self.slots}:
            return
        held = stays(steps)
        start = steps[0].start
        self.slots.append(
            SlotChart(
                arm=due.arm,
                workload=due.workload.name,
                slots=1 + max(stay.slot for stay in held),
                seconds=steps[-1].end - start,
                segments=[
                    SlotSegment(
                        slot=stay.slot,
                        request_id=stay.request_id,
                        start=stay.start - start,
                        end=stay.end - start,
                        output_tokens=stay.output_tokens,
                    )
                    for stay in held
                ],
            )
        )
