"""The plan of an evaluation, as its TOML file holds it. Everything that decides the verdict stands here beforehand.

Names follow what people know from Argo Rollouts and Kayenta where those have one.
"""

from typing import Any

import msgspec

from ekiden.evaluation.workloads.spec import WorkloadSpec as WorkloadSpec


class Decision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be decided, by whom, and what hangs on it. No field may be empty."""

    question: str
    affected: str
    """The population: whose requests the figures shall speak for."""
    wrong_result: str
    """What a wrong answer costs, and whom."""
    known_at_decision_time: str
    """What the scheduler knows when it decides, such as prompt length, tenant and stated limit."""
    simplest_alternative: str
    """The simplest credible alternative; one of the arms stands for it."""
    owner: str


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all arms share: the same model, kernels and memory. ``settings`` are those of `ekiden config show`."""

    model: str = "smollm2-135m"
    settings: dict[str, Any] = {}
    """Such as ``kv_cache_size`` and ``threads``."""


class Objectives(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When an answer is good: whole, its first token within ``ttft`` and its TPOT within ``tpot``, in seconds."""

    ttft: float
    tpot: float
    attainment: float = 0.99
    """The share of all offered requests that must be good, for the highest rate that counts as held."""
    price_per_machine_hour: float | None = None
    currency: str = ""


class Arm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to serve. ``tune`` has for settings the values that are tried on dev before anything is compared."""

    role: str = "baseline"
    """``candidate`` (exactly one), ``baseline`` (at least one) or ``other`` (measured and reported only)."""
    settings: dict[str, Any] = {}
    tune: dict[str, list[Any]] = {}
    url: str | None = None
    """Another server: then the comparison mixes more than scheduling, and the report says so."""
    model_id: str | None = None


class Metric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A threshold fixed beforehand. ``result`` in a condition is candidate / baseline.

    The metric succeeds where the whole interval meets ``successCondition``, fails where all of it meets
    ``failureCondition``, and is inconclusive otherwise. A guardrail has a ``margin`` in place of conditions: the
    candidate may be worse by that share.
    """

    name: str
    direction: str
    """``up``: more is better; ``down``: less is."""
    workloads: list[str] = []
    """All workloads of kind normal if none is named."""
    success_condition: str | None = None
    failure_condition: str | None = None
    margin: float | None = None
    inconclusive_limit: int = 0
    """Void or missing blocks that are borne before the metric counts as inconclusive."""
    critical: bool = False
    """Whether its failure decides the verdict by itself."""
    must_have_data: bool = True
    """Whether missing data fails it."""


class Stop(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a run is given up."""

    seconds: float = 7200.0
    void_runs: int = 8
    errors: int = 3
    """Runs in which an arm failed altogether."""


class Confirm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The one run that counts, on data that nobody has tuned on."""

    blocks: int
    confidence: float = 0.95
    """Of the one-sided bounds on each critical metric."""
    seed: int = 0
    power: float = 0.8
    """With what probability a true effect as large as the threshold asks for shall be found."""


class Falsifies(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result that would overturn the claim."""

    claim: str
    workload: str
    metric: str
    condition: str
    """Of ``result``, such as ``result > 1.1``; met where the whole interval meets it."""


class Predicted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is expected, registered so that nobody can have known it all along."""

    text: str
    workload: str
    metric: str
    condition: str


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    decision: Decision
    engine: EngineSettings
    objectives: Objectives
    arms: dict[str, Arm]
    workloads: list[WorkloadSpec]
    metrics: list[Metric]
    confirm: Confirm
    falsifies: list[Falsifies]
    """At least one."""
    predictions: list[Predicted] = []
    stop: Stop = Stop()
    dev_blocks: int = 2
    """Blocks of an exploratory run, on dev, which also serve A against A."""
