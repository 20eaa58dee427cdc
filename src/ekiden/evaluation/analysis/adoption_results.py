"""Evidence: what came out, on which workloads, and for whom."""

from collections import Counter
from typing import Final

from ekiden.evaluation.analysis.told_figures import (
    NOT_MEASURED,
    Told,
    Words,
    both,
    joined,
    ratio_words,
    share,
    times,
)
from ekiden.evaluation.outcome import Label
from ekiden.evaluation.workloads.offer import Kind

KIND_WORDS: Final[dict[str, Words]] = {
    Kind.NORMAL: both("normal", "通常"),
    Kind.HARD: both("hard", "困難"),
    Kind.MISLEADING: both("misleading", "誤解を招く"),
}


def evidence(told: Told) -> list[Words]:
    outcome = told.outcome
    label = both("confirmed", "確認済み") if outcome.label is Label.CONFIRMATORY else both("exploratory", "探索的")
    lines = [
        both(
            f"Verdict ({label['en']}): {outcome.verdict.value}. {outcome.summary.get('en', '')}",
            f"判定（{label['ja']}）：{_VERDICTS[outcome.verdict.value]}。{outcome.summary.get('ja', '')}",
        )
    ]
    for kind, kind_words in KIND_WORDS.items():
        names = [name for name, own in told.kinds.items() if own == kind]
        compared = [
            both(f"{name}: {joined(found)['en']}", f"{name}：{joined(found)['ja']}")
            for name in names
            if (found := [ratio_words(one) for one in told.compared("goodput", name)])
        ]
        shown = both("; ".join(one["en"] for one in compared), "。".join(one["ja"] for one in compared))
        shown = shown if compared else NOT_MEASURED
        lines.append(
            both(
                f"Goodput as a ratio, {kind_words['en']}: {shown['en']}.",
                f"goodput の比（{kind_words['ja']}）：{shown['ja']}。",
            )
        )
    lines += [_worst_subgroup(told), _languages(told), _registered(told)]
    return lines


_VERDICTS: Final = {"adopt": "採用する", "do not adopt": "採用しない", "inconclusive": "判定できない"}


def _worst_subgroup(told: Told) -> Words:
    """The subgroup that the candidate serves worst, and how the baselines serve it, over all workloads."""
    own = [
        one
        for workload in told.kinds
        for one in told.subgroups_of(told.candidate, workload)
        if one.offered and one.scalars.get("slo_attainment") is not None
    ]
    if not own:
        return both("Subgroups: not measured.", "部分集団ごとの値：未測定。")
    worst = min(own, key=lambda one: (one.scalars["slo_attainment"] or 0.0, -one.offered))
    others = [
        both(f"{arm} {share(value)['en']}", f"{arm} は {share(value)['ja']}")
        for arm in told.baselines
        for one in told.subgroups_of(arm, worst.workload)
        if one.subgroup == worst.subgroup and (value := one.scalars.get("slo_attainment")) is not None
    ]
    least, beside = share(worst.scalars["slo_attainment"] or 0.0), joined(others) if others else NOT_MEASURED
    return both(
        f"Worst served subgroup: {worst.subgroup} on {worst.workload}, {least['en']} of {worst.offered} requests in "
        f"time; there, {beside['en']}.",
        f"最も不利な部分集団は {worst.workload} の {worst.subgroup} で、"
        f"{worst.offered} 件中 {least['ja']} が期限内だった。同じ集団で {beside['ja']}。",
    )


def _languages(told: Told) -> Words:
    for workload in told.kinds:
        gaps = told.each(workload, "language_gap", times)
        if gaps is not NOT_MEASURED:
            return both(
                f"The same task in English and Japanese on {workload}, factor between the times taken: {gaps['en']}.",
                f"{workload} で同じ課題を英語と日本語で与えたときの所要時間の開き：{gaps['ja']}。",
            )
    return both("The same task in English and Japanese: not measured.", "同じ課題を英語と日本語で与えた比較：未測定。")


def _registered(told: Told) -> Words:
    """What was said beforehand, and what became of it."""
    falsifiers = Counter(one.met for one in told.outcome.falsifiers)
    held = Counter(one.held for one in told.outcome.predictions)
    return both(
        f"Registered falsifiers: {falsifiers[True]} came true, {falsifiers[False]} did not, {falsifiers[None]} cannot "
        f"be told. Predictions: {held[True]} held, {held[False]} did not, {held[None]} cannot be told.",
        f"登録済みの反証条件：成立 {falsifiers[True]}、不成立 {falsifiers[False]}、判定不能 {falsifiers[None]}。"
        f"事前の予測：的中 {held[True]}、外れ {held[False]}、判定不能 {held[None]}。",
    )
