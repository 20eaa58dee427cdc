"""What makes a plan one that can answer its question. Each function looks at some sections and returns their faults.

A fault names the field, its value and the way out. Sections that could not be read are not here, and what refers to
them is not faulted a second time.
"""

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ekiden.config import Config, ConfigError
from ekiden.errors import UserError
from ekiden.evaluation.plan.parts import LEAST_BLOCKS, LEAST_OF_A_WORKLOAD, Known, Parts, unknown
from ekiden.evaluation.plan.settings import (
    combinations,
    faults_of,
    of_arms,
    of_engine,
    of_workloads,
    settings_of,
    with_settings,
)
from ekiden.evaluation.plan.structure import shown
from ekiden.evaluation.plan.thresholds import threshold_faults
from ekiden.evaluation.workloads.spec import WorkloadSpec

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
"""Of arms and workloads, which also name files."""

ROLES = ("candidate", "baseline", "other")


def faults_in(parts: Parts, known: Known) -> list[str]:
    """All faults of the sections, in the order of the file."""
    found: Iterable[list[str]] = (
        _decision(parts), _engine(parts), _objectives(parts), _arms(parts), _alike(parts),
        *(_workload(parts, workload, known) for workload in parts.workloads), _workloads(parts),
        _numbers(parts), threshold_faults(parts, known),
    )  # fmt: skip
    return list(dict.fromkeys(itertools.chain.from_iterable(found)))


def _decision(parts: Parts) -> list[str]:
    if parts.decision is None:
        return []
    texts = msgspec.structs.asdict(parts.decision)
    return [f"decision.{name} is empty; say it in a sentence" for name, text in texts.items() if not text.strip()]


def _engine(parts: Parts) -> list[str]:
    if parts.engine is None:
        return []
    faults = faults_of("engine.settings", parts.engine.settings, of_engine(), "it is no setting that the arms share")
    return faults or _refused("engine.settings", {"model": parts.engine.model, **parts.engine.settings})


def _objectives(parts: Parts) -> list[str]:
    if (goal := parts.objectives) is None:
        return []
    faults = [
        f"objectives.{name} is {value}; it must be over 0 seconds"
        for name, value in (("ttft", goal.ttft), ("tpot", goal.tpot))
        if not 0 < value < math.inf
    ]
    if not 0 < goal.attainment <= 1:
        faults.append(f"objectives.attainment is {goal.attainment}; it must be over 0 and at most 1")
    if (price := goal.price_per_machine_hour) is not None:
        if not 0 <= price < math.inf:
            faults.append(f"objectives.price_per_machine_hour is {price}; it must be at least 0")
        if not goal.currency.strip():
            faults.append("objectives.currency is empty beside a price; name it, such as EUR or JPY")
    return faults


def _arms(parts: Parts) -> list[str]:
    faults: list[str] = []
    for name, arm in parts.arms.items():
        where = f"arms.{name}"
        faults += _named("arms", name)
        if arm.role not in ROLES:
            faults.append(f"{where}.role is {arm.role!r}; it must be one of {', '.join(ROLES)}")
        if arm.url is not None:
            if arm.settings or arm.tune:
                faults.append(f"{where} has a url and settings; another server is set by its owner, so leave them out")
            if not re.match(r"https?://[^/\s]|unix:/", arm.url):
                faults.append(f"{where}.url is {shown(arm.url)}; write such as http://localhost:8000")
            continue
        if arm.model_id is not None:
            faults.append(f"{where}.model_id is for an arm with a url; the model of all others is engine.model")
        why = "arms differ in scheduling only; what all share belongs under [engine.settings]"
        faults += faults_of(f"{where}.settings", arm.settings, of_arms(), why)
        faults += faults_of(f"{where}.tune", arm.tune, of_arms(), why)
        for setting, values in arm.tune.items():
            if len(values) < 2:
                faults.append(f"{where}.tune.{setting} is {shown(values)}; give two values or more to try")
            if setting in arm.settings:
                faults.append(f"{where}.settings.{setting} is also tuned; leave it out of one of the two")
    return faults + _roles(parts)


def _roles(parts: Parts) -> list[str]:
    if not parts.arms_complete:
        return []
    faults = []
    candidates = parts.role("candidate")
    if len(candidates) != 1:
        found = f"there are {len(candidates)} ({', '.join(candidates)})" if candidates else "none is"
        faults.append(f'arms: exactly one arm must have role = "candidate", and {found}')
    if not parts.role("baseline"):
        faults.append('arms: no arm has role = "baseline"; add what the candidate is compared with')
    return faults


