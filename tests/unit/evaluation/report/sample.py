"""A rich outcome, made up: every part of the report has something to show, with a name that means harm among them."""

import math
import random
from statistics import NormalDist
from typing import Any

from ekiden.evaluation.outcome import (
    Answer,
    ArmFigures,
    Calibrated,
    Chart,
    Comparison,
    Curve,
    Distribution,
    Falsifier,
    Label,
    MetricOutcome,
    Outcome,
    Phase,
    Prediction,
    SlotChart,
    SlotSegment,
    Tuning,
    Verdict,
    WorstCase,
)

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
ARMS = {"continuous": 1.0, "static": 2.6, "window": 1.9, "fair": 1.08, "sequential": 6.0}
WORKLOADS = {"azure-conversation": "normal", "azure-code": "hard", "equal-lengths": "misleading"}
FORMULAS = {
    "goodput": "good requests / seconds of arrivals",
    "slo_attainment": "good requests / all offered requests",
    "output_tokens_per_second": "output tokens / duration",
    "utilisation": "useful slot-steps / slot-steps",
    "cost_per_good": "machine seconds x price / good requests",
    "joules_per_good": "joules / good requests, where a counter measures them",
    "ttft": "first non-empty token - intended arrival",
    "tpot": "(last token - first token) / (output tokens - 1)",
    "itl": "every gap between content events, pooled",
    "largest_gap": "largest gap of each request",
    "e2e": "last token - intended arrival",
    "slowdown": "end to end / end to end alone on an idle server",
    "send_lag": "time of sending - intended arrival",
    "errors": "requests without a whole answer / all offered",
    "tokens_equal": "requests with the same tokens from both arms / requests that both answered whole",
}
UNITS = {
    "errors": "share",
    "worst_tenant_attainment": "share",
    "service_gap": "share",
    "slo_attainment": "share",
    "utilisation": "share",
    "goodput": "/s",
    "output_tokens_per_second": "tokens/s",
}


def compared(ratio: float, spread: float, candidate: float, *, blocks: int = 10) -> Comparison:
    low, high = ratio * math.exp(-spread), ratio * math.exp(spread)
    return Comparison(ratio=ratio, low=low, high=high, blocks=blocks, candidate=candidate, baseline=candidate / ratio)


def apart(difference: float, low: float, high: float) -> Comparison:
    """Of shares, candidate - baseline."""
    values: dict[str, Any] = {"candidate": 0.3 + difference, "baseline": 0.3}
    return Comparison(ratio=difference, low=low, high=high, blocks=10, scale="difference", **values)


def counted(share: float) -> Comparison:
    """A value that both arms have together."""
    found: dict[str, Any] = {"ratio": share, "low": share, "high": share, "candidate": None, "baseline": None}
    return Comparison(**found, blocks=10, scale="share", note="360 answers compared")


def metric(
    name: str, workload: str, baseline: str, comparison: Comparison, phase: Phase, **other: Any
) -> MetricOutcome:
    return MetricOutcome(
        metric=name,
        formula=FORMULAS.get(name, "the value at 99% of all requests, in order"),
        unit=other.pop("unit", "s"),
        direction=other.pop("direction", "down"),
        workload=workload,
        candidate="continuous",
        baseline=baseline,
        critical=other.pop("critical", False),
        phase=phase,
        success_condition=other.pop("success", ""),
        failure_condition=other.pop("failure", ""),
        comparison=comparison,
        reason=other.pop("reason", "The whole interval meets the condition for success."),
        reasons=other.pop("reasons", {}),
        judged=other.pop("judged", True),
    )


