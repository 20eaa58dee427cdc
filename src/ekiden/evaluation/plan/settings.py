"""The settings that a plan names, put into a configuration.

An arm may differ from the others in how it schedules, and in nothing else: engine, weights, kernels and memory are
those of all arms, so that what is compared is scheduling. A workload may take computing power or memory from all arms.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import islice, product
from typing import Any

from ekiden.build.config_sources import Setting, all_settings, nearest
from ekiden.config import Config, ConfigError
from ekiden.evaluation.plan.model import Arm, EngineSettings, WorkloadSpec

_MODEL = frozenset({"model", "backend", "device", "tenants_file"})
"""``engine.model`` says the model; the others would be files and machines that the plan does not hold."""

_OF_SCHEDULING = frozenset(
    {"max_num_queued_reqs", "max_num_queued_tokens", "max_queue_seconds", "abstain", "request_timeout"}
)
"""Limits that decide what is served; the others are about bodies of HTTP."""

MOST_COMBINATIONS = 4096
"""Combinations of an arm's tuning that are looked at when a plan is read."""


@cache
def _settings() -> dict[str, Setting]:
    return {setting.name: setting for setting in all_settings()}


def of_arms() -> set[str]:
    """Settings in which arms may differ."""
    return {name for name, each in _settings().items() if each.room == "scheduler" or name in _OF_SCHEDULING}


def of_workloads() -> set[str]:
    """Settings that a workload may give to all arms."""
    rooms = ("cache", "engine")
    return of_arms() | {name for name, each in _settings().items() if each.room in rooms and name not in _MODEL}


def of_engine() -> set[str]:
    """Settings that all arms share in every workload."""
    return of_workloads() | {n for n, each in _settings().items() if each.room == "model" and n not in _MODEL}


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """``config`` with some settings changed, by their names. Raises :class:`ConfigError`."""
    rooms: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        setting = _settings().get(name)
        if setting is None:
            raise ConfigError(f"{name} is not a setting{nearest(name, _settings())}; see `ekiden config show`")
        rooms.setdefault(setting.room, {})[name] = _checked(setting, value)
    changed: dict[str, Any] = {room: replace(getattr(config, room), **values) for room, values in rooms.items()}
    return replace(config, **changed)


def settings_of(engine: EngineSettings, arm: Arm, workload: WorkloadSpec | None = None) -> dict[str, Any]:
    """What one arm gets in one workload, by the settings' names. No setting comes from two of the three places but from
    the engine's, which gives way."""
    return {"model": engine.model, **engine.settings, **arm.settings, **(workload.engine if workload else {})}


def combinations(tune: Mapping[str, list[Any]], most: int | None = MOST_COMBINATIONS) -> Iterator[dict[str, Any]]:
    """Every combination of the values that an arm's tuning tries, in the order in which they are written."""
    for values in islice(product(*tune.values()), most):
        yield dict(zip(tune, values, strict=True))


def faults_of(where: str, names: Mapping[str, Any], allowed: Collection[str], why: str) -> list[str]:
    """A fault for each name that may not stand there; ``why`` ends the sentence."""
    faults = []
    for name in names:
        if name not in _settings():
            hint = nearest(name, allowed) or "; `ekiden config show` lists the settings"
            faults.append(f"{where}.{name} is not a setting{hint}")
        elif name not in allowed:
            faults.append(f"{where}.{name} cannot stand there: {why}")
    return faults


def _checked(setting: Setting, value: object) -> Any:
    if setting.kind is float and type(value) is int:
        return float(value)
    if value is None and setting.optional:
        return None
    if type(value) is not setting.kind:  # bool is a subclass of int, and `threads = true` is a mistake
        kind = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}[setting.kind]
        raise ConfigError(f"{setting.name} is {value!r}; it must be {kind}")
    return value
