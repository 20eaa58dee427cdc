"""Whether the engine's own predictions held: step time, output length and wait, read from the ledgers of the runs.

A range from p10 to p90 should hold 80 % of what came. More is a range too wide to be of use, less one too narrow to be
relied on. For a wait the engine states one value, and half of the requests should wait no longer. What the warm-up did
is left out: the engine had learnt nothing yet, and no figure of the run counts it.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from ekiden.evaluation.load.engine_subject import WARM_UP
from ekiden.evaluation.outcome import Calibrated
from ekiden.evaluation.results import ArmRun
from ekiden.evidence.reader import LedgerReader, LedgerReadError, inputs_of, request_detail_of
from ekiden.ledger.records import EndRow, RequestRow, TurnRow
from ekiden.ledger.retention import SUFFIX
from ekiden.measure.percentiles import median
from ekiden.state.request import FinishReason

STEP_TIME, OUTPUT_LENGTH, WAIT = "step time", "output length", "wait"
RANGE_SHARE: Final = 0.8
"""What lies between p10 and p90."""
MEDIAN_SHARE: Final = 0.5
MOST_TENANTS: Final = 8
"""Tenants that are shown one by one; the others are shown together."""
OTHERS: Final = "tenant=(others)"
_WHOLE: Final = frozenset({FinishReason.STOP.value, FinishReason.LENGTH.value})

_HOW: Final = {
    STEP_TIME: {
        "en": "p10 to p90 as predicted before the step, against the time that the model's runner took",
        "ja": "ステップの前に予測した p10〜p90 と、モデルの実行に実際にかかった時間を比べた",
    },
    OUTPUT_LENGTH: {
        "en": "p10 to p90 of the tenant's earlier answers as known at arrival, against the tokens of the answer",
        "ja": "到着時点で分かっていた同じテナントの過去の応答の p10〜p90 と、実際の応答のトークン数を比べた",
    },
    WAIT: {
        "en": "the wait expected at intake behind a queue, against the time to admission: at most as long as stated",
        "ja": "並んだ時点で予想した待ち時間と、実際に受け入れられるまでの時間を比べた（予想以下だった割合）",
    },
}


class Stated(NamedTuple):
    """One prediction, in any unit, and the truth. A ``low`` of minus infinity is a prediction of at most ``high``."""

    predicted: str
    groups: tuple[str, ...]
    """The subgroups that it is counted in, beside all."""
    low: float
    middle: float
    high: float
    truth: float

    @property
    def held(self) -> bool:
        return self.low <= self.truth <= self.high

    @property
    def relative_error(self) -> float | None:
        """Of the middle; None where the truth is 0."""
        return abs(self.middle - self.truth) / self.truth if self.truth > 0 else None


@dataclass(slots=True)
class _Tally:
    """Sums over predictions; a long evaluation has millions of steps."""

    count: int = 0
    held: int = 0
    errors: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, case: Stated) -> None:
        self.count += 1
        self.held += case.held
        if (error := case.relative_error) is not None:
            self.errors.append(error)

    def add_all(self, other: "_Tally") -> None:
        self.count += other.count
        self.held += other.held
        self.errors.extend(other.errors)


_Groups = defaultdict[str, _Tally]


def calibrated(runs: Sequence[ArmRun], ledger_dir: Path | None) -> list[Calibrated]:
    """For each arm and prediction: all cases first, then the subgroups (kind of step, workload, tenant).

    Runs without a ledger, such as those of another server, say nothing. A ledger that is gone, because the folder's
    limits deleted it, is left out, and ``how`` says so.
    """
    if ledger_dir is None:
        return []
    found: dict[str, dict[str, _Groups]] = {}
    recorded, lost = Counter[str](), Counter[str]()
    for run in runs:
        if run.run_id is None:
            continue
        recorded[run.arm] += 1
        tallies = found.setdefault(run.arm, {name: _Groups(_Tally) for name in _HOW})
        try:
            with LedgerReader(ledger_dir / (run.run_id + SUFFIX)) as reader:
                for case in stated_in(reader, run.workload):
                    for group in ("", *case.groups):
                        tallies[case.predicted][group].add(case)
        except LedgerReadError:
            lost[run.arm] += 1
    return [
        one
        for arm, tallies in found.items()
        for predicted, groups in tallies.items()
        if groups
        for one in _of_arm(arm, predicted, groups, how=_how(predicted, lost[arm], recorded[arm]))
    ]


def stated_in(reader: LedgerReader, workload: str) -> Iterator[Stated]:
    """Every prediction of a recorded run with its truth, the warm-up's apart."""
    requests = {row.request: row for row in reader.all_requests()}
    ends = reader.all_ends()
    # The warm-up is over before the first request of the workload arrives, so its last turn divides the run.
    warm = max((end.turn for end in ends if requests[end.request].tenant == WARM_UP), default=0)
    starts: dict[int, int] = {}
    for turn in reader.all_turns():
        starts[turn.turn] = turn.start
        if turn.turn > warm and (step := _step(turn, workload)) is not None:
            yield step
    for end in ends:
        row = requests[end.request]
        if row.tenant != WARM_UP and row.carried is None and row.refusal is None:
            yield from _of_request(row, end, starts.get(row.turn), workload)


