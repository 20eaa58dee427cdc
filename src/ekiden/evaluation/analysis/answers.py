"""The seven questions of adoption, answered with the outcome's figures, in English and in Japanese."""

from ekiden.evaluation.analysis.adoption_reasons import baseline, mechanism, purpose
from ekiden.evaluation.analysis.adoption_results import evidence
from ekiden.evaluation.analysis.adoption_running import operation, risk
from ekiden.evaluation.analysis.limits import limits as limits
from ekiden.evaluation.analysis.recovery import recovery
from ekiden.evaluation.analysis.told_figures import (
    Told,
    both,
    in_languages,
)
from ekiden.evaluation.outcome import Answer, Outcome


def answers(outcome: Outcome) -> list[Answer]:
    """Purpose, mechanism, baseline, evidence, operation, risk and recovery, in this order. A figure that the outcome
    does not hold is said to be missing."""
    told = Told(outcome)
    return [
        Answer(question=question, answer=in_languages(lines))
        for question, lines in (
            (
                both(
                    "Purpose: which bottleneck does it relieve, and how was that measured?",
                    "目的：どのボトルネックを解消するのか。それをどう測ったのか。",
                ),
                purpose(told),
            ),
            (
                both(
                    "Mechanism: which stage does the characteristic change, and is the gain its doing?",
                    "仕組み：どの段階が変わるのか。効果は本当にそこから生じているのか。",
                ),
                mechanism(told),
            ),
            (
                both(
                    "Baseline: what was it compared with, and was that given a fair chance?",
                    "比較対象：何と比べたのか。その比較対象は十分に調整されていたのか。",
                ),
                baseline(told),
            ),
            (
                both(
                    "Evidence: what came out on normal, hard and misleading workloads, and for whom?",
                    "証拠：通常、困難、誤解を招く負荷のそれぞれで、誰にどのような結果が出たのか。",
                ),
                evidence(told),
            ),
            (
                both(
                    "Operation: what does it cost in latency, memory, compute, energy, upkeep and review?",
                    "運用：遅延、メモリ、計算、電力、保守、確認の負担はどれだけか。",
                ),
                operation(told),
            ),
            (
                both(
                    "Risk: by what would harm to the tail or to fairness be noticed first?",
                    "リスク：末尾の遅延や公平性が損なわれたとき、最初に何で気づけるのか。",
                ),
                risk(told),
            ),
            (
                both(
                    "Recovery: can it refuse, fall back, go back and hand over, and which test shows it?",
                    "復旧：拒否、縮退、差し戻し、引き継ぎができるのか。それを示すテストはどれか。",
                ),
                recovery(told),
            ),
        )
    ]
