"""The requests that went worst, one by one, with the command that tells why.

Severities, from worst to mildest:
- ``lost``: no whole answer came (refused, timed out, ended by a fault, cut off);
- ``wrong``: an answer came that is not the one that was due: of another length, or of other tokens than another arm
  gave to the same request. Decoding is greedy, so scheduling must change no token, and one of the two is wrong;
- ``late``: whole, but the first token or the pace missed its objective;
- ``slow``: in time, and yet the longest compared with an idle engine, or with the longest pause.
"""

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ekiden.evaluation.analysis.figures import in_plan
from ekiden.evaluation.analysis.requests import EMPTY, LATE_FIRST_TOKEN, fault, good, largest_gap, slowdown, whole
from ekiden.evaluation.load.requests import WRONG_LENGTH
from ekiden.evaluation.outcome import WorstCase
from ekiden.evaluation.plan.model import Objectives, Plan
from ekiden.evaluation.results import Answered, ArmRun
from ekiden.ledger.retention import SUFFIX

LOST, WRONG, LATE, SLOW = "lost", "wrong", "late", "slow"
SEVERITIES: Final = (LOST, WRONG, LATE, SLOW)
OTHER_TOKENS, SLOWDOWN, LARGEST_GAP = "other_tokens", "slowdown", "largest_gap"
WORST_OF_A_KIND: Final = 2
"""Cases of each kind of failure that an arm's list has for a workload; of what was slow, one."""
_NO_ANSWER: Final = frozenset({WRONG_LENGTH, "malformed"})
"""Failures in which something came, and it was the wrong thing."""

Words = dict[str, str]
_Request = tuple[str, str, int, str]
"""Workload, its digest, block and id: what tells requests apart."""


class _Case(NamedTuple):
    run: ArmRun
    answer: Answered
    kind: str
    severity: str
    value: float | None
    badness: float
    """By which cases of one kind are ordered."""
    words: Words


def severity_of(kind: str) -> str:
    """Of a kind of failure, as ``ArmFigures.failures`` counts them, or of one of this module's own kinds."""
    if kind in (SLOWDOWN, LARGEST_GAP):
        return SLOW
    if kind.startswith("late_"):
        return LATE
    return WRONG if kind in (OTHER_TOKENS, *_NO_ANSWER) else LOST


def worst_cases(plan: Plan, runs: Sequence[ArmRun], ledger_dir: Path | None) -> list[WorstCase]:
    """From worst to mildest; within a severity by workload, arm and kind. Void runs are left out."""
    cases: dict[tuple[str, str, str, str], list[_Case]] = defaultdict(list)
    counted = [run for run in runs if run.void is None]
    for case in [*_failed(plan.objectives, counted), *_other_tokens(plan, counted), *_slow(plan.objectives, counted)]:
        cases[case.severity, case.run.workload, case.run.arm, case.kind].append(case)
    shown: list[WorstCase] = []
    for key in sorted(cases, key=lambda key: (SEVERITIES.index(key[0]), in_plan(plan, key[2], key[1]), key[3])):
        own = sorted(cases[key], key=lambda case: (-case.badness, case.run.block, case.answer.id))
        count = 1 if key[0] == SLOW else WORST_OF_A_KIND
        # A block serves its requests several times; each is listed with the run in which it went worst.
        worst: dict[tuple[int, str], _Case] = {}
        for case in own:
            worst.setdefault((case.run.block, case.answer.id), case)
        shown += [_told(case, len(own), ledger_dir) for case in [*worst.values()][:count]]
    return shown


def explain_command(run: ArmRun, request_id: str, ledger_dir: Path | None) -> str | None:
    """The command that tells why, for a shell; None where no ledger of the run is there."""
    if run.run_id is None or ledger_dir is None or not (ledger_dir / (run.run_id + SUFFIX)).exists():
        return None
    return shlex.join(["ekiden", "explain", request_id, "--run", run.run_id, "--ledger-dir", str(ledger_dir)])


def _told(case: _Case, count: int, ledger_dir: Path | None) -> WorstCase:
    words = dict(case.words)
    if case.severity != SLOW and count > 1:
        words = {
            "en": f"{words['en']}; one of {count} of this kind",
            "ja": f"{words['ja']}（同種の失敗は {count} 件）",
        }
    return WorstCase(
        arm=case.run.arm,
        workload=case.run.workload,
        request_id=case.answer.id,
        kind=case.kind,
        severity=case.severity,
        what=words["en"],
        value=case.value,
        explain=explain_command(case.run, case.answer.id, ledger_dir),
        whats=words,
    )


