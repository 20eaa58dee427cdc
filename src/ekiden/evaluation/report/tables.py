"""Tables of the report as plain values: a caption, columns and rows; ``data/report/marks.html`` writes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ekiden.evaluation.outcome import ArmFigures, Calibrated, Comparison, Outcome, Tuning, WorstCase
from ekiden.evaluation.report.numbers import Numbers
from ekiden.evaluation.report.words import Words

SEVERITIES = ("lost", "wrong", "late", "slow")
DISTRIBUTIONS = ("ttft", "tpot", "itl", "largest_gap", "e2e", "slowdown", "send_lag")
_LONGEST_WORD = 24
_QUANTILES = ("mean", "p50", "p90", "p95", "p99", "p999", "max")
_SUBGROUP_SCALARS = ("slo_attainment", "goodput")


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    sub: str = ""
    """Small print below it, such as a formula."""
    code: bool = False

    @property
    def long(self) -> bool:
        """Whether a word of it is so long that it may be broken anywhere."""
        return any(len(word) > _LONGEST_WORD for word in self.text.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The first cell of a row is its heading. ``words`` are the columns, by index, that hold text and no figures."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: frozenset[int] = field(default=frozenset({0}))


def unit_of(figure: str) -> str:
    """Of a distribution: seconds, but for slowdowns, which are ratios."""
    return "" if figure == "slowdown" else "s"


class Tables:
    """Makes the tables of one outcome in one language."""

    def __init__(self, outcome: Outcome, words: Words, numbers: Numbers) -> None:
        self._outcome, self._words, self._numbers = outcome, words, numbers
        self._units = {metric.metric: metric.unit for metric in outcome.metrics} | outcome.units
        self._formulas = {metric.metric: metric.formula for metric in outcome.metrics} | outcome.formulas

    def scalars(self, workload: str, kind: str, arms: Sequence[ArmFigures]) -> Table:
        """A row for each figure with its formula, a column for each arm."""
        names = list(dict.fromkeys(name for arm in arms for name in arm.scalars))
        rows = [
            [self._head("column", "requests"), *(Cell(f"{arm.offered:,}") for arm in arms)],
            [self._head("column", "good"), *(Cell(f"{arm.good:,}") for arm in arms)],
        ]
        for name in names:
            values = [self._scalar(arm, name) for arm in arms]
            rows.append([self._head("metric", name), *values])
        caption = self._words("figures.caption", workload=workload, kind=self._words.name("kind", kind))
        return Table(caption=caption, columns=self._columns("figure", [arm.arm for arm in arms]), rows=rows)

    def quantiles(self, workload: str, kind: str, arms: Sequence[ArmFigures]) -> Table | None:
        """A row for each distribution of each arm; None where there is none."""
        known = list(dict.fromkeys([*DISTRIBUTIONS, *(name for arm in arms for name in arm.distributions)]))
        rows = []
        for name in known:
            drawn = [(arm.arm, found) for arm in arms if (found := arm.distributions.get(name)) is not None]
            for index, (arm_name, found) in enumerate(drawn):
                head = Cell(self._words.name("metric", name)) if index else self._head("metric", name)
                values = [self._numbers.of(getattr(found, part), unit_of(name)) for part in _QUANTILES]
                rows.append([head, Cell(arm_name), Cell(f"{found.n:,}"), *(Cell(value) for value in values)])
        if not rows:
            return None
        caption = self._words("figures.tail", workload=workload, kind=self._words.name("kind", kind))
        names = {"mean": self._words("column.mean"), "max": self._words("column.max"), "p999": "p99.9"}
        shown = [names.get(part, part) for part in _QUANTILES]
        columns = self._columns("figure", [self._words("column.arm"), self._words("column.n"), *shown])
        return Table(caption=caption, columns=columns, rows=rows, words=frozenset({0, 1}))

    def subgroups(self, workload: str, arms: Sequence[ArmFigures]) -> Table:
        rows = []
        for arm in sorted(arms, key=lambda arm: arm.subgroup):
            ttft = arm.distributions.get("ttft")
            rows.append(
                [
                    Cell(arm.subgroup),
                    Cell(arm.arm),
                    Cell(f"{arm.offered:,}"),
                    Cell(f"{arm.good:,}"),
                    *(self._scalar(arm, name) for name in _SUBGROUP_SCALARS),
                    *(Cell(self._numbers.of(getattr(ttft, part, None), "s")) for part in ("p50", "p99")),
                ]
            )
        ttft_name = self._words.name("metric", "ttft")
        columns = [self._words(f"column.{name}") for name in ("subgroup", "arm", "requests", "good")]
        columns += [self._words.name("metric", name) for name in _SUBGROUP_SCALARS]
        columns += [f"{ttft_name} {part}" for part in ("p50", "p99")]
        caption = self._words("figures.subgroups", workload=workload)
        return Table(caption=caption, columns=columns, rows=rows, words=frozenset({0, 1}))

    def failures(self, arms: Sequence[ArmFigures]) -> Table | None:
        rows = [
            [Cell(arm.workload), Cell(arm.arm), Cell(kind), Cell(f"{count:,}")]
            for arm in arms
            for kind, count in sorted(arm.failures.items())
        ]
        if not rows:
            return None
        columns = [self._words(f"column.{name}") for name in ("workload", "arm", "kind", "count")]
        words = frozenset({0, 1, 2})
        return Table(caption=self._words("failures.caption"), columns=columns, rows=rows, words=words)

    def worst(self, cases: Sequence[WorstCase]) -> Table:
        """From worst to mildest."""
        rank = {severity: index for index, severity in enumerate(SEVERITIES)}
        rows = [
            [
                Cell(case.request_id, code=True),
                Cell(self._words.name("severity", case.severity)),
                Cell(case.arm),
                Cell(case.workload),
                Cell(case.kind, case.what),
                Cell(self._numbers.of(case.value)),
                Cell(case.explain, code=True) if case.explain else Cell(self._words("page.none")),
            ]
            for case in sorted(cases, key=lambda case: rank.get(case.severity, len(rank)))
        ]
        columns = [
            self._words(f"column.{name}")
            for name in ("request", "severity", "arm", "workload", "what", "value", "explain")
        ]
        words = frozenset({0, 1, 2, 3, 4, 6})
        return Table(caption=self._words("failures.worst"), columns=columns, rows=rows, words=words)

    def calibration(self, found: Sequence[Calibrated]) -> Table:
        rows = [
            [
                Cell(case.predicted),
                Cell(case.arm),
                Cell(case.subgroup or self._words("page.all_requests")),
                Cell(self._numbers.share(case.stated)),
                Cell(self._numbers.share(case.observed)),
                Cell(f"{case.n:,}"),
                Cell(self._numbers.share(case.median_relative_error)),
            ]
            for case in found
        ]
        names = ("predicted", "arm", "subgroup", "stated", "observed", "n", "median_relative_error")
        columns = [self._words(f"column.{name}") for name in names]
        words = frozenset({0, 1, 2})
        return Table(caption=self._words("calibration.caption"), columns=columns, rows=rows, words=words)

    def noise(self, found: Sequence[Comparison]) -> Table:
        rows = [
            [
                Cell(case.note or str(index)),
                Cell(self._numbers.ratio(case.ratio)),
                Cell(self._numbers.interval(case.low, case.high)),
                Cell(f"{case.blocks:,}"),
            ]
            for index, case in enumerate(found, 1)
        ]
        columns = [self._words(f"column.{name}") for name in ("figure", "ratio", "interval", "blocks")]
        return Table(caption=self._words("noise.caption"), columns=columns, rows=rows)

    def trials(self, tuning: Tuning) -> Table:
        return self.of_mappings(self._words("tuning.trials", arm=tuning.arm), tuning.trials)

    def of_mappings(self, caption: str, rows: Sequence[Mapping[str, Any]]) -> Table:
        """A table of whatever keys there are, in the order in which they first come."""
        keys = list(dict.fromkeys(key for row in rows for key in row))
        # A column of words stands left; that of figures right, so that they compare.
        words = {
            index for index, key in enumerate(keys) if any(isinstance(row.get(key), str | Mapping) for row in rows)
        }
        cells = [[Cell(self._value(key, row[key])) if key in row else Cell("–") for key in keys] for row in rows]
        columns = [self._column(key) for key in keys]
        return Table(caption=caption, columns=columns, rows=cells, words=frozenset(words | {0}))

    def pairs(self, caption: str, values: Mapping[str, Any]) -> Table:
        """Nested mappings as one row a value, their names joined with dots."""
        rows = [[Cell(name), Cell(self._numbers.plain(value))] for name, value in _flat(values)]
        columns = [self._words("column.name"), self._words("column.value")]
        return Table(caption=caption, columns=columns, rows=rows, words=frozenset({0, 1}))

    def _scalar(self, arm: ArmFigures, name: str) -> Cell:
        if name not in arm.scalars:
            return Cell("–")
        return Cell(self._numbers.of(arm.scalars[name], self._units.get(name, "")))

    def _value(self, key: str, value: Any) -> str:
        """A number in the unit of its name, where that is a figure's."""
        is_figure = isinstance(value, float) and key in self._units
        return self._numbers.of(value, self._units[key]) if is_figure else self._numbers.plain(value)

    def _head(self, section: str, name: str) -> Cell:
        return Cell(self._words.name(section, name), self._formulas.get(name, ""))

    def _column(self, key: str) -> str:
        known = self._words.name("column", key)
        return known if known != key.replace("_", " ") else self._words.name("metric", key)

    def _columns(self, first: str, others: Sequence[str]) -> list[str]:
        return [self._words(f"column.{first}"), *others]


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found += _flat(value, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", value))
    return found
