"""What an evaluation found, whole: the JSON of the report, from which the page is drawn and nothing is computed again.

A figure that could not be had is None, and a note says why. Ratios are candidate / baseline. Seconds throughout.
"""

from enum import IntEnum, StrEnum
from typing import Any

import msgspec

OUTCOME_FORMAT = 1


class Verdict(StrEnum):
    ADOPT = "adopt"
    DO_NOT_ADOPT = "do not adopt"
    INCONCLUSIVE = "inconclusive"


class ExitStatus(IntEnum):
    """Of ``ekiden evaluate confirm`` and ``run``: a pipeline reads the verdict from it."""

    ADOPT = 0
    DO_NOT_ADOPT = 3
    INCONCLUSIVE = 4


class Phase(StrEnum):
    """As analysis runs of Argo Rollouts name them."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCESSFUL = "Successful"
    FAILED = "Failed"
    ERROR = "Error"
    INCONCLUSIVE = "Inconclusive"


class Label(StrEnum):
    """Whether figures count as a confirmation or only as a hint."""

    CONFIRMATORY = "confirmatory"
    EXPLORATORY = "exploratory"


class Comparison(msgspec.Struct, kw_only=True, frozen=True):
    """The ratio of two arms with its interval over blocks. ``low`` and ``high`` are None where it is not estimable."""

    ratio: float | None
    low: float | None
    high: float | None
    blocks: int
    candidate: float | None
    """The candidate's pooled value, and ``baseline`` the other's."""
    baseline: float | None
    block_ratios: list[float | None] = []
    note: str = ""
    scale: str = "ratio"
    """``ratio``; or ``difference``: then all ratios here are candidate - baseline, or ``share``: one value of both."""
    p_value: float | None = None
    """By randomisation, one-sided: how often swapping the arms within blocks does as well for the candidate."""


class MetricOutcome(msgspec.Struct, kw_only=True):
    """One metric of the plan on one workload, candidate against one baseline."""

    metric: str
    formula: str
    unit: str
    direction: str
    """``up``: more is better."""
    workload: str
    candidate: str
    baseline: str
    critical: bool
    phase: Phase
    success_condition: str
    failure_condition: str
    comparison: Comparison
    reason: str
    """One sentence: why this phase."""
    reasons: dict[str, str] = {}
    """The same by language."""
    judged: bool = True
    """False for what was measured without a threshold; its phase is then Pending and says nothing."""


class Falsifier(msgspec.Struct, kw_only=True):
    """A result that would overturn the claim, as registered, and whether it came. ``met`` is None if nobody can say."""

    claim: str
    workload: str
    metric: str
    condition: str
    met: bool | None
    observed: str


class Prediction(msgspec.Struct, kw_only=True):
    """What was expected beforehand, and whether it came."""

    text: str
    held: bool | None
    observed: str


class Distribution(msgspec.Struct, kw_only=True):
    """Quantiles of one figure of one arm. ``p99`` needs 299 values and ``p999`` 2,995; below they are None."""

    n: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    p999: float | None
    max: float | None
    points: list[float] = []
    """The values at 0, 1, 2, ... 100 %, for drawing."""


class ArmFigures(msgspec.Struct, kw_only=True):
    """One arm on one workload, over all its runs that count; or a subgroup of that."""

    arm: str
    workload: str
    subgroup: str
    """Empty for all requests; else such as ``tenant=c143`` or ``language=ja``."""
    offered: int
    good: int
    failures: dict[str, int]
    """All that were not good, by kind; what was answered late among them. With ``good`` they make up ``offered``."""
    seconds: float
    """Sum of the arrival times of its runs."""
    scalars: dict[str, float | None]
    """By names of metrics: ``goodput``, ``slo_attainment``, ``output_tokens_per_second``, ``utilisation``, ..."""
    distributions: dict[str, Distribution]
    """``ttft``, ``tpot``, ``itl``, ``largest_gap``, ``e2e``, ``send_lag``, ``slowdown``; those of subgroups lack
    ``points``, and there is no ``itl`` and no ``send_lag``."""


class WorstCase(msgspec.Struct, kw_only=True):
    """One request that went badly. ``explain`` is the command that tells why, where a ledger was kept."""

    arm: str
    workload: str
    request_id: str
    kind: str
    severity: str
    """``lost``, ``wrong``, ``late`` or ``slow``, from worst to mildest."""
    what: str
    value: float | None
    explain: str | None
    whats: dict[str, str] = {}
    """``what`` by language."""


class Calibrated(msgspec.Struct, kw_only=True):
    """How often the truth lay within what the engine had stated. A range of p10 to p90 should hold 80 % of cases."""

    predicted: str
    """``step time``, ``output length`` or ``wait``."""
    arm: str
    subgroup: str
    stated: float
    """The share that should lie within."""
    observed: float | None
    n: int
    median_relative_error: float | None
    """Of the middle of the range, or of the only value that was stated: |stated - truth| / truth."""
    how: str = ""
    """What was compared with what, in one line."""
    hows: dict[str, str] = {}
    """``how`` by language."""


class Tuning(msgspec.Struct, kw_only=True):
    """How an arm got its settings on dev. Each trial is its settings and the goodput that they gave."""

    arm: str
    chosen: dict[str, Any]
    trials: list[dict[str, Any]]
    how: str


class Curve(msgspec.Struct, kw_only=True):
    """A line of a plot: ``x`` against ``y``, with an interval where there is one."""

    name: str
    x: list[float]
    y: list[float]
    low: list[float] = []
    high: list[float] = []


class Chart(msgspec.Struct, kw_only=True):
    """Data of one plot that is no distribution. ``kind``: ``goodput_rate``, ``fairness_time``, ``gain_variance``."""

    kind: str
    title: str
    x_label: str
    y_label: str
    curves: list[Curve]


class SlotSegment(msgspec.Struct, kw_only=True, array_like=True):
    """A bar of a slot chart: a request in a slot, in seconds from the chart's start."""

    slot: int
    request_id: str
    start: float
    end: float
    output_tokens: int