def metrics() -> list[MetricOutcome]:
    up: dict[str, Any] = {"unit": "/s", "direction": "up", "critical": True}
    gain: dict[str, Any] = {"success": "result >= 1.1", "failure": "result < 1.0"}
    within: dict[str, Any] = {"success": "result <= 1.05", "failure": "result > 1.05"}
    undecided = "Part of the interval lies beyond the margin of 5%, and part does not."
    share: dict[str, Any] = {"unit": "share", "critical": True}
    missing = Comparison(ratio=None, low=None, high=None, blocks=10, candidate=None, baseline=None)
    return [
        metric("goodput", "azure-conversation", "static", compared(1.62, 0.09, 3.41), Phase.SUCCESSFUL, **up, **gain),
        metric("goodput", "azure-conversation", "window", compared(1.31, 0.07, 3.41), Phase.SUCCESSFUL, **up, **gain),
        metric(
            "goodput",
            "azure-code",
            "static",
            compared(0.91, 0.05, 1.2),
            Phase.FAILED,
            **up,
            **gain,
            reason="The whole interval meets the condition for failure.",
        ),
        metric(
            "ttft_p99",
            "azure-code",
            "window",
            compared(1.04, 0.06, 2.81),
            Phase.INCONCLUSIVE,
            **within,
            reason=undecided,
        ),
        metric(
            "e2e_p999",
            "azure-conversation",
            "static",
            missing,
            Phase.ERROR,
            **within,
            reason="No value: p99.9 needs 2,995 requests and there are 1,204.",
        ),
        metric(
            "tokens_equal",
            "azure-conversation",
            "static",
            counted(0.975),
            Phase.FAILED,
            **share,
            direction="up",
            success="result >= 1",
            failure="result < 1",
            reason="The value, 0.975, meets result < 1: 360 answers compared.",
            reasons={
                "en": "The value, 0.975, meets result < 1: 360 answers compared.",
                "ja": "値 0.975 は result < 1 を満たす：360 件の回答を比較。",
            },
        ),
        metric(
            "errors",
            "azure-code",
            "static",
            apart(0.004, 0.002, 0.006),
            Phase.SUCCESSFUL,
            **share,
            success="result <= 0.01",
            failure="result > 0.01",
        ),
        metric(
            "errors", "equal-lengths", "static", apart(-0.13, -0.2, -0.06), Phase.PENDING, unit="share", judged=False
        ),
        metric("tokens_equal", "equal-lengths", "static", counted(1.0), Phase.PENDING, unit="share", judged=False),
        metric("ttft_p50", "azure-conversation", "static", compared(0.08, 0.4, 0.0342), Phase.SUCCESSFUL, reason=""),
        metric("cpu_seconds_per_good", "azure-conversation", "static", compared(0.97, 0.02, 0.71), Phase.SUCCESSFUL),
    ]


def distribution(median: float, sigma: float, n: int) -> Distribution:
    normal = NormalDist(math.log(median), sigma)
    points = [math.exp(normal.inv_cdf(min(0.9985, max(0.0015, share / 100)))) for share in range(101)]
    return Distribution(
        n=n,
        mean=median * math.exp(sigma**2 / 2),
        p50=points[50],
        p90=points[90],
        p95=points[95],
        p99=points[99] if n >= 299 else None,
        p999=points[100] if n >= 2995 else None,
        max=points[100] * 1.1,
        points=points,
    )


def figures() -> list[ArmFigures]:
    found = []
    for workload, kind in WORKLOADS.items():
        for arm, slower in ARMS.items():
            if kind == "misleading":
                slower = 1 + (slower - 1) * 0.05
            for subgroup, n in (("", 1204), ("tenant=c143", 310), ("tenant=" + HOSTILE, 88), ("language=ja", 494)):
                good = round(n * (1 - 0.03 * slower))
                found.append(
                    ArmFigures(
                        arm=arm,
                        workload=workload,
                        subgroup=subgroup,
                        offered=n,
                        good=good,
                        failures={"timeout": 4, "http_503": 2} if slower > 2 and not subgroup else {},
                        seconds=600.0,
                        scalars={
                            "goodput": good / 600,
                            "slo_attainment": good / n,
                            "output_tokens_per_second": 212.4 / slower,
                            "utilisation": 0.86 / slower**0.5,
                            "cost_per_good": 0.00041 * slower,
                            "joules_per_good": None,
                        },
                        distributions={
                            "ttft": distribution(0.12 * slower**2, 0.9, n),
                            "tpot": distribution(0.045 * slower**0.3, 0.25, n),
                            "largest_gap": distribution(0.12 / slower**0.5, 0.6, n),
                            "e2e": distribution(2.4 * slower, 0.7, n),
                            "slowdown": distribution(1.3 * slower, 0.4, n),
                        },
                    )
                )
    return found


def slot_charts() -> list[SlotChart]:
    chance, charts = random.Random(11), []
    lengths = [chance.choice((8, 12, 20, 30, 90)) for _ in range(28)]
    for arm in ("static", "continuous"):
        free, segments, batch = [0.0] * 6, [], 0.0
        for index, length in enumerate(lengths):
            slot = index % 6 if arm == "static" else free.index(min(free))
            if arm == "static" and slot == 0:
                batch = max(free)
            start = batch if arm == "static" else free[slot]
            free[slot] = start + length * 0.04
            name = f"req-{index:03d}"
            segments.append(SlotSegment(slot=slot, request_id=name, start=start, end=free[slot], output_tokens=length))
        charts.append(SlotChart(arm=arm, workload="azure-conversation", slots=6, seconds=max(free), segments=segments))
    return charts