def _step(turn: TurnRow, workload: str) -> Stated | None:
    """None for a turn without a step, and for one whose time is no step's: it was tried again, or made new kernels."""
    inputs = inputs_of(turn)
    if turn.p50 <= 0 or inputs.attempts != 1 or turn.new_sizes or not (turn.decode_rows or turn.prefill_tokens):
        return None
    kind = "mixed" if turn.decode_rows and turn.prefill_tokens else "decode" if turn.decode_rows else "prefill"
    return Stated(
        STEP_TIME, (f"step={kind}", f"workload={workload}"), turn.p10, turn.p50, turn.p90, truth=inputs.advance
    )


def _of_request(row: RequestRow, end: EndRow, intake: int | None, workload: str) -> Iterator[Stated]:
    """``intake``: when the turn began that took it in, in microseconds of the run; None where that turn is gone."""
    detail, groups = request_detail_of(row), (f"workload={workload}", f"tenant={row.tenant}")
    if detail.expected_output is not None and end.reason in _WHOLE:
        low, middle, high = detail.expected_output
        yield Stated(OUTPUT_LENGTH, groups, low, middle, high, truth=end.output_tokens)
    # Without a queue no wait is expected, and whether that came true says nothing of how a wait is estimated.
    if detail.expected_wait and end.admitted is not None and intake is not None:
        wait = detail.expected_wait
        yield Stated(WAIT, groups, float("-inf"), wait, wait, truth=(end.admitted - intake) / 1e6)


def _of_arm(arm: str, predicted: str, groups: _Groups, how: dict[str, str]) -> Iterator[Calibrated]:
    tenants = [group for group in groups if group.startswith("tenant=")]
    shown = sorted(tenants, key=lambda group: (-groups[group].count, group))[:MOST_TENANTS]
    others = _Tally()
    for group in tenants:
        if group not in shown:
            others.add_all(groups.pop(group))
    ordered = sorted(groups.items())
    for subgroup, tally in [*ordered, (OTHERS, others)] if others.count else ordered:
        yield Calibrated(
            predicted=predicted,
            arm=arm,
            subgroup=subgroup,
            stated=MEDIAN_SHARE if predicted == WAIT else RANGE_SHARE,
            observed=tally.held / tally.count,
            n=tally.count,
            median_relative_error=median(tally.errors) if tally.errors else None,
            how=how["en"],
            hows=how,
        )


def _how(predicted: str, lost: int, recorded: int) -> dict[str, str]:
    how = dict(_HOW[predicted])
    if lost:
        how["en"] += f"; the ledgers of {lost} of {recorded} runs are gone"
        how["ja"] += f"（{recorded} 回の実行のうち {lost} 回分の台帳は残っていない）"
    return how
