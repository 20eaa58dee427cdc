"""Tables of the figures by workload and arm: all at a glance, each in full with its formula, and by subgroup."""

from collections.abc import Sequence

from ekiden.evaluation.outcome import ArmFigures
from ekiden.evaluation.report.tables import NOTHING, Cell, Fold, Table, TableMaker

DISTRIBUTIONS = ("ttft", "tpot", "itl", "largest_gap", "e2e", "slowdown", "send_lag")
_QUANTILES = ("mean", "p50", "p90", "p95", "p99", "p999", "max")
_OVERVIEW = ("goodput", "slo_attainment", "ttft_p50", "ttft_p95", "tpot_p50", "e2e_p95", "output_tokens_per_second")
_SUBGROUP_SCALARS = ("slo_attainment", "goodput")


def unit_of(figure: str) -> str:
    """Of a distribution: seconds, but for slowdowns, which are ratios."""
    return "" if figure == "slowdown" else "s"


class FigureTables:
    def __init__(self, maker: TableMaker) -> None:
        self._make, self._words, self._numbers = maker, maker.words, maker.numbers

    def overview_names(self, arms: Sequence[ArmFigures]) -> list[str]:
        """The figures that stand at a glance, those that some arm has."""
        return [name for name in _OVERVIEW if any(arm.scalars.get(name) is not None for arm in arms)]

    def overview(self, arms: Sequence[ArmFigures], kinds: dict[str, str]) -> Table | None:
        """A row for each arm on each workload; None without figures."""
        if not arms:
            return None
        names = self.overview_names(arms)
        rows = [
            [
                Cell(arm.workload),
                Cell(self._words.name("kind", kinds.get(arm.workload, ""))),
                Cell(arm.arm),
                Cell(f"{arm.offered:,}"),
                Cell(f"{arm.good:,}"),
                *(self._scalar(arm, name) for name in names),
            ]
            for arm in arms
        ]
        columns = self._make.columns("workload", "kind", "arm", "requests", "good")
        columns += [self._words.name("metric", name) for name in names]
        caption = self._words("figures.overview")
        return Table(caption=caption, columns=columns, rows=rows, words=frozenset({0, 1, 2}))

    def of_workload(self, workload: str, kind: str, arms: Sequence[ArmFigures]) -> Fold:
        """All figures and distributions of one workload."""
        scalars, quantiles = self.scalars(arms), self.quantiles(arms)
        inside = self._words(
            "figures.inside",
            figures=len(scalars.rows),
            distributions=len({name for arm in arms for name in arm.distributions}),
            arms=", ".join(arm.arm for arm in arms),
        )
        title = self._words("figures.charts", workload=workload, kind=self._words.name("kind", kind))
        return Fold(title=title, inside=inside, tables=[scalars, quantiles] if quantiles else [scalars])

    def scalars(self, arms: Sequence[ArmFigures]) -> Table:
        """A row for each figure: a column for each arm, and the formula."""
        names = list(dict.fromkeys(name for arm in arms for name in arm.scalars))
        rows = [
            [Cell(self._words("column.requests")), *(Cell(f"{arm.offered:,}") for arm in arms), NOTHING],
            [
                Cell(self._words("column.good")),
                *(Cell(f"{arm.good:,}") for arm in arms),
                self._make.formula("good"),
            ],
        ]
        for name in names:
            values = [self._scalar(arm, name) for arm in arms]
            rows.append([Cell(self._words.name("metric", name)), *values, self._make.formula(name)])
        arm_names = [arm.arm for arm in arms]
        return Table(
            caption=self._words("figures.caption"),
            columns=[self._words("column.figure"), *arm_names, self._words("page.formula")],
            rows=rows,
            words=frozenset({0, len(arm_names) + 1}),
        )

    def quantiles(self, arms: Sequence[ArmFigures]) -> Table | None:
        """A row for each distribution of each arm, under its formula; None where there is none."""
        known = list(dict.fromkeys([*DISTRIBUTIONS, *(name for arm in arms for name in arm.distributions)]))
        rows: list[list[Cell]] = []
        heads: dict[int, Cell] = {}
        for name in known:
            drawn = [(arm.arm, found) for arm in arms if (found := arm.distributions.get(name)) is not None]
            if drawn:
                heads[len(rows)] = self._make.headed(name)
            for arm_name, found in drawn:
                values = [self._numbers.of(getattr(found, part), unit_of(name)) for part in _QUANTILES]
                rows.append([Cell(arm_name), Cell(f"{found.n:,}"), *(Cell(value) for value in values)])
        if not rows:
            return None
        names = {"mean": self._words("column.mean"), "max": self._words("column.max"), "p999": "p99.9"}
        columns = [*self._make.columns("arm", "n"), *(names.get(part, part) for part in _QUANTILES)]
        return Table(caption=self._words("figures.tail"), columns=columns, rows=rows, heads=heads)

    def subgroups(self, workload: str, kind: str, arms: Sequence[ArmFigures]) -> Fold:
        """The arms side by side within each subgroup, subgroups in the order in which they first come."""
        order = list(dict.fromkeys(arm.subgroup for arm in arms))
        rows = []
        for arm in sorted(arms, key=lambda arm: order.index(arm.subgroup)):
            ttft = arm.distributions.get("ttft")
            rows.append(
                [
                    Cell(self._words.subgroup(arm.subgroup)),
                    Cell(arm.arm),
                    Cell(f"{arm.offered:,}"),
                    Cell(f"{arm.good:,}"),
                    *(self._scalar(arm, name) for name in _SUBGROUP_SCALARS),
                    *(Cell(self._numbers.of(getattr(ttft, part, None), "s")) for part in ("p50", "p99")),
                ]
            )
        ttft_name = self._words.name("metric", "ttft")
        columns = self._make.columns("subgroup", "arm", "requests", "good")
        columns += [self._words.name("metric", name) for name in _SUBGROUP_SCALARS]
        columns += [f"{ttft_name} {part}" for part in ("p50", "p99")]
        title = self._words("figures.charts", workload=workload, kind=self._words.name("kind", kind))
        kinds = dict.fromkeys(self._words.name("subgroup", name.partition("=")[0]) for name in order)
        table = Table(caption=title, columns=columns, rows=rows, words=frozenset({0, 1}))
        inside = self._words("figures.subgroups_inside", n=len(order), kinds=", ".join(kinds))
        return Fold(title=title, inside=inside, tables=[table])

    def _scalar(self, arm: ArmFigures, name: str) -> Cell:
        return Cell(self._make.figure(name, arm.scalars[name])) if name in arm.scalars else NOTHING