class SlotChart(msgspec.Struct, kw_only=True):
    """Who held which slot when, in one run."""

    arm: str
    workload: str
    slots: int
    seconds: float
    segments: list[SlotSegment]


class Answer(msgspec.Struct, kw_only=True):
    """One of the seven questions of adoption, answered with figures. Both languages are given."""

    question: dict[str, str]
    """By language: ``en`` and ``ja``."""
    answer: dict[str, list[str]]


class Outcome(msgspec.Struct, kw_only=True):
    """The whole report."""

    format: int = OUTCOME_FORMAT
    verdict: Verdict
    phase: Phase
    label: Label
    summary: dict[str, str]
    """One or two sentences on why this verdict, by language."""
    question: str
    decision: dict[str, Any]
    """The plan's ``[decision]``."""
    falsifiers: list[Falsifier]
    predictions: list[Prediction]
    metrics: list[MetricOutcome]
    """The verdict's grounds first; then what was measured without a threshold."""
    arms: list[dict[str, Any]]
    """Each arm's name, role, settings and, for another server, its address and what that mixes in."""
    workloads: list[dict[str, Any]]
    """Each workload's name, kind, digest, what made it, and how many requests and blocks."""
    figures: list[ArmFigures]
    noise: list[Comparison]
    """The A/A runs: what differs when nothing does."""
    blocks_needed: list[str]
    """For each critical metric: how many blocks the wanted certainty takes at this noise."""
    blocks_needed_ja: list[str] = []
    """The same in Japanese."""
    tuning: list[Tuning]
    calibration: list[Calibrated]
    fairness: list[dict[str, Any]]
    worst: list[WorstCase]
    void: list[str]
    charts: list[Chart]
    slots: list[SlotChart]
    answers: list[Answer]
    limits: dict[str, list[str]]
    """What was not shown, by language."""
    formulas: dict[str, str]
    integrity: list[str]
    """What was found changed since registration; empty if nothing was."""
    registration: dict[str, Any] | None
    lineage: dict[str, Any]
