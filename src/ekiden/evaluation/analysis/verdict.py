"""From comparisons to phases, and from phases to one of three verdicts. All thresholds are the plan's.

- A metric is judged against every baseline; the verdict ``adopt`` needs each critical one Successful against each of
  them, and so against the best tuned one. Since all must succeed, their number needs no correction on that side.
- A margin is a pair of conditions: Successful where the whole interval is within it, Failed where all of it is beyond.
- ``do not adopt`` follows from a falsifier that is met, and from a critical metric that is Failed or lacks its data.
  One failure is enough, so their number is corrected for: a critical metric is Failed where the interval meets its
  failure condition at 1 - (1 - confidence) / number of critical comparisons (Bonferroni).
- Everything else is inconclusive, and waits for a person.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ekiden.evaluation.analysis.comparing import Comparisons
from ekiden.evaluation.analysis.statistics import Estimate, Words
from ekiden.evaluation.outcome import Falsifier, Label, MetricOutcome, Phase, Prediction, Verdict
from ekiden.evaluation.plan.conditions import Condition
from ekiden.evaluation.plan.model import Falsifies, Metric, Predicted

_DECIDING: Final = (Phase.FAILED, Phase.ERROR)
_ORDER: Final = (Phase.ERROR, Phase.FAILED, Phase.INCONCLUSIVE, Phase.SUCCESSFUL)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What a result must meet, and what fails it; None where the plan says nothing of it."""

    success: Condition | None
    failure: Condition | None

    @classmethod
    def of(cls, metric: Metric, scale: str) -> "Thresholds":
        """From the metric's conditions, or from its margin: of a ratio a share, of a difference the figure's own unit.
        Without either, a share of two arms' answers has to be 1."""
        if metric.margin is None and scale != "share":
            texts: tuple[str | None, str | None] = (metric.success_condition, metric.failure_condition)
        elif metric.margin is None and (metric.success_condition or metric.failure_condition):
            texts = (metric.success_condition, metric.failure_condition)
        else:
            margin, middle = metric.margin or 0.0, 0.0 if scale == "difference" else 1.0
            if metric.direction == "up":
                texts = (f"result >= {middle - margin:.6g}", f"result < {middle - margin:.6g}")
            else:
                texts = (f"result <= {middle + margin:.6g}", f"result > {middle + margin:.6g}")
        return cls(*(Condition.parse(text) if text else None for text in texts))


def judged(
    metric: Metric, found: Estimate, thresholds: Thresholds, *, planned: int, failing: float
) -> tuple[Phase, Words]:
    """The phase of one comparison and why. ``planned`` blocks less those that count are missing; ``failing`` is the
    confidence that a failure takes."""
    note = {language: f"{': ' if language == 'en' else '：'}{text}" for language, text in found.notes.items()}
    if found.missing:
        phase = Phase.ERROR if metric.must_have_data else Phase.INCONCLUSIVE
        return phase, _sentence("Data are missing{note}.", "データがない{note}。", note)
    counted = _counted(found, thresholds, note) if found.scale == "share" else None
    if counted is not None and counted[0] is Phase.FAILED:
        return counted
    lost = max(0, planned - found.blocks)
    if lost > metric.inconclusive_limit:
        return Phase.INCONCLUSIVE, _both(
            f"{lost} of {planned} blocks are void or missing; at most {metric.inconclusive_limit} may be.",
            f"{planned} ブロックのうち {lost} が無効か欠けている（許容は {metric.inconclusive_limit} まで）。",
        )
    if counted is not None:
        return counted
    if found.low is None or found.high is None:
        return Phase.INCONCLUSIVE, _sentence("There is no interval{note}.", "区間が求まらない{note}。", note)
    english, japanese = interval(found), interval(found, "ja")
    success, failure = thresholds.success, thresholds.failure
    if success is not None and success.holds_for_all(found.low, found.high) is True:
        return Phase.SUCCESSFUL, _both(
            f"The whole interval, {english}, meets {success}.", f"区間 {japanese}の全体が {success} を満たす。"
        )
    if failure is not None and failure.holds_for_all(found.low, found.high) is True:
        if failure.holds_for_all(*found.at(failing)) is True:
            return Phase.FAILED, _both(
                f"The whole interval, {english}, meets {failure}.", f"区間 {japanese}の全体が {failure} を満たす。"
            )
        return Phase.INCONCLUSIVE, _both(
            f"The whole interval, {english}, meets {failure}, but not at the {failing:.2%} that so many critical "
            "comparisons ask for.",
            f"区間 {japanese}の全体が {failure} を満たすが、"
            f"重要な比較の数に応じた信頼度 {failing:.2%} では満たさない。",
        )
    given = [str(one) for one in (success, failure) if one is not None]
    return Phase.INCONCLUSIVE, _both(
        f"The interval, {english}, does not wholly meet {' nor '.join(given)}.",
        f"区間 {japanese}の全体としては {' も '.join(given)} も満たさない。",
    )