def _failed(objectives: Objectives, runs: Iterable[ArmRun]) -> Iterator[_Case]:
    """What was not good, by the same kinds as the counts."""
    for run in runs:
        for answer in run.results:
            kind = fault(answer, objectives)
            if kind is None:
                continue
            severity = severity_of(kind)
            value, words = _late(kind, answer, objectives) if severity == LATE else _unanswered(kind, answer)
            yield _Case(run, answer, kind, severity, value, value or 0.0, words)


def _late(kind: str, answer: Answered, objectives: Objectives) -> tuple[float | None, Words]:
    if kind == LATE_FIRST_TOKEN:
        value, allowed = answer.record.ttft, objectives.ttft
        return value, {
            "en": f"first token after {value:.2f} s; {allowed:g} s are allowed",
            "ja": f"最初のトークンまで {value:.2f} 秒（許容は {allowed:g} 秒）",
        }
    value, allowed = answer.record.tpot, objectives.tpot
    return value, {
        "en": f"{value:.3f} s for each token after the first; {allowed:g} s are allowed",
        "ja": f"2 番目以降のトークンに 1 つあたり {value:.3f} 秒（許容は {allowed:g} 秒）",
    }


def _unanswered(kind: str, answer: Answered) -> tuple[float | None, Words]:
    """``value``: seconds from the intended arrival until it ended, where it did."""
    record = answer.record
    waited = record.end - record.intended if record.end > record.intended else None
    tokens, due = record.output_tokens, answer.output_tokens
    spoken = "no token" if kind == EMPTY else kind.replace("_", " ")
    after = "" if waited is None else f" after {waited:.2f} s"
    after_ja = "" if waited is None else f"（{waited:.2f} 秒後）"
    return waited, {
        "en": f"{spoken}{after}; {tokens} of {due} tokens had come",
        "ja": f"{spoken}{after_ja}。届いたトークンは {due} のうち {tokens}",
    }


def _other_tokens(plan: Plan, runs: Sequence[ArmRun]) -> Iterator[_Case]:
    """The candidate's answers that differ from those of another arm on the same engine to the same request."""
    candidate = next(name for name, arm in plan.arms.items() if arm.role == "candidate")
    same_engine = [name for name, arm in plan.arms.items() if arm.url is None]
    if candidate not in same_engine:
        return
    told: dict[_Request, dict[tuple[int, ...], str]] = defaultdict(dict)
    for run in runs:
        if run.arm == candidate or run.arm not in same_engine:
            continue
        for answer in run.results:
            if whole(answer) and answer.token_ids is not None:
                told[_same_request(run, answer)].setdefault(answer.token_ids, run.arm)
    for run in (run for run in runs if run.arm == candidate):
        for answer in run.results:
            ours = answer.token_ids
            others = told.get(_same_request(run, answer), {})
            theirs = next((tokens for tokens in others if tokens != ours), None)
            if ours is None or theirs is None or not whole(answer):
                continue
            arm, at = others[theirs], _first_difference(ours, theirs)
            words = {
                "en": f"the tokens are other than those of {arm} from token {at + 1} on",
                "ja": f"{at + 1} 番目以降のトークンが {arm} の応答と異なる",
            }
            yield _Case(run, answer, OTHER_TOKENS, WRONG, float(at + 1), -float(at), words)


def _same_request(run: ArmRun, answer: Answered) -> _Request:
    return run.workload, run.workload_digest, run.block, answer.id


def _first_difference(ours: tuple[int, ...], theirs: tuple[int, ...]) -> int:
    pairs = zip(ours, theirs, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(ours), len(theirs)))


def _slow(objectives: Objectives, runs: Iterable[ArmRun]) -> Iterator[_Case]:
    """Good answers with what can be said against them."""
    for run in runs:
        for answer in run.results:
            if not good(answer, objectives):
                continue
            for kind, of, en, ja in _SLOW:
                value = of(answer)
                if value is not None:
                    words = {"en": en.format(value), "ja": ja.format(value)}
                    yield _Case(run, answer, kind, SLOW, value, value, words)


_SLOW: Final[Sequence[tuple[str, Callable[[Answered], float | None], str, str]]] = (
    (
        SLOWDOWN,
        slowdown,
        "took {:.2f} times as long as alone on an idle engine",
        "無負荷のエンジンに比べて {:.2f} 倍の時間がかかった",
    ),
    (LARGEST_GAP, largest_gap, "a pause of {:.2f} s between two tokens", "トークンとトークンの間が {:.2f} 秒あいた"),
)
