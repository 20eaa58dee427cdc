"""Purpose, mechanism and baseline: why it should help, and compared with what."""

from typing import Final

from ekiden.evaluation.analysis.told_figures import (
    NOT_MEASURED,
    Told,
    Words,
    alike,
    both,
    per_second,
    seconds,
    settings_words,
    share,
)

STAGES: Final[dict[str, Words]] = {
    "batching": both(
        "batching acts in the refill stage: it says how many waiting requests may take the places that are free. "
        "continuous lets them in at every step, static only when the whole batch has ended, window when a batch is "
        "full or its oldest request has waited long enough, sequential one at a time",
        "batching は補充（refill）の段階で働き、空いた席に待機中の要求をいくつ入れるかを決める。"
        "continuous はステップごとに、static はバッチ全体が終わってから、"
        "window はバッチが満ちるか先頭の要求が一定時間待ってから、sequential は 1 件ずつ入れる",
    ),
    "scheduling_policy": both(
        "scheduling_policy orders the waiting queue, from which the refill stage takes the next request",
        "scheduling_policy は待ち行列の順序を決め、補充の段階はその先頭から次の要求を取る",
    ),
    "max_num_batched_tokens": both(
        "max_num_batched_tokens bounds in the formation stage how many tokens one step computes",
        "max_num_batched_tokens はステップの編成（formation）の段階で、1 ステップに計算するトークン数を制限する",
    ),
    "target_itl_ms": both(
        "target_itl_ms makes the formation stage keep prompt chunks small enough for the answers beside them",
        "target_itl_ms は編成の段階で、同時に生成中の応答を待たせないようにプロンプトの分割を小さく保つ",
    ),
}


def purpose(told: Told) -> list[Words]:
    outcome, main = told.outcome, told.main
    slots = told.each(main, "utilisation", share)
    middle, late = told.each(main, "ttft_p50", seconds), told.each(main, "ttft_p95", seconds)
    good = told.each(main, "goodput", per_second)
    requests = next((one["requests"] for one in outcome.workloads if one["name"] == main), 0)
    blocks = next((one["blocks"] for one in outcome.workloads if one["name"] == main), 0)
    return [
        both(
            f"To be decided: {outcome.question} Affected: {outcome.decision.get('affected') or 'not stated'}",
            f"判断すべき問い：{outcome.question} 影響を受ける範囲：{outcome.decision.get('affected') or '記載なし'}",
        ),
        both(
            f"The bottleneck looked for is places that stand empty while requests wait. On {main}, slot-steps with "
            f"useful work: {slots['en']}.",
            f"想定したボトルネックは、要求が待っているのに空いたままの席である。{main} で有効な処理に使われた"
            f"スロット・ステップの割合：{slots['ja']}。",
        ),
        both(
            f"What users feel of it is the wait for the first token: p50 {middle['en']}; p95 {late['en']}.",
            f"利用者にとっては最初のトークンまでの待ち時間として現れる。p50：{middle['ja']}。p95：{late['ja']}。",
        ),
        both(
            f"Requests answered in time: {good['en']}. Measured over {requests:,} requests in {blocks} blocks, each "
            f"served by every arm; goodput = {outcome.formulas.get('goodput', NOT_MEASURED['en'])}.",
            f"期限内に応答できた要求：{good['ja']}。{blocks} ブロック、計 {requests:,} 件の要求を"
            "すべての方式に与えて測った。"
            f"goodput の定義：{outcome.formulas.get('goodput', NOT_MEASURED['ja'])}",
        ),
    ]