def _counted(found: Estimate, thresholds: Thresholds, note: Words) -> tuple[Phase, Words]:
    """The phase of what was counted rather than estimated. Blocks that are missing cannot undo what was seen."""
    assert found.value is not None
    value = f"{found.value:.4g}"
    for condition, phase in ((thresholds.failure, Phase.FAILED), (thresholds.success, Phase.SUCCESSFUL)):
        if condition is not None and condition.holds(found.value):
            return phase, _sentence(
                f"The value, {value}, meets {condition}{{note}}.", f"値 {value} は {condition} を満たす{{note}}。", note
            )
    return Phase.INCONCLUSIVE, _sentence(
        f"The value, {value}, meets no condition{{note}}.", f"値 {value} はどの条件も満たさない{{note}}。", note
    )


def metric_outcomes(comparisons: Comparisons) -> list[MetricOutcome]:
    """What is judged; then the same metrics where the plan has no threshold for them: on other workloads, and against
    arms that are no baseline."""
    outcomes = judged_outcomes(comparisons)
    seen = {(outcome.metric, outcome.workload, outcome.baseline) for outcome in outcomes}
    for metric in comparisons.plan.metrics:
        for spec in comparisons.plan.workloads:
            if not comparisons.has_candidate(spec.name):
                continue
            for other in (*comparisons.against(spec.name), *comparisons.against(spec.name, "other")):
                if (metric.name, spec.name, other) not in seen:
                    seen.add((metric.name, spec.name, other))
                    outcomes.append(_outcome(comparisons, metric, spec.name, other, is_judged=False))
    return outcomes


def judged_outcomes(comparisons: Comparisons) -> list[MetricOutcome]:
    """Every metric of the plan on its workloads against each baseline: the critical ones first, the worst leading."""
    outcomes = [
        _outcome(comparisons, metric, workload, baseline, is_judged=True)
        for metric in comparisons.plan.metrics
        for workload in comparisons.workloads_of(metric)
        for baseline in comparisons.against(workload)
    ]
    return sorted(outcomes, key=lambda outcome: (not outcome.critical, _ORDER.index(outcome.phase)))


def falsifiers(comparisons: Comparisons) -> list[Falsifier]:
    """Each registered falsifier, against the best baseline of its workload. One whose interval meets the condition only
    in part is not met; without an interval nobody can say."""
    found = []
    for one in comparisons.plan.falsifies:
        is_known, holds, observed = _observed(comparisons, one)
        met = holds is True if is_known else None
        found.append(
            Falsifier(
                claim=one.claim,
                workload=one.workload,
                metric=one.metric,
                condition=one.condition,
                met=met,
                observed=observed,
            )
        )
    return found


def predictions(comparisons: Comparisons) -> list[Prediction]:
    """Each registered prediction, against the best baseline: it held where the whole interval meets it, it did not
    where no part does, and otherwise nobody can say."""
    found = []
    for one in comparisons.plan.predictions:
        _, holds, observed = _observed(comparisons, one)
        found.append(Prediction(text=one.text, held=holds, observed=observed))
    return found


