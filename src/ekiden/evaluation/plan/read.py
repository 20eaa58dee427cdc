"""A plan file read: a :class:`Plan` that can be followed, or all that is wrong with it."""

import hashlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ekiden.errors import UserError
from ekiden.evaluation.plan.checks import faults_in
from ekiden.evaluation.plan.model import Metric, Plan
from ekiden.evaluation.plan.parts import Known, Parts
from ekiden.evaluation.plan.structure import fields_of
from ekiden.evaluation.workloads.offer import Kind

MOST_BYTES = 2**20


class PlanError(UserError, ValueError):
    """A plan that cannot be followed. ``faults`` has one sentence for each thing that is wrong."""

    def __init__(self, where: str, faults: list[str]) -> None:
        self.faults = faults
        told = faults[0] if len(faults) == 1 else "".join(f"\n({at}) {fault}" for at, fault in enumerate(faults, 1))
        super().__init__(f"{where}: {told}" if len(faults) == 1 else f"{where} has {len(faults)} faults:{told}")


def read_plan(path: Path, known: Known) -> Plan:
    """Raises :class:`PlanError` with every fault that can be found at once."""
    return parse_plan(plan_text(path), known, where=str(path))


def plan_text(path: Path) -> str:
    """What the file holds. Raises :class:`PlanError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise PlanError(str(path), [f"it is over {MOST_BYTES} bytes, which is no plan; name the plan's file"])
        return content.decode()
    except OSError as error:
        way_out = "; `ekiden evaluate init` makes one" if isinstance(error, FileNotFoundError) else ""
        raise PlanError(str(path), [f"it cannot be read: {error.strerror or error}{way_out}"]) from error
    except UnicodeDecodeError as error:
        raise PlanError(str(path), [f"byte {error.start} is no UTF-8; save the file as UTF-8"]) from error


def parse_plan(text: str, known: Known, *, where: str = "the plan") -> Plan:
    """As :func:`read_plan`, from the file's text."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise PlanError(where, [f"it is no valid TOML: {error}"]) from error
    faults: list[str] = []
    sound = fields_of(document, Plan, "", faults)
    if document.get("falsifies") in ([], {}):
        faults.append("falsifies is empty; name the result that would overturn the claim")
    names = frozenset(document["arms"]) if isinstance(document.get("arms"), Mapping) else frozenset[str]()
    parts = Parts(**sound, arm_names=names, workload_names=_workload_names(document))
    faults += faults_in(parts, known)
    if faults:
        raise PlanError(where, faults)
    return Plan(**sound)


def plan_digest(plan: Plan) -> str:
    """SHA-256 over what a plan says, however its file is laid out."""
    return hashlib.sha256(msgspec.json.encode(plan, order="sorted")).hexdigest()


def workloads_of(metric: Metric, plan: Plan) -> list[str]:
    """The workloads that a metric is judged on."""
    return metric.workloads or [workload.name for workload in plan.workloads if workload.kind is Kind.NORMAL]


def remarks(plan: Plan) -> list[str]:
    """What is no fault, and what a reader of the verdict would ask about."""
    found = [
        f"no workload is of kind {kind}, so the verdict says nothing about such cases"
        for kind in Kind
        if all(workload.kind is not kind for workload in plan.workloads)
    ]
    for name, arm in plan.arms.items():
        if arm.role == "baseline" and not arm.tune and arm.url is None:
            found.append(
                f"arms.{name} is not tuned (it has no [arms.{name}.tune]); an untuned baseline is easy to beat"
            )
        if arm.url is not None:
            found.append(f"arms.{name} is another server, so what is compared with it is more than scheduling")
    for metric in plan.metrics:
        if metric.name.endswith("_p99"):
            for workload in (each for each in plan.workloads if each.name in workloads_of(metric, plan)):
                offered = workload.rate * workload.seconds * (workload.blocks or plan.confirm.blocks)
                if offered < 299:
                    found.append(
                        f"{metric.name} on {workload.name} needs 299 requests and about {offered:.0f} are planned for "
                        "each turn of an arm, so it may not be estimable"
                    )
    return found


def _workload_names(document: Mapping[str, Any]) -> frozenset[str]:
    listed = document.get("workloads")
    if not isinstance(listed, list):
        return frozenset()
    return frozenset(each["name"] for each in listed if isinstance(each, Mapping) and isinstance(each.get("name"), str))
