"""Tables of what was found: comparisons without a threshold, noise, failures, calibration, fairness and tuning."""

from collections.abc import Mapping, Sequence
from typing import Any

from ekiden.evaluation.outcome import ArmFigures, Calibrated, Comparison, MetricOutcome, Tuning, WorstCase
from ekiden.evaluation.report.tables import Cell, Fold, Table, TableMaker

SEVERITIES = ("lost", "wrong", "late", "slow")
_OF_LANGUAGES = ("language_pairs", "language_gap", "other_to_english_e2e", "other_to_english_ttft")
_OF_SLOWDOWNS = ("slowdowns", "slowdown_p50", "slowdown_p99", "slowdown_max")
_WHERE = ("workload", "arm", "subgroup")


class FindingTables:
    def __init__(self, maker: TableMaker) -> None:
        self._make, self._words, self._numbers = maker, maker.words, maker.numbers

    def measured(self, metrics: Sequence[MetricOutcome]) -> Fold | None:
        """What was compared without a threshold: a row a comparison, grouped by metric; None where there is none."""
        if not metrics:
            return None
        rows: list[list[Cell]] = []
        heads: dict[int, Cell] = {}
        names = list(dict.fromkeys(metric.metric for metric in metrics))
        for name in names:
            heads[len(rows)] = self._make.headed(name)
            rows += [self._comparison(metric) for metric in metrics if metric.metric == name]
        candidates = ", ".join(dict.fromkeys(metric.candidate for metric in metrics))
        columns = self._make.columns("workload", "against")
        columns += [candidates, *self._make.columns("other", "result", "interval", "blocks")]
        workloads = len({metric.workload for metric in metrics})
        inside = self._words("metrics.inside", n=len(metrics), metrics=len(names), workloads=workloads)
        table = Table(
            caption=self._words("metrics.measured"), columns=columns, rows=rows, words=frozenset({0, 1}), heads=heads
        )
        return Fold(title=self._words("metrics.measured"), inside=inside, tables=[table])

    def _comparison(self, metric: MetricOutcome) -> list[Cell]:
        found, unit = metric.comparison, metric.unit
        both = found.scale == "share"
        values = ["–" if both else self._numbers.of(value, unit) for value in (found.candidate, found.baseline)]
        result = Cell(self._numbers.result(found, unit), found.note, sub_lang=self._words.foreign(found.note))
        interval = Cell(self._numbers.result_interval(found, unit) or "–")
        rest = [result, interval, Cell(f"{found.blocks:,}")]
        return [Cell(metric.workload), Cell(metric.baseline), *(Cell(value) for value in values), *rest]

    def noise(self, found: Sequence[Comparison]) -> Table:
        rows = []
        for index, case in enumerate(found, 1):
            metric, on, workload = case.note.partition(" on ")
            unit = self._make.units.get(metric, "")
            if on and metric in self._make.formulas:
                name = Cell(self._words("noise.name", metric=self._words.name("metric", metric), workload=workload))
            else:
                name = self._make.written(case.note or str(index))
            interval = self._numbers.result_interval(case, unit) or "–"
            rows.append([name, Cell(self._numbers.result(case, unit)), Cell(interval), Cell(f"{case.blocks:,}")])
        columns = self._make.columns("figure", "result", "interval", "blocks")
        return Table(caption=self._words("noise.caption"), columns=columns, rows=rows)

    def failures(self, arms: Sequence[ArmFigures]) -> Table | None:
        rows = [
            [Cell(arm.workload), Cell(arm.arm), Cell(self._words.name("failure", kind)), Cell(f"{count:,}")]
            for arm in arms
            for kind, count in sorted(arm.failures.items())
        ]
        if not rows:
            return None
        columns = self._make.columns("workload", "arm", "kind", "count")
        return Table(caption=self._words("failures.caption"), columns=columns, rows=rows, words=frozenset({0, 1, 2}))

    def worst(self, cases: Sequence[WorstCase]) -> Fold:
        """From worst to mildest."""
        rank = {severity: index for index, severity in enumerate(SEVERITIES)}
        ordered = sorted(cases, key=lambda case: rank.get(case.severity, len(rank)))
        rows = [
            [
                Cell(self._words.name("severity", case.severity)),
                Cell(case.workload),
                Cell(case.arm),
                Cell(self._words.name("failure", case.kind), text := self._words.of(case.whats) or case.what,
                     sub_lang=self._words.foreign(text)),
                Cell(case.request_id, code=True),
                Cell(case.explain, code=True) if case.explain else Cell(self._words("page.none")),
            ]
            for case in ordered
        ]  # fmt: skip
        columns = self._make.columns("severity", "workload", "arm", "what", "request", "explain")
        title = self._words("failures.worst")
        counts = {severity: sum(case.severity == severity for case in ordered) for severity in SEVERITIES}
        told = [f"{self._words.name('severity', name)} {count}" for name, count in counts.items() if count]
        table = Table(caption=title, columns=columns, rows=rows, words=frozenset(range(6)))
        inside = self._words("failures.inside", counts=", ".join(told))
        return Fold(title=title, inside=inside, tables=[table])

    def calibration(self, found: Sequence[Calibrated]) -> Table:
        """Over all requests; what was compared with what stands below each kind of prediction."""
        whole = [case for case in found if not case.subgroup]
        rows: list[list[Cell]] = []
        heads: dict[int, Cell] = {}
        for predicted in dict.fromkeys(case.predicted for case in whole):
            cases = [case for case in whole if case.predicted == predicted]
            how = self._words.of(cases[0].hows) or cases[0].how
            heads[len(rows)] = Cell(self._words.name("predicted", predicted), how, sub_lang=self._words.foreign(how))
            rows += [[Cell(case.arm), *self._calibrated(case)] for case in cases]
        columns = self._make.columns("arm", "stated", "observed", "n", "median_relative_error")
        return Table(caption=self._words("calibration.caption"), columns=columns, rows=rows, heads=heads)

    def calibration_parts(self, found: Sequence[Calibrated]) -> Fold | None:
        """The same by subgroup, the arms below each other; None where nobody was told apart."""
        parts = [case for case in found if case.subgroup]
        if not parts:
            return None
        rows: list[list[Cell]] = []
        heads: dict[int, Cell] = {}
        for predicted in dict.fromkeys(case.predicted for case in parts):
            cases = [case for case in parts if case.predicted == predicted]
            order = list(dict.fromkeys(case.subgroup for case in cases))
            heads[len(rows)] = Cell(self._words.name("predicted", predicted))
            cases = [case for subgroup in order for case in cases if case.subgroup == subgroup]
            rows += [
                [Cell(self._words.subgroup(case.subgroup)), Cell(case.arm), *self._calibrated(case)] for case in cases
            ]
        columns = self._make.columns("subgroup", "arm", "stated", "observed", "n", "median_relative_error")
        title = self._words("calibration.parts")
        kinds = dict.fromkeys(self._words.name("subgroup", case.subgroup.partition("=")[0]) for case in parts)
        table = Table(caption=title, columns=columns, rows=rows, words=frozenset({0, 1}), heads=heads)
        return Fold(title=title, inside=", ".join(kinds), tables=[table])

    def _calibrated(self, case: Calibrated) -> list[Cell]:
        shares = [self._numbers.share(share) for share in (case.stated, case.observed)]
        error = self._numbers.share(case.median_relative_error)
        return [*(Cell(share) for share in shares), Cell(f"{case.n:,}"), Cell(error)]

    def fairness(self, found: Sequence[Mapping[str, Any]]) -> list[Table]:
        """Over all requests, between tenants and between languages: those of the two that there are."""
        whole = [row for row in found if not row.get("subgroup")]
        keys = list(dict.fromkeys(key for row in whole for key in row if key not in _WHERE))
        topics = {
            "tenants": [key for key in keys if key not in (*_OF_LANGUAGES, *_OF_SLOWDOWNS)],
            "languages": [key for key in keys if key in _OF_LANGUAGES],
        }
        tables = (self._topic(topic, whole, names) for topic, names in topics.items())
        return [table for table in tables if table is not None]

    def slowdowns(self, found: Sequence[Mapping[str, Any]]) -> Fold | None:
        """How much slower than alone: over all requests, then by subgroup; None where nobody can say."""
        whole = self._topic("slowdowns", [row for row in found if not row.get("subgroup")], _OF_SLOWDOWNS)
        parts = [row for row in found if row.get("subgroup")]
        tables = [table for table in (whole, self._slowdowns_of_parts(parts) if parts else None) if table is not None]
        if not tables:
            return None
        kinds = dict.fromkeys(self._words.name("subgroup", str(row["subgroup"]).partition("=")[0]) for row in parts)
        inside = ", ".join([self._words("page.all_requests"), *kinds])
        return Fold(title=self._words("metric.slowdown"), inside=inside, tables=tables)

    def _topic(self, topic: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Table | None:
        """Those rows that have any of the figures; None where there is none."""
        shown = [
            {key: value for key, value in row.items() if key in names or key in ("workload", "arm")}
            for row in rows
            if any(row.get(name) is not None for name in names)
        ]
        return self._make.of_mappings(self._words(f"fairness.{topic}"), shown) if shown else None

    def _slowdowns_of_parts(self, parts: Sequence[Mapping[str, Any]]) -> Table:
        """Grouped by workload, and within it the arms below each other."""
        heads: dict[int, Cell] = {}
        rows: list[Mapping[str, Any]] = []
        for workload in dict.fromkeys(str(row.get("workload", "")) for row in parts):
            heads[len(rows)] = Cell(workload)
            here = [row for row in parts if str(row.get("workload", "")) == workload]
            order = list(dict.fromkeys(row["subgroup"] for row in here))
            ordered = sorted(here, key=lambda row: order.index(row["subgroup"]))
            rows += [{"subgroup": self._words.subgroup(str(row["subgroup"]))} | _without(row) for row in ordered]
        plain = self._make.of_mappings(self._words("fairness.parts"), rows)
        return Table(caption=plain.caption, columns=plain.columns, rows=plain.rows, words=plain.words, heads=heads)

    def trials(self, tuning: Tuning) -> Fold:
        title = self._words("tuning.trials", arm=tuning.arm)
        table = self._make.of_mappings(title, tuning.trials)
        return Fold(title=title, inside=self._words("tuning.inside", n=len(tuning.trials)), tables=[table])


def _without(row: Mapping[str, Any]) -> dict[str, Any]:
    """Without what stands above the rows, or before them."""
    return {key: value for key, value in row.items() if key not in ("workload", "subgroup")}
