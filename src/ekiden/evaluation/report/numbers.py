"""Figures as text. What could not be had is said in words, never left empty."""

import math
from collections.abc import Mapping
from typing import Any

from ekiden.evaluation.outcome import Comparison
from ekiden.evaluation.report.words import Words

SECONDS = {"s", "second", "seconds"}
SHARES = {"share", "fraction"}
_RATIO_FROM, _RATIO_TO = 0.001, 1000.0


class Numbers:
    """Writes figures in one language."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def of(self, value: float | None, unit: str = "") -> str:
        """A figure with its unit: seconds as ms or s, shares as percent, all else with three digits that count."""
        if value is None or math.isnan(value):
            return self._words("page.not_estimable")
        if unit in SECONDS:
            return self.seconds(value)
        if unit in SHARES:
            return self.share(value)
        return f"{_three_digits(value)} {self._words.name('unit', unit)}".strip()

    def seconds(self, value: float | None) -> str:
        if value is None:
            return self._words("page.not_estimable")
        return f"{_three_digits(value * 1000)} ms" if 0 < abs(value) < 1 else f"{_three_digits(value)} s"

    def share(self, value: float | None) -> str:
        if value is None:
            return self._words("page.not_estimable")
        return f"{value * 100:.2f}".rstrip("0").rstrip(".") + "%"

    def ratio(self, value: float | None) -> str:
        """Such as ``1.23×``; far from 1 with three digits that count."""
        if value is None:
            return self._words("page.not_estimable")
        return f"{value:.3f}×" if _RATIO_FROM <= abs(value) < _RATIO_TO else f"{_three_digits(value)}×"

    def interval(self, low: float | None, high: float | None) -> str:
        """An end that is None is open, as that of a one-sided bound."""
        if low is None and high is None:
            return self._words("page.not_estimable")
        ends = ["−∞" if low is None else f"{low:.3f}", "∞" if high is None else f"{high:.3f}"]
        return f"{ends[0]} … {ends[1]}"

    def difference(self, value: float | None, unit: str) -> str:
        """With its sign, in the figure's own unit: of shares in percentage points, such as ``+46.9 pp``."""
        if value is None:
            return self._words("page.not_estimable")
        sign = "+" if value > 0 else "−" if value < 0 else ""
        if unit in SHARES:
            return f"{sign}{_three_digits(abs(value) * 100)} {self._words('page.points')}"
        return sign + self.of(abs(value), unit)

    def result(self, found: Comparison, unit: str) -> str:
        """What a comparison came to, by its scale: a ratio, a difference, or the one share that both arms have."""
        if found.scale == "difference":
            return self.difference(found.ratio, unit)
        return self.share(found.ratio) if found.scale == "share" else self.ratio(found.ratio)

    def result_interval(self, found: Comparison, unit: str) -> str:
        """By the same scale; empty for a share that was counted, about which there is no chance."""
        if found.scale == "share" and found.ratio is not None:
            return ""
        if found.scale != "difference" or (found.low is None and found.high is None):
            return self.interval(found.low, found.high)
        low = "−∞" if found.low is None else self.difference(found.low, unit)
        high = "∞" if found.high is None else self.difference(found.high, unit)
        if unit in SHARES:  # once is enough
            low = low.removesuffix(f" {self._words('page.points')}")
        return f"{low} … {high}"

    def plain(self, value: Any) -> str:
        """A value of a table that somebody else made: a number, a text, a list or a mapping."""
        if value is None:
            return self._words("page.not_measured")
        if isinstance(value, bool):
            return self._words("page.yes" if value else "page.no")
        if isinstance(value, int):
            return f"{value:,}"
        if isinstance(value, float):
            return self.of(value)
        if isinstance(value, Mapping):
            return ", ".join(f"{key} = {self.plain(item)}" for key, item in value.items()) or self._words("page.none")
        if isinstance(value, list | tuple):
            return ", ".join(self.plain(item) for item in value) or self._words("page.none")
        return str(value)


def _three_digits(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return "∞" if value == math.inf else "−∞" if value == -math.inf else "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    if digits < 0:
        return f"{round(value):,}"
    if digits > 6:
        return f"{value:.2e}"
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
