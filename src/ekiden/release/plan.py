"""The plan of a release, as its TOML file holds it: what changes, how it is tried, what it is judged by.

Names follow Argo Rollouts where that has one. All that decides the release stands here before it begins; its digest
is the first thing that the release's journal holds.
"""

import hashlib
import tomllib
from pathlib import Path
from typing import Any, Final

import msgspec

from ekiden.errors import UserError
from ekiden.evaluation.plan.conditions import condition_at
from ekiden.evaluation.plan.read import PlanError, plan_text
from ekiden.evaluation.plan.structure import fields_of
from ekiden.release.eprocess import fewest_pairs
from ekiden.release.figures import METRICS
from ekiden.state.controls import Controls, InvalidControls, typed_values

_NOT_OURS: Final = frozenset({"epoch", "guard", "release", "draining"})
_SHORTEST_WINDOW: Final = 1.0
"""Seconds of a block that must be left to count requests in."""


class Objectives(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request misses its objective unless it is answered whole, with TTFT and TPOT within these seconds."""

    ttft: float
    tpot: float


class Shadow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The candidate in the simulator, on the arrivals of so many seconds, before it serves anybody."""

    seconds: float = 0.0
    """0: no shadow."""
    failure_condition: str | None = None
    """Of the predicted ``slo_missed_share``, candidate - production as simulated: if met, the release ends here."""


class Canary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whole-engine blocks in random pairs. Times are seconds.

    Of a block those requests count that arrive after its burn-in and before its drain: what runs from the block before
    is gone by then, and most of what counts ends before the next one begins. Nobody is held up for that.
    """

    pairs: int
    """The horizon: nothing is promoted before all of them."""
    block_seconds: float = 60.0
    burn_in_seconds: float = 10.0
    drain_seconds: float = 10.0
    settle_seconds: float = 60.0
    """A request that has not ended so long after its block has missed its objective."""
    least_requests: int = 1
    """A block with fewer is missing data."""
    void_pairs: int = 3
    """Pairs that may be made again, because the server was restarted or somebody changed its controls meanwhile."""
    silence_seconds: float = 60.0
    """How long the server or its ledger may be out of reach: that is missing data too."""
    seed: int = 0
    alpha: float = 0.05
    """Of the alarm, and of the one-sided bounds."""


class Metric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A threshold fixed beforehand. ``result`` is candidate - baseline for a share, else candidate / baseline.

    It succeeds where the whole interval at the horizon meets ``successCondition``, fails where all of it meets
    ``failureCondition``, and is inconclusive otherwise: then a person decides.
    """

    name: str
    success_condition: str
    failure_condition: str | None = None
    block_failure_condition: str | None = None
    """Of ``result``, the candidate's own value in one block: a gross harm that no pair need be waited for."""
    failure_limit: int = 0
    """Blocks that may meet it before the release is rolled back."""


class Approvals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who must agree to the promotion: so many keys of different names."""

    needed: int = 1


class ReleasePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    name: str
    owner: str
    """Whom to ask."""
    why: str
    candidate: dict[str, Any]
    """New values of controls, by the names of the settings, such as ``max_num_seqs``."""
    objectives: Objectives
    canary: Canary
    metrics: list[Metric]
    approvals: Approvals = Approvals()
    shadow: Shadow = Shadow()


def read_release(path: Path) -> ReleasePlan:
    """Raises :class:`~ekiden.evaluation.plan.read.PlanError` with every fault that can be found at once."""
    return parse_release(plan_text(path), where=str(path))


def parse_release(text: str, *, where: str = "the plan") -> ReleasePlan:
    """As :func:`read_release`, from the file's text."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise PlanError(where, [f"it is no valid TOML: {error}"]) from error
    faults: list[str] = []
    sound = fields_of(document, ReleasePlan, "", faults)
    if faults:
        raise PlanError(where, faults)
    plan = ReleasePlan(**sound)
    if faults := _faults(plan):
        raise PlanError(where, faults)
    return plan


def release_digest(plan: ReleasePlan) -> str:
    """SHA-256 over what a plan says, however its file is laid out."""
    return hashlib.sha256(msgspec.json.encode(plan, order="sorted")).hexdigest()


def release_called(plan: ReleasePlan, digest: str) -> str:
    """What a release is called where it acts: by its name, and which of that name."""
    return f"{plan.name} ({digest[:12]})"


def _faults(plan: ReleasePlan) -> list[str]:
    faults = [] if plan.version == 1 else [f"version is {plan.version}; this version of Ekiden reads 1"]
    faults += [f"{name} is empty; fill it in" for name in ("name", "owner", "why") if not getattr(plan, name).strip()]
    if not plan.name.replace("-", "").replace("_", "").isalnum():
        faults.append(f"name is {plan.name!r}; use letters, digits, - and _")
    faults += _candidate(plan)
    faults += [
        f"objectives.{name} is {value}; it must be over 0"
        for name, value in msgspec.structs.asdict(plan.objectives).items()
        if not value > 0
    ]
    if not 1 <= plan.approvals.needed <= 9:
        faults.append(f"approvals.needed is {plan.approvals.needed}; it must be from 1 to 9: nothing promotes itself")
    if plan.shadow.failure_condition is not None:
        condition_at("shadow.failureCondition", plan.shadow.failure_condition, faults)
    if plan.shadow.seconds < 0:
        faults.append(f"shadow.seconds is {plan.shadow.seconds}; it must be at least 0")
    return faults + _canary(plan.canary) + _metrics(plan.metrics)


def _candidate(plan: ReleasePlan) -> list[str]:
    if not plan.candidate:
        return ["candidate names no setting; name what changes"]
    names = ", ".join(name for name in Controls.__struct_fields__ if name not in _NOT_OURS)
    faults = [
        f"candidate.{name} cannot be released; these settings can: {names}"
        for name in plan.candidate
        if name in _NOT_OURS
    ]
    try:
        typed_values(plan.candidate)
    except InvalidControls as error:
        faults.append(f"candidate: {error}")
    return faults


def _canary(canary: Canary) -> list[str]:
    faults = [
        f"canary.{name} is {value}; it must be at least {least}"
        for name, least in (
            ("block_seconds", 1), ("burn_in_seconds", 0), ("drain_seconds", 0), ("settle_seconds", 0),
            ("least_requests", 1), ("void_pairs", 0), ("silence_seconds", 1), ("seed", 0),
        )
        if (value := getattr(canary, name)) < least
    ]  # fmt: skip
    if not 0 < canary.alpha < 0.5:
        return [*faults, f"canary.alpha is {canary.alpha}; it must be over 0 and under 0.5"]
    if canary.block_seconds - canary.burn_in_seconds - canary.drain_seconds < _SHORTEST_WINDOW:
        faults.append(
            f"canary.block_seconds is {canary.block_seconds:g}; burn_in_seconds and drain_seconds leave less than "
            f"{_SHORTEST_WINDOW:g} s of it to count requests in"
        )
    least = fewest_pairs(canary.alpha)
    if canary.pairs < least:
        faults.append(
            f"canary.pairs is {canary.pairs}; at alpha {canary.alpha:g} the fewest that can show harm are {least}, "
            f"and n pairs cannot give a p-value under 2^-n"
        )
    return faults


def _metrics(metrics: list[Metric]) -> list[str]:
    faults = [] if metrics else ["metrics: there is none; name at least slo_missed_share"]
    names = [metric.name for metric in metrics]
    faults += [f"metrics[{name}] stands there twice; keep one" for name in set(names) if names.count(name) > 1]
    for metric in metrics:
        where = f"metrics[{metric.name}]"
        if metric.name not in METRICS:
            faults.append(f"{where} is not known; these are: {', '.join(METRICS)}")
        wanted = condition_at(f"{where}.successCondition", metric.success_condition, faults)
        unwanted = metric.failure_condition and condition_at(
            f"{where}.failureCondition", metric.failure_condition, faults
        )
        if wanted and unwanted and wanted.overlaps(unwanted):
            faults.append(
                f"{where}: successCondition and failureCondition can both be met; let them exclude each other"
            )
        if metric.block_failure_condition is not None:
            condition_at(f"{where}.blockFailureCondition", metric.block_failure_condition, faults)
        if metric.failure_limit < 0:
            faults.append(f"{where}.failureLimit is {metric.failure_limit}; it must be at least 0")
    return faults


class ReleaseError(UserError, RuntimeError):
    """A release cannot do what it was asked to; the message says why, and what can be done."""
