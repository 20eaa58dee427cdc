"""Tables of the report as plain values: a caption, columns and rows; ``data/report/marks.html`` writes them.

:mod:`figure_tables` makes those of what was measured, :mod:`finding_tables` those of what was found in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ekiden.evaluation.outcome import Outcome
from ekiden.evaluation.report.numbers import Numbers
from ekiden.evaluation.report.words import Words

_LONGEST_WORD = 24


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    sub: str = ""
    """Small print below it."""
    code: bool = False
    lang: str = ""
    """Of the text, where it is not the page's."""
    sub_lang: str = ""

    @property
    def long(self) -> bool:
        """Whether a word of it is so long that it may be broken anywhere."""
        return any(len(word) > _LONGEST_WORD for word in self.text.split())


NOTHING = Cell("–")
"""Where a row has nothing to say of a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The first cell of a row is its heading. ``words`` are the columns, by index, that hold text and no figures."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: frozenset[int] = field(default=frozenset({0}))
    heads: Mapping[int, Cell] = field(default_factory=dict)
    """Headings of groups of rows, by the index of the row before which one stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A part that is closed on the screen: its title, what is inside in a few words, and its tables."""

    title: str
    inside: str
    tables: Sequence[Table]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Names and values of one topic."""

    title: str
    pairs: Sequence[tuple[str, str]]


class TableMaker:
    """What the tables of one outcome in one language have in common."""

    def __init__(self, outcome: Outcome, words: Words, numbers: Numbers) -> None:
        self.outcome, self.words, self.numbers = outcome, words, numbers
        self.units = {metric.metric: metric.unit for metric in outcome.metrics} | outcome.units
        self.units.setdefault("attainment", "share")  # as trials call it
        self.formulas = {metric.metric: metric.formula for metric in outcome.metrics} | outcome.formulas

    def figure(self, name: str, value: float | None) -> str:
        """In the unit of its name; what nobody measured is told from what could not be estimated."""
        return self.numbers.of(value, self.units.get(name, ""))

    def written(self, text: str) -> Cell:
        """A text that somebody wrote in a language that need not be the page's."""
        return Cell(text, lang=self.words.foreign(text))

    def formula(self, name: str) -> Cell:
        text = self.formulas.get(name, "")
        return Cell(text, lang=self.words.foreign(text)) if text else NOTHING

    def headed(self, name: str) -> Cell:
        """The name of a figure above its formula."""
        formula = self.formulas.get(name, "")
        return Cell(self.words.name("metric", name), formula, sub_lang=self.words.foreign(formula))

    def column(self, key: str) -> str:
        known = self.words.name("column", key)
        return known if known != key.replace("_", " ") else self.words.name("metric", key)

    def columns(self, *names: str) -> list[str]:
        return [self.words(f"column.{name}") for name in names]

    def of_mappings(self, caption: str, rows: Sequence[Mapping[str, Any]], leave_out: Sequence[str] = ()) -> Table:
        """A table of whatever keys there are, in the order in which they first come, those that say nothing apart."""
        keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in leave_out]
        keys = [key for key in keys if any(row.get(key) not in (None, "", [], {}) for row in rows)]
        # A column of words stands left; that of figures right, so that they compare.
        words = {
            index
            for index, key in enumerate(keys)
            if any(isinstance(row.get(key), str | Mapping | list | tuple) for row in rows)
        }
        cells = [[self._value(key, row[key]) if key in row else NOTHING for key in keys] for row in rows]
        columns = [self.column(key) for key in keys]
        return Table(caption=caption, columns=columns, rows=cells, words=frozenset(words | {0}))

    def pairs(self, caption: str, values: Mapping[str, Any]) -> Table:
        """Nested mappings as one row a value, their names joined with dots."""
        rows = [
            [Cell(self.words.name("lineage_part", name)), Cell(self.numbers.plain(value))]
            for name, value in _flat(values)
        ]
        columns = [self.words("column.name"), self.words("column.value")]
        return Table(caption=caption, columns=columns, rows=rows, words=frozenset({0, 1}))

    def made(self, workload: Mapping[str, Any]) -> list[tuple[str, str]]:
        """How the requests of a workload were made, and their digests."""
        made = workload.get("made")
        named = dict(made) if isinstance(made, Mapping) else {}
        return self._pairs(named | {key: workload[key] for key in ("digest", "digests") if key in workload})

    def topics(self, values: Mapping[str, Any]) -> list[Pairs]:
        """A topic for each mapping in it; single values come together under no title, first."""
        single = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
        topics = {name: value for name, value in values.items() if isinstance(value, Mapping) and value}
        found = [Pairs(title=self.words.name("lineage_part", name), pairs=self._pairs(topics[name])) for name in topics]
        named = {self.words.name("lineage_part", name): value for name, value in single.items()}
        return [Pairs(title="", pairs=self._pairs(named)), *found] if single else found

    def _pairs(self, values: Mapping[str, Any]) -> list[tuple[str, str]]:
        return [(name, self._setting(value)) for name, value in _flat(values)]

    def _setting(self, value: Any) -> str:
        """A setting counts nothing: a seed or a port has no commas, and what is None was not set."""
        if value is None:
            return self.words("page.not_set")
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else self.numbers.plain(value)

    def _value(self, key: str, value: Any) -> Cell:
        """A number in the unit of its name, where that is a figure's; a word of ours in the page's language."""
        if isinstance(value, float) and key in self.units:
            return Cell(self.figure(key, value))
        if value is None and key in self.formulas:
            return Cell(self.numbers.of(None))
        if isinstance(value, str) and value:
            return self.written(self.words.name("value", value)) if " " not in value else self.written(value)
        return self._plain(value)

    def _plain(self, value: Any) -> Cell:
        return Cell(self.numbers.plain(value)) if value not in ("", [], {}) else NOTHING


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found += _flat(value, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", value))
    return found
