"""What an evaluation did not show: model, languages, hardware, data and load that it may not carry over to."""

from ekiden.evaluation.analysis.told_figures import Told, Words, both, in_languages
from ekiden.evaluation.outcome import Label, Outcome, Phase
from ekiden.evaluation.workloads.offer import Kind

_LANGUAGE = "language="


def limits(outcome: Outcome) -> dict[str, list[str]]:
    """One sentence each, by language."""
    told = Told(outcome)
    return in_languages([*_standing(outcome), *_subject(outcome), *_data(told), *_figures(told)])


def _standing(outcome: Outcome) -> list[Words]:
    """What the whole counts for."""
    lines = []
    if outcome.label is Label.EXPLORATORY:
        lines.append(
            both(
                "Exploratory: thresholds or data may have been chosen after seeing results, so nothing is confirmed.",
                "探索的な評価である。結果を見てから閾値やデータを選んだ可能性があり、何も確認されていない。",
            )
        )
    if outcome.integrity:
        lines.append(
            both(
                f"Since registration {len(outcome.integrity)} things changed: {'; '.join(outcome.integrity)}.",
                f"登録後に {len(outcome.integrity)} 点が変わっている：{'；'.join(outcome.integrity)}。",
            )
        )
    if outcome.void:
        lines.append(
            both(
                f"{len(outcome.void)} runs are void and count for nothing.",
                f"無効となった実行が {len(outcome.void)} 回あり、集計に含めていない。",
            )
        )
    return lines


def _subject(outcome: Outcome) -> list[Words]:
    """Model and machine."""
    lineage = outcome.lineage
    model, machine = lineage.get("model") or {}, lineage.get("machine") or {}
    backend = (lineage.get("backend") or {}).get("backend")
    name, longest = model.get("name"), model.get("max_model_len")
    context = (
        both(f" (context {longest:,} tokens)", f"（コンテキスト長 {longest:,} トークン）") if longest else both("", " ")
    )
    hardware = [str(machine[key]) for key in ("system", "machine") if machine.get(key)]
    cpus = machine.get("cpus")
    processors = both(f", {cpus} processors", f"、CPU {cpus} 個") if cpus else both("", "")
    runner = both(f", {backend}", f"、{backend}") if backend else both("", "")
    return [
        both(
            f"Model: only {name}{context['en']}. Others have other step costs, so gains may differ.",
            f"モデルは {name}{context['ja']}のみ。ほかのモデルではステップの時間の内訳が異なり、効果も変わりうる。",
        )
        if name
        else both("Model: not recorded.", "モデル：記録がない。"),
        both(
            f"Hardware: one machine ({' '.join(hardware)}{processors['en']}{runner['en']}). GPUs, several sockets "
            "and fleets were not measured; `ekiden evaluate project` only simulates them.",
            f"ハードウェアは 1 台（{' '.join(hardware)}{processors['ja']}{runner['ja']}）のみ。GPU、複数ソケット、"
            "複数台の構成は測定していない。`ekiden evaluate project` の結果はシミュレーションである。",
        )
        if hardware
        else both("Hardware: not recorded.", "ハードウェア：記録がない。"),
    ]


def _data(told: Told) -> list[Words]:
    """Languages, sources and load."""
    outcome = told.outcome
    languages = sorted(
        {
            one.subgroup.removeprefix(_LANGUAGE)
            for one in outcome.figures
            if one.subgroup.startswith(_LANGUAGE) and one.subgroup != f"{_LANGUAGE}unknown"
        }
    )
    spoken = both(
        f"only {' and '.join(languages)}; other languages and scripts give other prompt lengths.",
        f"{'と'.join(languages)} のみ。ほかの言語や文字体系ではプロンプトの長さが変わる。",
    )
    if not languages:
        spoken = both(
            "not told apart, so nothing is shown about any one language.",
            "区別して測っておらず、個々の言語については何も示していない。",
        )
    sources = list(dict.fromkeys(str(one.get("source") or one["name"]) for one in outcome.workloads))
    lines = [
        both(f"Languages: {spoken['en']}", f"言語：{spoken['ja']}"),
        both(
            f"Data: {', '.join(sources)}, scaled to this machine; your own traffic may have other lengths, bursts and "
            "tenants.",
            f"データは {'、'.join(sources)} をこの機械の規模に合わせたもの。"
            "実際の利用では、長さ、集中の度合い、テナントの構成が異なりうる。",
        ),
        both(
            "Answers are greedy and have the lengths of the data, whatever the model would have said; sampling, tools "
            "and structured output were not part of it, nor was the quality of answers judged.",
            "応答は貪欲法で生成し、長さはモデルの判断ではなくデータに合わせた。サンプリング、ツール呼び出し、構造化出力は対象外で、"
            "応答の内容の質も評価していない。",
        ),
    ]
    lacking = [kind for kind in Kind if kind not in told.kinds.values()]
    words = {Kind.NORMAL: "通常の", Kind.HARD: "困難な", Kind.MISLEADING: "誤解を招く"}
    if lacking:
        lines.append(
            both(
                f"No workload of kind {' or '.join(kind.value for kind in lacking)} was run.",
                f"{'や'.join(words[kind] + '負荷' for kind in lacking)}は実行していない。",
            )
        )
    return lines


def _figures(told: Told) -> list[Words]:
    """What the runs were too few or too poor for."""
    outcome, lines = told.outcome, []
    open_metrics = sorted(
        {f"{one.metric} ({one.workload})" for one in outcome.metrics if one.judged and one.phase is Phase.INCONCLUSIVE}
    )
    if open_metrics:
        lines.append(
            both(
                f"Not decided with these blocks: {', '.join(open_metrics)}.",
                f"このブロック数では判定できなかったもの：{'、'.join(open_metrics)}。",
            )
        )
    own = [one for one in outcome.figures if one.arm == told.candidate and not one.subgroup]
    few = sorted({one.workload for one in own if (ttft := one.distributions.get("ttft")) and ttft.p99 is None})
    if few:
        lines.append(
            both(
                f"Too few requests for a p99 of the first token: {', '.join(few)}.",
                f"要求数が足りず、最初のトークンの p99 を推定できない負荷：{'、'.join(few)}。",
            )
        )
    if own and all(one.scalars.get("joules_per_good") is None for one in own):
        lines.append(
            both(
                "Energy was not measured: no counter was readable.",
                "電力量は未測定である（読み取れる計測器がなかった）。",
            )
        )
    return lines