def charts() -> list[Chart]:
    rates = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]
    times = [float(second) for second in range(0, 61, 2)]
    return [
        Chart(
            kind="goodput_rate",
            title="Goodput against rate on azure-conversation",
            x_label="requests offered a second",
            y_label="good requests a second",
            curves=[
                Curve(name=arm, x=rates, y=[min(rate, top) * (1 if rate <= top else 0.9) for rate in rates])
                for arm, top in (("continuous", 3.4), ("window", 2.6), ("static", 2.1))
            ],
        ),
        Chart(
            kind="gain_variance",
            title="Gain against output-length variance",
            x_label="coefficient of variation of the output length",
            y_label="goodput, continuous / static",
            curves=[
                Curve(
                    name="continuous / static",
                    x=[0.0, 0.25, 0.5, 1.0],
                    y=[1.01, 1.11, 1.27, 1.58],
                    low=[0.97, 1.05, 1.19, 1.44],
                    high=[1.05, 1.17, 1.36, 1.73],
                )
            ],
        ),
        Chart(
            kind="fairness_time",
            title="Service difference between c143 and c007 on azure-code",
            x_label="seconds",
            y_label="share of the bound",
            curves=[
                Curve(name=arm, x=times, y=[grows * second / 60 for second in times])
                for arm, grows in (("continuous", 0.8), ("fair", 0.12))
            ],
        ),
    ]


QUESTIONS = {
    "Purpose": "目的",
    "Mechanism": "仕組み",
    "Baseline": "比較の基準",
    "Evidence": "証拠",
    "Operation": "運用",
    "Risk": "リスク",
    "Recovery": "回復",
}


def answers() -> list[Answer]:
    return [
        Answer(
            question={"en": f"{english}: what does it come to?", "ja": f"{japanese}：どのような答えになるか。"},
            answer={
                "en": [f"{english} is answered with 1.62 times the goodput, and slots were used for 86% of the steps."],
                "ja": ["グッドプットは 1.62 倍、スロットは 86% のステップで使われていた。"],
            },
        )
        for english, japanese in QUESTIONS.items()
    ]


def lineage() -> dict[str, Any]:
    return {
        "ekiden": "0.1.0",
        "machine": {"cpu": "Xeon at 2.1 GHz", "cores": 2, "memory_bytes": 24_696_061_952},
        "model": {"id": "smollm2-135m", "sha256": "5a1395716f7913741cc51d98581b9b1228d80987a9f7d3664106742eb06bba83"},
        "analysis": "9c56cc51b374c3ba189210d5b6d4bf57790d351c96c47c02190ecf1e430635ab",
    }