def mechanism(told: Told) -> list[Words]:
    names = told.different_settings
    arms = "; ".join(f"{arm}: {settings_words(told.settings_of(arm))}" for arm in (told.candidate, *told.baselines))
    lines = [
        both(
            f"Engine, weights, kernels and memory are shared; the arms differ in {', '.join(names) or 'no setting'} "
            f"({arms}).",
            "エンジン、重み、カーネル、メモリは共通である。"
            f"方式ごとに異なる設定：{'、'.join(names) or 'なし'}（{arms}）。",
        )
    ]
    acting = [STAGES[name] for name in names if name in STAGES]
    lines += [both(f"{stage['en']}.", f"{stage['ja']}。") for stage in acting]
    curves = [curve for chart in told.outcome.charts if chart.kind == "gain_variance" for curve in chart.curves]
    for curve in curves:
        low, high = min(zip(curve.x, curve.y, strict=True)), max(zip(curve.x, curve.y, strict=True))
        lines.append(
            both(
                f"If refilling makes the gain, it must vanish where all answers are equally long. Goodput against "
                f"{curve.name}: {low[1]:.3g} at a coefficient of variation of {low[0]:.2f}, {high[1]:.3g} at "
                f"{high[0]:.2f}.",
                f"補充が効果の源なら、応答の長さが揃うと効果は消えるはずである。{curve.name} に対する goodput の比は、"
                f"長さの変動係数が {low[0]:.2f} のとき {low[1]:.3g}、{high[0]:.2f} のとき {high[1]:.3g}。",
            )
        )
    if not curves:
        lines.append(
            both(
                "The gain against the variance of answers' lengths was not measured, so that refilling is its cause "
                "is not shown.",
                "応答長のばらつきと効果の関係は未測定であり、補充が原因であることは示されていない。",
            )
        )
    equal = [one for one in told.outcome.metrics if one.metric == "tokens_equal" and one.comparison.ratio is not None]
    least = min(equal, key=lambda one: one.comparison.ratio or 0.0, default=None)
    same = NOT_MEASURED if least is None else share(least.comparison.ratio or 0.0)
    where = (
        alike("")
        if least is None
        else both(f" (the least, on {least.workload})", f"（最も低い {least.workload} での値）")
    )
    lines.append(
        both(
            f"Answers whose tokens are the same under another schedule: {same['en']}{where['en']}.",
            f"スケジューリングを変えてもトークンが一致した応答：{same['ja']}{where['ja']}。",
        )
    )
    return lines


def baseline(told: Told) -> list[Words]:
    outcome = told.outcome
    simplest = outcome.decision.get("simplest_alternative")
    lines = [
        both(
            f"The simplest alternative, as registered: {simplest or 'not stated'}",
            f"登録された最も単純な代替手段：{simplest or '記載なし'}",
        )
    ]
    for arm in told.baselines:
        tuning = next((one for one in outcome.tuning if one.arm == arm), None)
        settings = settings_words(told.settings_of(arm))
        if tuning is None:
            lines.append(
                both(
                    f"{arm} ({settings}) was not tuned; with other settings it may do better than here.",
                    f"{arm}（{settings}）は調整していない。設定次第ではここに示す値より良くなりうる。",
                )
            )
            continue
        lines.append(
            both(
                f"{arm} was tuned on dev in {len(tuning.trials)} trials and runs with {settings}.",
                f"{arm} は開発用データで {len(tuning.trials)} 回試して調整し、{settings} で実行した。",
            )
        )
    mixed = [arm["name"] for arm in outcome.arms if arm.get("url")]
    if mixed:
        lines.append(
            both(
                f"{', '.join(mixed)} is another server: that comparison mixes engine, kernels and memory with "
                "scheduling.",
                f"{'、'.join(mixed)} は別のサーバーであり、比較にはスケジューリング以外"
                "（エンジン、カーネル、メモリ）の差も含まれる。",
            )
        )
    known = [one for one in outcome.noise if one.ratio is not None]
    for one in known[:1]:
        ends = "" if one.low is None or one.high is None else f" ({one.low:.3g} to {one.high:.3g})"
        lines.append(
            both(
                f"An arm against itself gives {one.ratio:.3g}{ends}: {one.note}. Differences within that are noise.",
                f"同じ方式どうしの比較では {one.ratio:.3g}{ends.replace(' to ', '〜')}（{one.note}）。"
                "この範囲の差は雑音と区別できない。",
            )
        )
    if not known:
        lines.append(both("An arm against itself: not measured.", "同じ方式どうしの比較（雑音の大きさ）：未測定。"))
    return lines
