"""An outcome's figures as words in English and Japanese, for the answers and limits. A missing figure is said to be
missing; none is computed here that the outcome does not hold.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Final

from ekiden.evaluation.analysis.metrics import METRICS
from ekiden.evaluation.outcome import ArmFigures, MetricOutcome, Outcome
from ekiden.evaluation.workloads.offer import Kind

Words = dict[str, str]
Form = Callable[[float], Words]

LANGUAGES: Final = ("en", "ja")
NOT_MEASURED: Final[Words] = {"en": "not measured", "ja": "未測定"}
NOT_ESTIMABLE: Final[Words] = {"en": "not estimable from so few values", "ja": "標本が少なく推定できない"}


def both(english: str, japanese: str) -> Words:
    return {"en": english, "ja": japanese}


def alike(text: str) -> Words:
    """The same in both languages, such as a name or what the plan's owner wrote."""
    return dict.fromkeys(LANGUAGES, text)


def joined(parts: Iterable[Words]) -> Words:
    found = list(parts)
    return both(", ".join(part["en"] for part in found), "、".join(part["ja"] for part in found))


def share(value: float) -> Words:
    return alike(f"{value:.1%}")


def seconds(value: float) -> Words:
    return both(f"{value:.3g} s", f"{value:.3g} 秒")


def number(value: float) -> Words:
    return alike(f"{value:.3g}")


def times(value: float) -> Words:
    return both(f"{value:.3g} times", f"{value:.3g} 倍")


def per_second(value: float) -> Words:
    return both(f"{value:.3g}/s", f"{value:.3g} 件/秒")


def settings_words(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "-"


class Told:
    """What answers ask of an outcome."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._figures = {(found.arm, found.workload): found for found in outcome.figures if not found.subgroup}

    @cached_property
    def candidate(self) -> str:
        return next((arm["name"] for arm in self.outcome.arms if arm["role"] == "candidate"), "")

    @cached_property
    def baselines(self) -> list[str]:
        return [arm["name"] for arm in self.outcome.arms if arm["role"] == "baseline"]

    def settings_of(self, arm: str) -> dict[str, Any]:
        """Its own settings, with what tuning chose."""
        own: dict[str, Any] = next((one["settings"] for one in self.outcome.arms if one["name"] == arm), {})
        chosen = next((tuning.chosen for tuning in self.outcome.tuning if tuning.arm == arm), {})
        return {**own, **chosen}

    @cached_property
    def kinds(self) -> dict[str, str]:
        """The kind of each workload, in the plan's order."""
        return {workload["name"]: str(workload["kind"]) for workload in self.outcome.workloads}

    @cached_property
    def main(self) -> str:
        """The workload that speaks for the whole: the first of kind normal."""
        return next((name for name, kind in self.kinds.items() if kind == Kind.NORMAL), next(iter(self.kinds), ""))

    @cached_property
    def different_settings(self) -> list[str]:
        """Names of the settings in which the candidate and its baselines differ."""
        arms = [self.settings_of(arm) for arm in (self.candidate, *self.baselines)]
        names = dict.fromkeys(name for settings in arms for name in settings)
        return [name for name in names if len({str(settings.get(name)) for settings in arms}) > 1]

    def figures(self, arm: str, workload: str) -> ArmFigures | None:
        return self._figures.get((arm, workload))

    def arms_on(self, workload: str) -> list[str]:
        """The candidate first, then its baselines, as far as they served it."""
        return [arm for arm in (self.candidate, *self.baselines) if (arm, workload) in self._figures]

    def scalar(self, arm: str, workload: str, name: str, form: Form) -> Words:
        """A figure in words; a tail without enough values is not estimable, anything else not measured."""
        assert name in METRICS, f"{name} is no metric"
        found = self.figures(arm, workload)
        value = None if found is None else found.scalars.get(name)
        if value is not None:
            return form(value)
        values, _, level = name.rpartition("_")
        spread = None if found is None else found.distributions.get(values)
        return NOT_ESTIMABLE if level.startswith("p99") and spread is not None and spread.n else NOT_MEASURED

    def each(self, workload: str, name: str, form: Form) -> Words:
        """A figure of each arm: ``continuous 61.0%, static 43.1%``; said once where no arm has it."""
        arms = self.arms_on(workload)
        values = [self.scalar(arm, workload, name, form) for arm in arms]
        if not values or all(value is NOT_MEASURED for value in values):
            return NOT_MEASURED
        if all(value is NOT_ESTIMABLE for value in values):
            return NOT_ESTIMABLE
        return joined(
            both(f"{arm} {value['en']}", f"{arm} は {value['ja']}") for arm, value in zip(arms, values, strict=True)
        )

    def compared(self, metric: str, workload: str) -> list[MetricOutcome]:
        """The comparisons of a metric on a workload, one for each baseline."""
        found = [one for one in self.outcome.metrics if (one.metric, one.workload) == (metric, workload)]
        firsts: dict[str, MetricOutcome] = {}
        for one in found:
            firsts.setdefault(one.baseline, one)
        return list(firsts.values())

    def subgroups_of(self, arm: str, workload: str) -> list[ArmFigures]:
        return [one for one in self.outcome.figures if one.subgroup and (one.arm, one.workload) == (arm, workload)]


def ratio_words(one: MetricOutcome) -> Words:
    """A comparison with its interval: ``1.31 (1.22 to 1.41) against static``."""
    found, signed = one.comparison, "+" if one.comparison.scale == "difference" else ""
    if found.ratio is None:
        shown = both("not estimable", "推定できない")
    elif found.low is None or found.high is None:
        shown = alike(f"{found.ratio:{signed}.3g}")
    else:
        ends = f"{found.low:{signed}.3g}", f"{found.high:{signed}.3g}"
        shown = both(
            f"{found.ratio:{signed}.3g} ({ends[0]} to {ends[1]})", f"{found.ratio:{signed}.3g}（{'〜'.join(ends)}）"
        )
    return both(f"{shown['en']} against {one.baseline}", f"対 {one.baseline} で {shown['ja']}")


def in_languages(lines: Sequence[Words]) -> dict[str, list[str]]:
    """Lines by language, as the outcome holds them."""
    return {language: [line[language] for line in lines] for language in LANGUAGES}