def verdict_of(outcomes: Sequence[MetricOutcome], overturned: Sequence[Falsifier]) -> tuple[Verdict, Phase]:
    """The verdict and the phase of the whole. A falsifier of which nobody can say whether it is met bars ``adopt``."""
    phases = [outcome.phase for outcome in outcomes if outcome.critical and outcome.judged]
    if any(one.met for one in overturned) or any(phase in _DECIDING for phase in phases):
        failed = any(one.met for one in overturned) or Phase.FAILED in phases
        return Verdict.DO_NOT_ADOPT, Phase.FAILED if failed else Phase.ERROR
    can_be_said = all(one.met is not None for one in overturned)
    if phases and can_be_said and all(phase is Phase.SUCCESSFUL for phase in phases):
        return Verdict.ADOPT, Phase.SUCCESSFUL
    return Verdict.INCONCLUSIVE, Phase.INCONCLUSIVE


def summary(
    verdict: Verdict, outcomes: Sequence[MetricOutcome], overturned: Sequence[Falsifier], label: Label
) -> Words:
    """One or two sentences on why this verdict."""
    critical = [outcome for outcome in outcomes if outcome.critical and outcome.judged]
    words = _why(verdict, critical, overturned)
    if label is Label.EXPLORATORY:
        words = {
            "en": f"{words['en']} This is exploratory: it confirms nothing.",
            "ja": f"{words['ja']}探索的な結果であり、何かを確認したものではない。",
        }
    return words


def interval(found: Estimate, language: str = "en") -> str:
    """Such as ``1.31 (1.22 to 1.41)``; differences have their sign."""
    if found.value is None and found.baseline != 0:
        return found.notes.get(language, "")
    value = _figure(math.inf if found.value is None else found.value, found.scale)
    if found.low is None or found.high is None:
        return value
    if found.scale == "share":
        return value
    low, high = _figure(found.low, found.scale), _figure(found.high, found.scale)
    return f"{value} ({low} to {high})" if language == "en" else f"{value}（{low}〜{high}）"


def _why(verdict: Verdict, critical: Sequence[MetricOutcome], overturned: Sequence[Falsifier]) -> Words:
    met = [one for one in overturned if one.met]
    if met:
        return _both(
            f"A registered falsifier came true: {met[0].claim} ({met[0].metric} on {met[0].workload}: "
            f"{met[0].observed}).",
            f"登録済みの反証条件が成立した：{met[0].claim}"
            f"（{met[0].workload} の {met[0].metric}：{met[0].observed}）。",
        )
    bad = [outcome for outcome in critical if outcome.phase in _DECIDING]
    if verdict is Verdict.DO_NOT_ADOPT:
        first, more = bad[0], len(bad) - 1
        return _both(
            f"{len(bad)} of {len(critical)} critical comparisons failed; first {_place(first)}: {first.reason}",
            f"重要な比較 {len(critical)} 件のうち {len(bad)} 件が不合格。{'たとえば ' if more else ''}"
            f"{_place(first, 'ja')}：{first.reasons['ja']}",
        )
    if verdict is Verdict.ADOPT:
        least = [outcome for outcome in critical if outcome.success_condition and outcome.comparison.scale == "ratio"]
        shown = least[0] if least else critical[0]
        return _both(
            f"All {len(critical)} critical comparisons met their thresholds against every baseline, and no falsifier "
            f"came true. {_place(shown)}: {shown.reason}",
            f"重要な比較 {len(critical)} 件がすべての基準に対して条件を満たし、反証条件は成立しなかった。"
            f"{_place(shown, 'ja')}：{shown.reasons['ja']}",
        )
    undecided = [outcome for outcome in critical if outcome.phase is Phase.INCONCLUSIVE]
    if undecided:
        first = undecided[0]
        return _both(
            f"{len(undecided)} of {len(critical)} critical comparisons are undecided; first {_place(first)}: "
            f"{first.reason}",
            f"重要な比較 {len(critical)} 件のうち {len(undecided)} 件が判定できない。{_place(first, 'ja')}："
            f"{first.reasons['ja']}",
        )
    unknown = [one for one in overturned if one.met is None]
    if unknown:
        return _both(
            f"Nobody can say whether a registered falsifier came true: {unknown[0].claim} ({unknown[0].observed}).",
            f"登録済みの反証条件が成立したかどうか判定できない：{unknown[0].claim}（{unknown[0].observed}）。",
        )
    return _both("The plan has no critical metric.", "計画に重要な指標がない。")


