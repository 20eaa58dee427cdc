"""All metrics that a plan can name, each with the formula that is printed beside it.

Formulas of single requests and of steps stand in :mod:`ekiden.measure.figures` and are only quoted here.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ekiden.evaluation.analysis import requests, service
from ekiden.evaluation.analysis.agreement import TOKENS_EQUAL
from ekiden.evaluation.analysis.costs import COSTS, TOTALS
from ekiden.evaluation.analysis.metric import MetricDef, Sums, Values, number_of_values, pooled_percentile
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.results import ArmRun, StepTotals
from ekiden.measure.figures import FORMULAS as MEASURED
from ekiden.measure.percentiles import MIN_VALUES_FOR_P99, MIN_VALUES_FOR_P999

Shares = Mapping[str, tuple[int, int]]
"""By tenant: good and offered requests."""

DISTRIBUTIONS: Final = {
    "ttft": MEASURED["ttft_seconds"],
    "tpot": MEASURED["tpot_seconds"],
    "itl": MEASURED["itl_seconds"],
    "largest_gap": MEASURED["itl_max_seconds"],
    "e2e": MEASURED["e2e_seconds"],
    "send_lag": MEASURED["send_lag_seconds"],
    "slowdown": "e2e / e2e of the same request alone on an idle server, measured or predicted by the step-time model",
}
"""The formulas of the values behind percentiles: of whole answers, but ``send_lag`` of all requests that were sent."""


def _rate(name: str, formula: str, unit: str, direction: str, of_run: Callable[..., Any], **how: Any) -> MetricDef:
    return MetricDef(name=name, formula=formula, unit=unit, direction=direction, of_run=of_run, **how)


def _percentile(values: str, level: float) -> MetricDef:
    """A percentile of one of :data:`DISTRIBUTIONS`; for p99 and above with the fewest values that can carry it."""
    least = MIN_VALUES_FOR_P999 if level > 99 else MIN_VALUES_FOR_P99 if level >= 99 else 1
    asks = f"; needs {least:,} values" if least > 1 else ""

    def of_run(run: ArmRun, _: Objectives) -> Values:
        return np.array(requests.values(run.results, values), np.float64)

    return MetricDef(
        name=f"{values}_p{level:g}".replace(".", ""),
        formula=f"p{level:g} of: {DISTRIBUTIONS[values]}{asks}",
        unit="" if values == "slowdown" else "s",
        direction="down",
        of_run=of_run,
        pooled=pooled_percentile(level),
        min_values=least,
        count=number_of_values,
    )


def _goodput(run: ArmRun, objectives: Objectives) -> Sums:
    return Sums(requests.num_good(run, objectives), run.arrival_seconds)


def _attainment(run: ArmRun, objectives: Objectives) -> Sums:
    return Sums(requests.num_good(run, objectives), len(run.results))


def _errors(run: ArmRun, _: Objectives) -> Sums:
    return Sums(sum(not requests.whole(result) for result in run.results), len(run.results))


def _output_tokens(run: ArmRun, _: Objectives) -> Sums:
    return Sums(sum(result.record.output_tokens for result in run.results if requests.whole(result)), run.seconds)


def _total_tokens(run: ArmRun, objectives: Objectives) -> Sums:
    prompts = sum(result.prompt_tokens for result in run.results if requests.whole(result))
    return Sums(prompts + _output_tokens(run, objectives).amount, run.seconds)


def _tenants(run: ArmRun, objectives: Objectives) -> Shares:
    found: dict[str, tuple[int, int]] = {}
    for result in run.results:
        good, offered = found.get(result.tenant, (0, 0))
        found[result.tenant] = good + requests.good(result, objectives), offered + 1
    return found


def _attainments(parts: Sequence[Shares]) -> list[float]:
    """Each tenant's attainment over all its requests in the runs."""
    sums: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for part in parts:
        for tenant, (good, offered) in part.items():
            sums[tenant] = sums[tenant][0] + good, sums[tenant][1] + offered
    return [good / offered for good, offered in sums.values()]


def _worst(parts: Sequence[Shares]) -> float | None:
    return min(_attainments(parts), default=None)


def _apart(parts: Sequence[Shares]) -> float | None:
    """The best tenant less the worst; None for one tenant, which cannot be treated unequally."""
    found = _attainments(parts)
    return max(found) - min(found) if len(found) > 1 else None


def _slowdowns(run: ArmRun, _: Objectives) -> Values:
    return np.array(requests.values(run.results, "slowdown"), np.float64)


def _service_gap(run: ArmRun, _: Objectives) -> Sums | None:
    gap = service.service_gap(run)
    return None if gap is None else Sums(gap.share, 1)


def _language_gap(run: ArmRun, _: Objectives) -> Values:
    return np.array(requests.language_log_ratios(run.results), np.float64)


def _gap_factor(parts: Sequence[Values]) -> float | None:
    """The geometric mean of the ratios, turned so that it is at least 1, whichever language is slower."""
    ratios = np.concatenate(parts)
    return float(np.exp(abs(ratios.mean()))) if ratios.size else None


