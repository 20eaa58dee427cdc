"""The arms of a plan as things that serve: engines in this process on one loaded model, or other servers.

A model is loaded once for each set of engine settings, because arms must share it: what differs between two arms is
scheduling and nothing else.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ekiden.build.model import load_described
from ekiden.config import Config
from ekiden.engine.parts import EngineParts
from ekiden.engine.simulated import EngineSpeed
from ekiden.evaluation.benches.serve import first_model
from ekiden.evaluation.calibrate import calibrate
from ekiden.evaluation.load.engine_subject import EngineSubject
from ekiden.evaluation.load.server_subject import ServerSubject
from ekiden.evaluation.load.simulated_subject import SimulatedSubject, pool_for
from ekiden.evaluation.load.subject import Subject
from ekiden.evaluation.load.target import Target
from ekiden.evaluation.plan.model import Arm, EngineSettings, Plan
from ekiden.evaluation.plan.settings import with_settings
from ekiden.evaluation.workloads.offer import Workload
from ekiden.evaluation.workloads.realise import realise
from ekiden.evaluation.workloads.spec import WorkloadSpec
from ekiden.models.load import ModelDescription

MOST_LOADED = 3
"""Models held at once; the one that was loaded first goes first."""


def config_of(engine: EngineSettings, *changes: Mapping[str, Any]) -> Config:
    """The engine's settings with ``changes`` over them, later ones first. Variables of the environment and files of
    settings do not count: the plan says it all. Raises :class:`ekiden.config.ConfigError`."""
    values: dict[str, Any] = {"model": engine.model, **engine.settings}
    for change in changes:
        values |= change
    return with_settings(Config(), values)


class Subjects(Protocol):
    """Makes what serves an arm."""

    def subject(self, arm: Arm, settings: Mapping[str, Any], spec: WorkloadSpec) -> Subject:
        """``settings``: the arm's own, with what tuning chose."""
        ...

    def simulated(self, settings: Mapping[str, Any], spec: WorkloadSpec, speed: EngineSpeed) -> Subject:
        """The same engine in virtual time, for what would take too long otherwise."""
        ...

    def speed(self, engine: Mapping[str, Any] = {}) -> EngineSpeed:
        """How fast this machine computes the model's steps, measured now, with a workload's ``engine`` settings."""
        ...

    def lineage(self) -> dict[str, Any]:
        """What the figures are made with: model, software, machine."""
        ...

    def close(self) -> None: ...


class EngineSubjects:
    """Real ones. Runs are recorded in ``ledger_folder``, so that `ekiden explain` can tell of their requests.

    Raises :class:`ekiden.errors.UserError` for a model that cannot be found or loaded.
    """

    def __init__(self, plan: Plan, ledger_folder: Path, *, describe: Callable[[Config], ModelDescription]) -> None:
        self._plan, self._ledger_folder = plan, ledger_folder
        config = config_of(plan.engine)
        self._description = describe(config)
        self._loaded: dict[bytes, EngineParts] = {}
        self._lineage: dict[str, Any] = {}

    def subject(self, arm: Arm, settings: Mapping[str, Any], spec: WorkloadSpec) -> Subject:
        if arm.url is not None:
            target = Target.parse(arm.url)
            return ServerSubject(
                target,
                arm.model_id or first_model(target),
                objectives=self._plan.objectives,
                prompts=self._prompts,
                end_token=min(self._description.tokenizer.eos_token_ids, default=None),
            )
        ledger = {"ledger_dir": str(self._ledger_folder)}
        return EngineSubject(
            self._parts(spec.engine),
            config_of(self._plan.engine, spec.engine, settings, ledger),
            objectives=self._plan.objectives,
            prompts=self._prompts,
            ledger=True,
        )

    def simulated(self, settings: Mapping[str, Any], spec: WorkloadSpec, speed: EngineSpeed) -> Subject:
        config = config_of(self._plan.engine, spec.engine, settings)
        info = pool_for(self._parts({}).runner.info, config)
        return SimulatedSubject(config, speed, info=info, prompts=self._prompts)

    def speed(self, engine: Mapping[str, Any] = {}) -> EngineSpeed:
        return calibrate(self._parts(engine), config_of(self._plan.engine, engine))

    def lineage(self) -> dict[str, Any]:
        return self._lineage or dict(self._parts({}).card.lineage.as_object())

    def close(self) -> None:
        for parts in self._loaded.values():
            parts.runner.close()
        self._loaded.clear()

    def _prompts(self, workload: Workload) -> list[tuple[int, ...]]:
        found = realise(
            workload,
            self._description.tokenizer,
            max_model_len=config_of(self._plan.engine).model.max_model_len or self._description.max_position_embeddings,
            chat_template=self._description.chat_template,
            vocab_size=self._description.vocab_size,
        )
        return list(found.prompts)

    def _parts(self, engine: Mapping[str, Any]) -> EngineParts:
        key = msgspec.json.encode(engine, order="sorted")
        if key not in self._loaded:
            if len(self._loaded) >= MOST_LOADED:
                self._loaded.pop(next(iter(self._loaded))).runner.close()
            self._loaded[key] = load_described(config_of(self._plan.engine, engine), self._description)
            if not engine:
                self._lineage = dict(self._loaded[key].card.lineage.as_object())
        return self._loaded[key]