def _outcome(
    comparisons: Comparisons, metric: Metric, workload: str, baseline: str, *, is_judged: bool
) -> MetricOutcome:
    found = comparisons.estimate(metric.name, workload, baseline)
    defined = comparisons.metrics[metric.name]
    thresholds = Thresholds.of(metric, found.scale)
    if is_judged:
        planned, failing = comparisons.planned_blocks(workload), _failing(comparisons, metric)
        phase, reasons = judged(metric, found, thresholds, planned=planned, failing=failing)
    else:
        phase, reasons = Phase.PENDING, _both("Measured without a threshold.", "しきい値なしで測定した。")
        thresholds = Thresholds(None, None)
    return MetricOutcome(
        metric=metric.name,
        formula=defined.formula,
        unit=defined.unit,
        direction=metric.direction,
        workload=workload,
        candidate=comparisons.candidate,
        baseline=baseline,
        critical=metric.critical and is_judged,
        phase=phase,
        success_condition=str(thresholds.success or ""),
        failure_condition=str(thresholds.failure or ""),
        comparison=found.comparison(),
        reason=reasons["en"],
        reasons=reasons,
        judged=is_judged,
    )


def _failing(comparisons: Comparisons, metric: Metric) -> float:
    """The confidence at which the metric can fail."""
    confidence = comparisons.plan.confirm.confidence
    if not metric.critical:
        return confidence
    count = sum(
        len(comparisons.against(workload))
        for one in comparisons.plan.metrics
        if one.critical and comparisons.metrics[one.name].pair_value is None
        for workload in comparisons.workloads_of(one)
    )
    return 1 - (1 - confidence) / max(1, count)


def _observed(comparisons: Comparisons, one: Falsifies | Predicted) -> tuple[bool, bool | None, str]:
    """Whether there is an interval, whether it meets the condition (None: in part), and what was seen."""
    baseline = comparisons.best_baseline(one.metric, one.workload)
    if baseline is None:
        others = comparisons.against(one.workload)
        if not others or comparisons.metrics[one.metric].pair_value is None:
            return False, None, "not measured"
        baseline = others[0]
    found = comparisons.estimate(one.metric, one.workload, baseline)
    text = f"{comparisons.candidate} / {baseline}: {interval(found)}"
    if found.low is None or found.high is None:
        return False, None, text
    return True, Condition.parse(one.condition).holds_for_all(found.low, found.high), text


def _place(outcome: MetricOutcome, language: str = "en") -> str:
    if language == "ja":
        return f"{outcome.workload} の {outcome.metric}（対 {outcome.baseline}）"
    return f"{outcome.metric} on {outcome.workload} against {outcome.baseline}"


def _figure(number: float, scale: str) -> str:
    if math.isinf(number):
        return "∞"
    return f"{number:+.3g}" if scale == "difference" else f"{number:.3g}"


def _both(english: str, japanese: str) -> Words:
    return {"en": english, "ja": japanese}


def _sentence(english: str, japanese: str, note: Words) -> Words:
    """The sentences with the note of their language put in its place."""
    return {
        "en": english.replace("{note}", note.get("en", "")),
        "ja": japanese.replace("{note}", note.get("ja", "")),
    }
