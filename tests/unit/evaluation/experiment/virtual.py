"""Evaluations in virtual time: the whole conduct of a plan, on arms whose truth is known."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomlkit

from ekiden.cli.evaluate_plan import known_names
from ekiden.engine.simulated import EngineSpeed, Noise
from ekiden.evaluation.experiment.phases import Evaluation
from ekiden.evaluation.experiment.subjects import config_of
from ekiden.evaluation.load.simulated_subject import SimulatedSubject
from ekiden.evaluation.load.subject import Subject
from ekiden.evaluation.plan import registration
from ekiden.evaluation.plan.basis import basis_of
from ekiden.evaluation.plan.model import Arm, Plan
from ekiden.evaluation.plan.read import read_plan
from ekiden.evaluation.workloads.spec import WorkloadSpec
from ekiden.state.lineage import Lineage
from tests.unit.evaluation.plan.plans import document
from tests.unit.evaluation.simulated_arms import INFO, SPEED

KNOWN = known_names()
NOISE = Noise(step=0.05, drift=0.05)
LINEAGE: dict[str, Any] = Lineage().as_object()
WORKLOAD = {
    "name": "conversation", "source": "azure-conversation", "kind": "normal", "seconds": 8, "rate": 6.0,
    "length_scale": 0.1, "options": {"max_prompt_tokens": 128, "max_output_tokens": 48},
}  # fmt: skip
SHORT = {"seconds": 3}
"""What suffices where an evaluation's conduct is tested, and not its verdict."""
ENGINE = {"block_size": 16, "max_num_seqs": 8, "max_num_batched_tokens": 128, "target_itl_ms": 0.0}


def plan_document(arms: Mapping[str, Any], *, workload: Mapping[str, Any] = {}, blocks: int = 5) -> dict[str, Any]:
    """The quick profile on one workload of the simulated machine's size."""
    made = document()
    made["engine"]["settings"] = ENGINE
    made["arms"] = dict(arms)
    made["objectives"] = {"ttft": 0.5, "tpot": 0.05, "attainment": 0.9}
    made["workloads"] = [WORKLOAD | dict(workload)]
    for metric in made["metrics"]:
        metric["workloads"] = ["conversation"]
    for each in (*made["falsifies"], *made["predictions"]):
        each["workload"] = "conversation"
    made["falsifies"][0]["condition"] = "result > 100"
    made["confirm"]["blocks"] = blocks
    return made


def change_document(candidate: Mapping[str, Any], **workload: Any) -> dict[str, Any]:
    """A change that claims to make nothing worse, against what there is: guardrails only, all of them critical."""
    baseline = {"role": "baseline", "settings": {"batching": "continuous", "max_concurrent_prefills": 7}}
    made = plan_document({"new": candidate, "old": baseline}, workload=workload)
    for metric in made["metrics"]:
        if metric["name"] == "goodput":
            metric |= {"successCondition": "result >= 1.02", "failureCondition": "result < 0.8"}
        metric["critical"] = True
        if metric["name"] == "tpot_p50":
            metric["margin"] = 0.05
    return made


class VirtualSubjects:
    """``faults`` has options of :class:`SimulatedSubject` by arm. ``served`` counts the runs by arm."""

    def __init__(self, plan: Plan, *, seed: int = 0, noise: Noise = NOISE, **faults: Any) -> None:
        self.plan, self._seed, self._noise, self._faults = plan, seed, noise, faults
        self.served: list[str] = []
        self.stop_after: int | None = None
        self._names = {id(arm): name for name, arm in plan.arms.items()}

    def subject(self, arm: Arm, settings: Mapping[str, Any], spec: WorkloadSpec) -> Subject:
        if self.stop_after is not None and len(self.served) >= self.stop_after:
            raise KeyboardInterrupt
        name = self._names[id(arm)]
        self.served.append(name)
        return SimulatedSubject(
            config_of(self.plan.engine, spec.engine, settings), SPEED, info=INFO,
            seed=1000 * self._seed + len(self.served), noise=self._noise, tokens="hashed",
            **self._faults.get(name, {}),
        )  # fmt: skip

    def simulated(self, settings: Mapping[str, Any], spec: WorkloadSpec, speed: EngineSpeed) -> Subject:
        return SimulatedSubject(config_of(self.plan.engine, spec.engine, settings), speed, info=INFO)

    def speed(self, engine: Mapping[str, Any] = {}) -> EngineSpeed:
        return SPEED

    def lineage(self) -> dict[str, Any]:
        return LINEAGE

    def close(self) -> None:
        """Nothing is held."""


@contextmanager
def no_bar(label: str, total: int) -> Iterator[Callable[[], None]]:
    yield lambda: None


class Trial:
    """A plan in a folder, with the subjects that serve it."""

    def __init__(self, folder: Path, made: dict[str, Any], **subjects: Any) -> None:
        self.path, self.folder = folder / "plan.toml", folder / "plan"
        self.path.write_text(tomlkit.dumps(made), encoding="utf-8")
        self.plan = read_plan(self.path, KNOWN)
        self.subjects = VirtualSubjects(self.plan, **subjects)

    def evaluation(self) -> Evaluation:
        return Evaluation(self.plan, self.path, self.folder, lambda plan, ledger: self.subjects, bar=no_bar)

    def register(self) -> None:
        registration.register(self.path, self.folder, KNOWN, basis_of(self.plan, LINEAGE))