def _alike(parts: Parts) -> list[str]:
    """Arms whose settings cannot work, or that would be the candidate again."""
    if parts.engine is None:
        return []
    faults: list[str] = []
    sound: dict[str, Config] = {}
    for name, arm in parts.arms.items():
        if arm.url is not None or not set(arm.settings) | set(arm.tune) <= of_arms():
            continue
        settings = settings_of(parts.engine, arm)
        tried = list(combinations(arm.tune))
        told = [fault for each in tried for fault in _refused(f"arms.{name}", {**settings, **each})]
        faults += told[:1]
        if not told and not arm.tune:
            sound[name] = with_settings(Config(), settings)
    for name in parts.role("candidate"):
        for other in (*parts.role("baseline"), *parts.role("other")):
            if name in sound and sound[name] == sound.get(other):
                faults.append(f"arms.{other} has the settings of the candidate {name}; let it differ, or leave it out")
    return faults


def _workload(parts: Parts, workload: WorkloadSpec, known: Known) -> list[str]:
    where = f"workloads[{workload.name}]"
    faults = _named("workloads", workload.name)
    for name, value in (
        ("seconds", workload.seconds), ("rate", workload.rate), ("length_scale", workload.length_scale),
    ):  # fmt: skip
        if not 0 < value < math.inf:
            faults.append(f"{where}.{name} is {value}; it must be over 0")
    faults += unknown(f"{where}.source", [workload.source], known.sources)
    faults += unknown(f"{where}.change", workload.change, known.changes)
    faults += unknown(f"{where}.arms", workload.arms, parts.arm_names, "arms of the plan")
    if workload.blocks is not None and workload.blocks < LEAST_OF_A_WORKLOAD:
        faults.append(
            f"{where}.blocks is {workload.blocks}; no interval can be had from fewer than {LEAST_OF_A_WORKLOAD}"
        )
    if not faults:
        try:
            known.check_workload(workload)
        except UserError as error:
            faults += str(error).splitlines()
    faults += faults_of(f"{where}.engine", workload.engine, of_workloads(), "it would change the model or the backend")
    for name, arm in parts.arms.items():
        doubled = sorted((set(arm.settings) | set(arm.tune)) & set(workload.engine))
        if name in parts.serving(workload) and doubled:
            faults.append(f"{where}.engine.{doubled[0]} is also set by arms.{name}; leave it out of one of the two")
    if parts.engine is not None and workload.engine and not faults:
        for name in sorted(parts.serving(workload) & set(parts.arms)):
            arm = parts.arms[name]
            if arm.url is None and not _refused(name, settings_of(parts.engine, arm)):
                faults += _refused(f"{where}.engine", settings_of(parts.engine, arm, workload))
    return list(dict.fromkeys(faults))


def _workloads(parts: Parts) -> list[str]:
    if not parts.workload_names:
        return ["workloads is empty; add [[workloads]]"]
    names = [workload.name for workload in parts.workloads]
    faults = [
        f"workloads[{name}] stands there twice; give each its own name"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    if not parts.arms_complete or len(names) < len(parts.workload_names):
        return faults
    candidates = set(parts.role("candidate"))
    return faults + [
        f"arms.{baseline} serves no workload that the candidate serves; name both in workloads.arms"
        for baseline in parts.role("baseline")
        if not any({baseline, *candidates} <= parts.serving(workload) for workload in parts.workloads)
    ]


def _numbers(parts: Parts) -> list[str]:
    faults = []
    if parts.version != 1:
        faults.append(f"version is {parts.version}; this version of Ekiden reads plans of version 1")
    if parts.dev_blocks < 1:
        faults.append(f"dev_blocks is {parts.dev_blocks}; it must be at least 1")
    for name, value in (("void_runs", parts.stop.void_runs), ("errors", parts.stop.errors)):
        if value < 0:
            faults.append(f"stop.{name} is {value}; it must be at least 0")
    if not 0 < parts.stop.seconds < math.inf:
        faults.append(f"stop.seconds is {parts.stop.seconds}; it must be over 0")
    if (confirm := parts.confirm) is None:
        return faults
    if confirm.blocks < LEAST_BLOCKS:
        faults.append(f"confirm.blocks is {confirm.blocks}; no interval can be had from fewer than {LEAST_BLOCKS}")
    if not 0.5 < confirm.confidence < 1:
        faults.append(f"confirm.confidence is {confirm.confidence}; it must be over 0.5 and under 1, such as 0.95")
    if not 0 < confirm.power < 1:
        faults.append(f"confirm.power is {confirm.power}; it must be over 0 and under 1, such as 0.8")
    return faults


def _named(where: str, name: str) -> list[str]:
    if NAME.fullmatch(name):
        return []
    return [f"{where}: the name {shown(name)} must be of a to z, 0 to 9, '.', '_' and '-', and 64 characters at most"]


def _refused(where: str, settings: Mapping[str, Any]) -> list[str]:
    try:
        with_settings(Config(), settings)
    except ConfigError as error:
        return [f"{where}: {error}"]
    return []
