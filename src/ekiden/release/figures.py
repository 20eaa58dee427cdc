"""What one block of a canary gave, from the ledger, and the metrics that are made of it.

A request belongs to the block in which it arrived. All requests that arrive between the block's burn-in and its drain
count, also those that are refused for want of room, end in an error or never end: "missed" is all that were not
answered whole with TTFT and TPOT within their objectives. Left out are requests that were at fault themselves (400,
401), and those whose client left while it was still within its objectives.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np

from ekiden.evaluation.analysis.metric import MetricDef, Sums, number_of_values, pooled_percentile
from ekiden.evidence.reader import LedgerReader
from ekiden.ledger.records import ENGINE_ENDED, EndRow, RequestRow
from ekiden.measure.figures import time_per_output_token
from ekiden.measure.percentiles import MIN_VALUES_FOR_P99
from ekiden.state.request import FinishReason, RefusalReason

_WHOLE: Final = (FinishReason.STOP.value, FinishReason.LENGTH.value)
_NO_ROOM: Final = frozenset(
    reason.value
    for reason in RefusalReason
    if reason.name in (
        "QUEUE_FULL_REQUESTS", "QUEUE_FULL_TOKENS", "QUEUE_TOO_SLOW", "TENANT_QUEUE_FULL", "TENANT_RATE", "DRAINING",
        "INTERNAL_ERROR", "ENGINE_UNAVAILABLE", "EXCEEDS_KV_CACHE",
    ) or reason.name.startswith("DEADLINE")
)  # fmt: skip
"""Refusals that are the server's doing. Those for a deadline that cannot be met are among them, where there are any."""


class BlockFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one block. Times are seconds, to a tenth of a millisecond; of whole answers only."""

    seconds: float
    """Between burn-in and drain."""
    offered: int = 0
    missed: int = 0
    refused: int = 0
    failed: int = 0
    """Ended in an error, or out of time."""
    unfinished: int = 0
    """Had not ended when the block was settled. They count as missed."""
    spilled: int = 0
    """Ended after their block: they ran under the other arm as well."""
    ttft: list[float] = []
    tpot: list[float] = []
    e2e: list[float] = []

    @property
    def missed_share(self) -> float | None:
        return self.missed / self.offered if self.offered else None


def block_figures(
    reader: LedgerReader, *, start: int, end: int, burn_in: float, drain: float, settle: float, ttft: float, tpot: float
) -> BlockFigures | None:
    """What the block from ``start`` to ``end`` (microseconds of the run) gave; None while it is not settled.

    It is settled once all its requests have ended, or ``settle`` seconds after it, by the newest turn's end.
    """
    since, until = start + round(burn_in * 1e6), end - round(drain * 1e6)
    with reader.snapshot():
        newest = reader.turn(reader.bounds()[1])
        now = newest.end if newest else 0
        if now < end:
            return None
        rows = reader.requests_arrived(since, until)
        found = [(row, reader.end(row.request)) for row in rows if row.carried is None]
    if now < end + settle * 1e6 and any(ended is None and row.refusal is None for row, ended in found):
        return None
    count = _Count(ttft=ttft, tpot=tpot, end=end)
    for row, ended in found:
        count.add(row, ended)
    return count.figures((until - since) / 1e6)


class _Count:
    def __init__(self, *, ttft: float, tpot: float, end: int) -> None:
        self._ttft, self._tpot, self._end = ttft, tpot, end
        self._sums = dict.fromkeys(("offered", "missed", "refused", "failed", "unfinished", "spilled"), 0)
        self._times: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2e": []}

    def figures(self, seconds: float) -> BlockFigures:
        return BlockFigures(
            seconds=seconds,
            offered=self._sums["offered"],
            missed=self._sums["missed"],
            refused=self._sums["refused"],
            failed=self._sums["failed"],
            unfinished=self._sums["unfinished"],
            spilled=self._sums["spilled"],
            ttft=self._times["ttft"],
            tpot=self._times["tpot"],
            e2e=self._times["e2e"],
        )

    def add(self, row: RequestRow, ended: EndRow | None) -> None:
        if row.refusal is not None:
            if row.refusal in _NO_ROOM:
                self._note("offered", "missed", "refused")
            return
        if ended is None:
            self._note("offered", "missed", "unfinished")
        elif ended.reason in _WHOLE:
            self._answered(row, ended)
        elif ended.reason == FinishReason.ABORT.value:
            self._left(row, ended)
        elif ended.reason == ENGINE_ENDED:
            self._note("offered", "missed", "unfinished")
        else:
            self._note("offered", "missed", "failed")

    def _answered(self, row: RequestRow, ended: EndRow) -> None:
        self._note("offered")
        if ended.at >= self._end:
            self._note("spilled")
        first = row.seconds_until(ended.at if ended.first_token is None else ended.first_token)
        assert first is not None
        e2e = ended.e2e / 1e6
        each = time_per_output_token(first, e2e, ended.output_tokens)
        self._times["ttft"].append(round(first, 4))
        self._times["e2e"].append(round(e2e, 4))
        if each is not None:
            self._times["tpot"].append(round(each, 4))
        if first > self._ttft or (each or 0.0) > self._tpot:
            self._note("missed")

    def _left(self, row: RequestRow, ended: EndRow) -> None:
        """The client left. If it had waited too long by then, that was our doing."""
        first = row.seconds_until(ended.first_token)
        waited = ended.e2e / 1e6 if first is None else first
        each = None if first is None else time_per_output_token(first, ended.e2e / 1e6, ended.output_tokens)
        if waited > self._ttft or (each or 0.0) > self._tpot:
            self._note("offered", "missed")

    def _note(self, *names: str) -> None:
        for name in names:
            self._sums[name] += 1


# --- metrics


def _by_runs(_run: object, _objectives: object) -> None:
    """The parts of these metrics come from blocks of the ledger, not from runs of an evaluation."""


def _share(name: str, formula: str) -> MetricDef:
    return MetricDef(name=name, formula=formula, unit="share", direction="down", of_run=_by_runs, scale="difference")


def _latency(name: str, formula: str, level: float) -> MetricDef:
    return MetricDef(
        name=name,
        formula=formula,
        unit="s",
        direction="down",
        of_run=_by_runs,
        pooled=pooled_percentile(level),
        min_values=MIN_VALUES_FOR_P99 if level == 99.0 else 1,
        count=number_of_values,
    )


_LATENCIES: Final = {
    f"{kind}_p{level}": (kind, _latency(f"{kind}_p{level}", f"percentile {level} of {formula}", float(level)))
    for kind, formula in (
        ("ttft", "first token - arrival"),
        ("tpot", "(last token - first token) / (output tokens - 1)"),
        ("e2e", "last token - arrival"),
    )
    for level in (50, 99)
}
_SHARES: Final[dict[str, tuple[Callable[[BlockFigures], int], MetricDef]]] = {
    "slo_missed_share": (
        lambda block: block.missed,
        _share("slo_missed_share", "requests not answered whole within TTFT and TPOT / all offered"),
    ),
    "refused_share": (lambda block: block.refused, _share("refused_share", "refused for want of room / all offered")),
    "error_share": (
        lambda block: block.failed,
        _share("error_share", "ended in an error or out of time / all offered"),
    ),
}
_GOODPUT: Final = MetricDef(
    name="goodput_per_second",
    formula="requests answered whole within TTFT and TPOT / seconds of their arrivals",
    unit="1/s",
    direction="up",
    of_run=_by_runs,
)
METRICS: Final[dict[str, MetricDef]] = (
    {name: each for name, (_, each) in _SHARES.items()}
    | {_GOODPUT.name: _GOODPUT}
    | {name: each for name, (_, each) in _LATENCIES.items()}
)
"""By name. A share is compared as candidate - baseline, all others as candidate / baseline."""


def part_of(metric: str, block: BlockFigures) -> Any:
    """What a block contributes to a metric, as :class:`MetricDef` pools it; None where it has nothing."""
    if metric in _SHARES:
        return Sums(_SHARES[metric][0](block), block.offered) if block.offered else None
    if metric == _GOODPUT.name:
        return Sums(block.offered - block.missed, block.seconds)
    values = getattr(block, _LATENCIES[metric][0])
    return np.array(values) if values else None
