"""From a plan and its runs to the whole outcome. Nothing here runs anything or reads a clock."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ekiden.evaluation.analysis.answers import answers, limits
from ekiden.evaluation.analysis.calibration import calibrated
from ekiden.evaluation.analysis.comparing import Comparisons
from ekiden.evaluation.analysis.failures import worst_cases
from ekiden.evaluation.analysis.fairness import fairness, fairness_charts
from ekiden.evaluation.analysis.figures import arm_figures
from ekiden.evaluation.analysis.metrics import FORMULAS, METRICS, units
from ekiden.evaluation.analysis.power import blocks_sentence, noise_of
from ekiden.evaluation.analysis.statistics import Words
from ekiden.evaluation.analysis.verdict import falsifiers, metric_outcomes, predictions, summary, verdict_of
from ekiden.evaluation.outcome import (
    Chart,
    Comparison,
    Curve,
    ExitStatus,
    Label,
    Outcome,
    SlotChart,
    Tuning,
    Verdict,
)
from ekiden.evaluation.plan.model import Plan
from ekiden.evaluation.results import ArmRun

VARIANCE_SOURCE = "length-variance"
"""The source of workloads that differ in nothing but how much their output lengths vary."""


def analyse(
    plan: Plan,
    runs: Sequence[ArmRun],
    *,
    label: Label,
    noise_runs: Sequence[ArmRun] = (),
    made: Mapping[str, Mapping[str, Any]] | None = None,
    tuning: Sequence[Tuning] = (),
    integrity: Sequence[str] = (),
    registration: Mapping[str, Any] | None = None,
    lineage: Mapping[str, Any] | None = None,
    slots: Sequence[SlotChart] = (),
    charts: Sequence[Chart] = (),
    ledger_dir: Path | None = None,
) -> Outcome:
    """The outcome of ``runs``, of which the void ones are named and count for nothing.

    ``noise_runs`` has two arms with the same settings, for A against A; without it each arm's runs stand against
    themselves. ``made`` has by workload what made it. A finding in ``integrity`` makes any outcome exploratory.
    """
    label = Label.EXPLORATORY if integrity else label
    comparisons = Comparisons(plan, runs, METRICS, label)
    counted = [run for run in runs if run.void is None]
    overturned, outcomes = falsifiers(comparisons), metric_outcomes(comparisons)
    verdict, phase = verdict_of(outcomes, overturned)
    noise, needed = _noise(comparisons, noise_runs)
    outcome = Outcome(
        verdict=verdict,
        phase=phase,
        label=label,
        summary=summary(verdict, outcomes, overturned, label),
        question=plan.decision.question,
        decision=msgspec.to_builtins(plan.decision),
        falsifiers=overturned,
        predictions=predictions(comparisons),
        metrics=outcomes,
        arms=_arms(plan),
        workloads=_workloads(plan, runs, made or {}),
        figures=arm_figures(plan, counted),
        noise=noise,
        blocks_needed=[words["en"] for words in needed],
        blocks_needed_ja=[words["ja"] for words in needed],
        tuning=list(tuning),
        calibration=calibrated(counted, ledger_dir),
        fairness=fairness(plan, counted),
        worst=worst_cases(plan, counted, ledger_dir),
        void=void_runs(runs),
        charts=[*charts, *gain_by_variance(comparisons), *fairness_charts(plan, counted)],
        slots=list(slots),
        answers=[],
        limits={},
        formulas=dict(FORMULAS),
        units=units(plan.objectives),
        integrity=list(integrity),
        registration=None if registration is None else dict(registration),
        lineage=dict(lineage or {}),
    )
    outcome.answers, outcome.limits = answers(outcome), limits(outcome)
    return outcome


def exit_status(outcome: Outcome) -> ExitStatus:
    """What ``ekiden evaluate run`` and ``confirm`` end with."""
    statuses = {
        Verdict.ADOPT: ExitStatus.ADOPT,
        Verdict.DO_NOT_ADOPT: ExitStatus.DO_NOT_ADOPT,
        Verdict.INCONCLUSIVE: ExitStatus.INCONCLUSIVE,
    }
    return statuses[outcome.verdict]


def void_runs(runs: Iterable[ArmRun]) -> list[str]:
    """One line for each void run."""
    return [
        f"{run.arm} on {run.workload}, block {run.block}, place {run.position}: {run.void}"
        for run in runs
        if run.void is not None
    ]


def gain_by_variance(comparisons: Comparisons) -> list[Chart]:
    """Goodput against each baseline by the coefficient of variation of the output lengths that were offered."""
    names = [spec.name for spec in comparisons.plan.workloads if spec.source == VARIANCE_SOURCE]
    curves: dict[str, list[tuple[float, float, float, float]]] = {}
    for workload in names:
        variation = _length_variation(run for run in comparisons.runs if run.workload == workload)
        if variation is None or not comparisons.has_candidate(workload):
            continue
        for baseline in comparisons.against(workload):
            found = comparisons.estimate("goodput", workload, baseline)
            if found.value is not None:
                ends = (_or(found.low, found.value), _or(found.high, found.value))
                curves.setdefault(baseline, []).append((variation, found.value, *ends))
    if not curves:
        return []
    drawn = []
    for baseline, points in curves.items():
        x, y, low, high = (list(column) for column in zip(*sorted(points), strict=True))
        drawn.append(Curve(name=baseline, x=x, y=y, low=low, high=high))
    return [
        Chart(
            kind="gain_variance",
            title="Gain against the variance of output length",
            x_label="standard deviation / mean of output lengths",
            y_label="goodput, candidate / baseline",
            curves=drawn,
        )
    ]


def _noise(comparisons: Comparisons, noise_runs: Sequence[ArmRun]) -> tuple[list[Comparison], list[Words]]:
    """A against A for each critical metric on its workloads, and how many blocks that asks for."""
    shown: list[Comparison] = []
    needed: list[Words] = []
    for metric in comparisons.plan.metrics:
        if not metric.critical:
            continue
        for workload in comparisons.workloads_of(metric):
            own_arms = {run.arm for run in noise_runs if run.workload == workload}
            found = noise_of(comparisons, METRICS[metric.name], workload, noise_runs)
            for one in found:
                noise = one.comparison()
                note = "; ".join(filter(None, (f"{metric.name} on {workload}", noise.note)))
                shown.append(msgspec.structs.replace(noise, note=note))
            if found:
                sentence = blocks_sentence(comparisons, metric, workload, found, halved=len(own_arms) != 2)
                needed += [] if sentence is None else [sentence]
    return shown, needed


def _arms(plan: Plan) -> list[dict[str, Any]]:
    mixed = "Another server: the comparison mixes engine, kernels and memory with scheduling."
    return [
        {
            "name": name,
            "role": arm.role,
            "settings": dict(arm.settings),
            "url": arm.url,
            "mixes": mixed if arm.url else "",
        }
        for name, arm in plan.arms.items()
    ]


def _workloads(plan: Plan, runs: Sequence[ArmRun], made: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each workload with what was run of it."""
    listed = []
    for spec in plan.workloads:
        digests = {run.block: run.workload_digest for run in runs if run.workload == spec.name}
        requests = {run.block: len(run.results) for run in runs if run.workload == spec.name}
        listed.append(
            {
                "name": spec.name,
                "kind": spec.kind.value,
                "source": spec.source,
                "change": list(spec.change),
                "engine": dict(spec.engine),
                "made": dict(made.get(spec.name, {})),
                "digests": [digests[block] for block in sorted(digests)],
                "requests": sum(requests.values()),
                "blocks": len(digests),
            }
        )
    return listed


def _length_variation(runs: Iterable[ArmRun]) -> float | None:
    lengths = [answer.output_tokens for run in runs for answer in run.results]
    mean = float(np.mean(lengths)) if lengths else 0.0
    return float(np.std(lengths)) / mean if mean > 0 else None


def _or(bound: float | None, value: float) -> float:
    return bound if bound is not None and math.isfinite(bound) else value