def _of_steps(amount: Callable[[StepTotals], float], per: Callable[[StepTotals], float]) -> Callable[..., Sums | None]:
    """Shares of steps: None for a run whose engine was out of reach."""
    return lambda run, _: None if run.steps is None else Sums(amount(run.steps), per(run.steps))


def _preemptions(run: ArmRun, _: Objectives) -> Sums | None:
    return None if run.steps is None else Sums(run.steps.preemptions, len(run.results))


_ALL: Final = (
    _rate("goodput", MEASURED["goodput_per_second"], "requests/s", "up", _goodput),
    _rate("slo_attainment", MEASURED["slo_attainment"], "share", "up", _attainment),
    *(_percentile("ttft", level) for level in (50, 95, 99, 99.9)),
    *(_percentile("tpot", level) for level in (50, 95, 99)),
    _percentile("itl", 99),
    _percentile("itl", 99.9),
    *(_percentile("largest_gap", level) for level in (50, 99)),
    *(_percentile("e2e", level) for level in (50, 95, 99)),
    _rate(
        "output_tokens_per_second",
        "output tokens of whole answers / seconds from the start of the arrivals to the end of the last answer",
        "tokens/s",
        "up",
        _output_tokens,
    ),
    _rate(
        "total_tokens_per_second",
        "prompt and output tokens of whole answers / seconds as for output tokens",
        "tokens/s",
        "up",
        _total_tokens,
    ),
    _rate(
        "worst_tenant_attainment",
        "lowest over the tenants of: the tenant's good / all its offered requests",
        "share",
        "up",
        _tenants,
        pooled=_worst,
        scale="difference",
    ),
    _rate(
        "attainment_gap",
        "highest less lowest over the tenants of: the tenant's good / all its offered requests",
        "share",
        "down",
        _tenants,
        pooled=_apart,
        scale="difference",
    ),
    _percentile("slowdown", 99),
    _rate(
        "slowdown_max",
        f"largest of: {DISTRIBUTIONS['slowdown']}",
        "",
        "down",
        _slowdowns,
        pooled=pooled_percentile(100),
    ),
    _rate("service_gap", f"mean over runs of: {service.FORMULA}", "share", "down", _service_gap),
    _rate(
        "errors",
        "requests without a whole answer (refused, timed out, failed) / all offered",
        "share",
        "down",
        _errors,
        scale="difference",
    ),
    TOKENS_EQUAL,
    *COSTS,
    _rate(
        "utilisation",
        MEASURED["slot_utilisation"],
        "share",
        "up",
        _of_steps(lambda steps: steps.useful_slot_steps, lambda steps: steps.slot_steps),
    ),
    _rate(
        "budget_share",
        MEASURED["budget_share"],
        "share",
        "up",
        _of_steps(lambda steps: steps.computed_tokens, lambda steps: steps.budget_tokens),
    ),
    _rate(
        "kv_share",
        MEASURED["kv_share"],
        "share",
        "up",
        _of_steps(lambda steps: steps.used_block_steps, lambda steps: steps.block_steps),
    ),
    _rate(
        "host_share",
        MEASURED["host_share"],
        "share",
        "down",
        _of_steps(lambda steps: steps.seconds - steps.model_seconds, lambda steps: steps.seconds),
    ),
    _rate(
        "preemptions",
        "answers put back to the queue to free KV blocks / all offered requests",
        "per request",
        "down",
        _preemptions,
        scale="difference",
    ),
    _rate(
        "language_gap",
        "exp |mean of ln(e2e in the other language / e2e in English)| over pairs of the same task, both answered whole "
        "in the same run; 1 is equal",
        "",
        "down",
        _language_gap,
        pooled=_gap_factor,
    ),
)

PERCENTILES: Final = {
    name: values for metric in _ALL for values in DISTRIBUTIONS if (name := metric.name).rpartition("_")[0] == values
}
"""Which distribution a metric is a percentile of."""

METRICS: Final[dict[str, MetricDef]] = {metric.name: metric for metric in _ALL}
"""By name: what a plan may ask for."""

FORMULAS: Final[dict[str, str]] = {
    "good": MEASURED["good"],
    "percentiles": MEASURED["percentiles"],
    **{name: metric.formula for name, metric in METRICS.items()},
    **DISTRIBUTIONS,
    **TOTALS,
    "largest_service_gap": "the largest, over runs, of what service_gap is the mean of",
    "other_to_english_e2e": "exp(mean of ln(e2e in the other language / e2e in English)) over the same pairs",
    "other_to_english_ttft": "the same of ttft",
    "jain": "(sum of x)^2 / (tenants x sum of x^2), x = the tenant's attainment; never to be read alone",
}
"""Of all figures of the report, by name."""


def units(objectives: Objectives) -> dict[str, str]:
    """The unit of each scalar by name; empty for plain ratios, and for money without a currency."""
    return {
        **{name: metric.unit for name, metric in METRICS.items()},
        "cost": objectives.currency,
        "cost_per_good": objectives.currency,
        "machine_seconds": "s",
        "cpu_seconds": "s",
        "joules": "J",
        "largest_service_gap": "share",
    }