def sample(verdict: Verdict = Verdict.DO_NOT_ADOPT, label: Label = Label.CONFIRMATORY, **changed: Any) -> Outcome:
    """An outcome in which everything has come to pass; ``changed`` replaces fields."""
    met = verdict is Verdict.DO_NOT_ADOPT
    fields: dict[str, Any] = {
        "verdict": verdict,
        "phase": {Verdict.ADOPT: Phase.SUCCESSFUL, Verdict.INCONCLUSIVE: Phase.INCONCLUSIVE}.get(verdict, Phase.FAILED),
        "label": label,
        "summary": {
            "en": "Goodput on azure-code against static lies wholly below 1 (0.866 … 0.957), a critical failure.",
            "ja": "azure-code のグッドプットは、static との比が 1 を下回り未達となった（0.866 … 0.957）。",
        },
        "question": "Shall the chat service of the town library serve with continuous batching?",
        "decision": {
            "question": "Shall the chat service of the town library serve with continuous batching?",
            "affected": "Readers at 40 terminals, a third of whom write Japanese; staff with long documents.",
            "wrong_result": "Readers wait longer than today at the busiest hour, and the staff has to explain it.",
            "known_at_decision_time": "Prompt length, tenant, stated limit. Not the length of the answer.",
            "simplest_alternative": "window",
            "owner": "M. Sato " + HOSTILE,
        },
        "falsifiers": [
            Falsifier(
                claim="The gain comes from filling freed slots, so equal lengths must show none.",
                workload="equal-lengths",
                metric="goodput",
                condition="result > 1.1",
                met=met,
                observed="1.171, interval 1.121 … 1.223" if met else "1.012, interval 0.975 … 1.048",
            ),
            Falsifier(
                claim="No tenant pays for it.",
                workload="azure-code",
                metric="worst_tenant_attainment",
                condition="result < 0.9",
                met=None,
                observed="0.950, interval 0.861 … 1.020: undecided",
            ),
        ],
        "predictions": [
            Prediction(text="The gain tends to 1 as lengths become equal.", held=True, observed="1.012 at variance 0"),
            Prediction(text="Fair order costs at most 3% of throughput.", held=False, observed="0.942"),
            Prediction(text="Half the cores halve the goodput.", held=None, observed="not run"),
        ],
        "metrics": metrics(),
        "arms": [
            {
                "name": arm,
                "role": {"continuous": "candidate", "static": "baseline", "window": "baseline"}.get(arm, "other"),
                "settings": {"batching": arm, "max_num_seqs": 8},
            }
            for arm in ARMS
        ],
        "workloads": [
            {
                "name": name,
                "kind": kind,
                "digest": f"{index + 1:x}f53a2" * 10,
                "made": {"source": name, "rate": 2.5, "length_scale": 0.25, "seed": 7},
                "requests": 1204,
                "blocks": 10,
            }
            for index, (name, kind) in enumerate(WORKLOADS.items())
        ],
        "figures": figures(),
        "noise": [
            Comparison(
                ratio=1.004, low=0.961, high=1.049, blocks=4, candidate=2.5, baseline=2.49, note="goodput, continuous"
            )
        ],
        "blocks_needed": ["goodput on azure-conversation: about 6 blocks; the plan has 10."],
        "blocks_needed_ja": ["azure-conversation の goodput：約 6 ブロックが必要。計画は 10 ブロック"],
        "tuning": [
            Tuning(
                arm=arm,
                chosen={"max_num_seqs": 8, "batch_window_ms": 40},
                trials=[
                    {"max_num_seqs": seqs, "batch_window_ms": window, "goodput": 1 + seqs / 10 - window / 400}
                    for seqs in (4, 8)
                    for window in (20, 40, 80)
                ],
                how="Grid on dev, the setting of the highest goodput; ties go to the smaller one.",
            )
            for arm in ("static", "window")
        ],
        "calibration": [
            Calibrated(
                predicted="step time", arm="continuous", subgroup=subgroup, stated=0.8, observed=observed, n=n,
                median_relative_error=error, how="p10 to p90 against the truth",
                hows={"en": "p10 to p90 against the truth", "ja": "p10〜p90 と実際の値を比べた"},
            )
            for subgroup, observed, n, error in (
                ("", 0.784, 20411, 0.041),
                ("step=mixed", 0.71, 3300, 0.083),
                ("x", None, 0, None),
            )
        ],
        "fairness": [
            {
                "workload": "azure-code", "arm": arm, "worst_tenant": "c143",
                "worst_tenant_attainment": 0.91 / slower**0.2,
                "service_gap": 0.4 * slower, "jain": 0.97, "language_gap": 1.25, "language_pairs": 90,
                "other_to_english_e2e": 1.25, "subgroup": "", "slowdowns": 1204, "slowdown_p99": 2.5 * slower,
            }
            for arm, slower in ARMS.items()
        ] + [
            {"workload": "azure-code", "arm": arm, "subgroup": "prompt_tokens=17-64", "slowdown_max": 4.5}
            for arm in ARMS
        ],
        "worst": [
            WorstCase(
                arm="static", workload="azure-code", request_id=f"req-{index}", kind=kind, severity=severity, what=what,
                value=value, explain=explain, whats={"en": what, "ja": f"事例：{what}"},
            )
            for index, (kind, severity, what, value, explain) in enumerate(
                [
                    ("slow", "slow", "largest gap of 4.1 s", 4.1, "ekiden explain req-0 --run 8f2c"),
                    ("timeout", "lost", "no token within 60 s " + HOSTILE, None, "ekiden explain req-1 --run 8f2c"),
                    ("late", "late", "first token after 9.4 s", 9.4, None),
                ]
            )
        ],
        "void": ["block 3 of azure-code, window: p99 of the send lag was 41 ms"],
        "charts": charts(),
        "slots": slot_charts(),
        "answers": answers(),
        "limits": {
            "en": ["One model of 135 million parameters.", "A machine of two cores; a GPU has other step times."],
            "ja": [
                "パラメーター数 1 億 3,500 万のモデル一つでしか測っていない。",
                "2 コアの計算機での結果であり、GPU では 1 ステップの時間が異なる。",
            ],
        },
        "formulas": FORMULAS,
        "units": UNITS,
        "integrity": [],
        "registration": {"digest": "0d4f" * 16, "at": "2026-11-30T21:00:00Z", "data": {"azure_code.csv": "77ab" * 16}},
        "lineage": lineage(),
    }  # fmt: skip
    return Outcome(**(fields | changed))
