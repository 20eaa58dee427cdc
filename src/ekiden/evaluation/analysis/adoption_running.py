"""Operation and risk: what it costs to run, and how harm would be noticed first."""

from collections import Counter
from typing import Any, Final

from ekiden.evaluation.analysis.told_figures import (
    NOT_MEASURED,
    Told,
    Words,
    alike,
    both,
    joined,
    number,
    seconds,
    share,
    times,
)

ALERTS: Final = (
    "EkidenTimeToFirstTokenHigh",
    "EkidenInterTokenLatencyHigh",
    "EkidenPreemptionThrash",
    "EkidenRequestsRefused",
)
"""Those of the packaged Prometheus rules that tell of a tail that grows."""


def operation(told: Told) -> list[Words]:
    main = told.main

    def line(english: str, japanese: str, **figures: tuple[str, Any]) -> Words:
        """The figures of the main workload put in their places."""
        words = {key: told.each(main, name, form) for key, (name, form) in figures.items()}
        return both(
            english.format(**{key: value["en"] for key, value in words.items()}),
            japanese.format(**{key: value["ja"] for key, value in words.items()}),
        )

    settings = ", ".join(told.different_settings) or "-"
    return [
        line(
            f"Latency on {main}: first token p99 {{ttft}}; time per output token p50 {{tpot}}.",
            f"{main} での遅延。最初のトークンの p99：{{ttft}}。出力 1 トークンあたりの時間の p50：{{tpot}}。",
            ttft=("ttft_p99", seconds),
            tpot=("tpot_p50", seconds),
        ),
        line(
            "Memory, share of the KV pool in use: {kv}. Preemptions per request: {preemptions}.",
            "メモリ（使用中の KV プールの割合）：{kv}。1 要求あたりの追い出し回数：{preemptions}。",
            kv=("kv_share", share),
            preemptions=("preemptions", number),
        ),
        line(
            "Compute per good answer: machine time {machine}; processor time {cpu}. Step time outside the "
            "model: {host}. Money per good answer: {cost}.",
            "期限内の応答 1 件あたりの計算。機械の占有時間：{machine}。CPU 時間：{cpu}。ステップ時間のうちモデル外："
            "{host}。費用：{cost}。",
            machine=("machine_seconds_per_good", seconds),
            cpu=("cpu_seconds_per_good", seconds),
            host=("host_share", share),
            cost=("cost_per_good", number),
        ),
        line(
            "Energy per good answer, in joules: {joules}.",
            "期限内の応答 1 件あたりの電力量（ジュール）：{joules}。",
            joules=("joules_per_good", number),
        ),
        both(
            f"Upkeep: settings that differ from the baselines: {settings}; there is no further service, and no model "
            "to train. Review: every decision is recorded, and `ekiden explain` tells of any request what caused its "
            "time.",
            f"保守：比較対象と異なる設定は {settings} で、追加のサービスも学習するモデルもない。"
            "確認：判断はすべて記録され、`ekiden explain` で要求ごとに時間の内訳と原因をたどれる。",
        ),
    ]


def risk(told: Told) -> list[Words]:
    outcome, main = told.outcome, told.main
    gap = told.each(main, "largest_gap_p99", seconds)
    slow = told.each(main, "slowdown_max", times)
    tenants = next(
        (name for name in told.kinds if told.each(name, "worst_tenant_attainment", share) is not NOT_MEASURED), main
    )
    fair = told.each(tenants, "worst_tenant_attainment", share)
    apart = told.each(tenants, "attainment_gap", share)
    own = [found for found in outcome.figures if found.arm == told.candidate and not found.subgroup]
    failures = sum((Counter(found.failures) for found in own), Counter[str]())
    kinds = alike(", ".join(f"{kind} {count}" for kind, count in failures.most_common(5)))
    kinds = kinds if failures else both("none", "なし")
    return [
        both(
            f"The tail shows first in the longest pause within an answer, p99 {gap['en']}, and in the "
            f"largest slowdown against an idle engine: {slow['en']} ({main}).",
            f"末尾の悪化は、応答の途中の最も長い中断（p99：{gap['ja']}）と、無負荷時に対する遅れの最大値"
            f"（{slow['ja']}）に最初に現れる（{main}）。",
        ),
        both(
            f"Fairness shows first in the worst tenant's share of answers in time: {fair['en']}; best less worst: "
            f"{apart['en']} ({tenants}).",
            f"公平性の悪化は、最も不利なテナントの期限内応答率に最初に現れる：{fair['ja']}。最良との差：{apart['ja']}（{tenants}）。",
        ),
        both(
            f"What {told.candidate} did not answer well, by kind: {kinds['en']}. The worst cases are listed one by one "
            f"({len(outcome.worst)}).",
            f"{told.candidate} が期限内に応答できなかったものの内訳：{kinds['ja']}。特に悪い事例は 1 件ずつ一覧にした"
            f"（{len(outcome.worst)} 件）。",
        ),
        *_predicted(told),
        both(
            f"In production the alerts {', '.join(ALERTS)} warn of the tail; counters by tenant exist, but no alert "
            "compares tenants.",
            f"本番では {'、'.join(ALERTS)} の各アラートが末尾の悪化を知らせる。"
            "テナント別の計数はあるが、テナント間を比べるアラートはない。",
        ),
    ]


def _predicted(told: Told) -> list[Words]:
    """How far the engine's own predictions can be relied on, which its guards use."""
    own = [one for one in told.outcome.calibration if one.arm == told.candidate and not one.subgroup]
    if not own:
        return [
            both("Whether the engine's predictions held: not measured.", "エンジンの予測が当たったかどうか：未測定。")
        ]
    words = {"step time": "ステップ時間", "output length": "出力長", "wait": "待ち時間"}
    parts = [
        both(
            f"{one.predicted} {share(one.observed or 0.0)['en']} (stated {one.stated:.0%}, {one.n:,} cases)",
            f"{words.get(one.predicted, one.predicted)}は {share(one.observed or 0.0)['ja']}"
            f"（想定 {one.stated:.0%}、{one.n:,} 件）",
        )
        for one in own
    ]
    shown = joined(parts)
    return [
        both(
            f"How often the truth lay within what the engine had predicted: {shown['en']}.",
            f"実際の値がエンジンの予測の範囲に収まった割合：{shown['ja']}。",
        )
    ]
