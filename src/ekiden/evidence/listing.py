"""Requests of a part of a run, chosen by how they fared: the rows of the page's lists. Looked up by index."""

from typing import Final

from ekiden.evidence.period_rows import PeriodRows
from ekiden.evidence.reader import LedgerReader
from ekiden.ledger.records import REFUSED

BY: Final = ("slowest", "refused", "latest")
"""By time from arrival to end, in the engine still or not; refused ones, the newest first; all, likewise."""


class Listing:
    """The requests of the turns ``first`` to ``last``: those that ended, and those that came. Call it in a snapshot."""

    def __init__(self, reader: LedgerReader, rows: PeriodRows, first: int, last: int) -> None:
        self._all = reader.rows
        self._first, self._last, self._now = first, last, rows.end_of(last)
        self._low, self._high = rows.numbered_until(first - 1) + 1, rows.numbered_until(last)

    def chosen(self, by: str, tenant: str | None, count: int) -> tuple[list[int], int]:
        """The numbers of at most ``count`` requests, and how many there are. ``by``: one of :data:`BY`."""
        if by == "slowest":
            return self._slowest(tenant, count)
        if by == "refused":
            return self._ended("=", "n.turn DESC, n.request DESC", tenant, count)
        of_tenant, values = ("AND tenant = ?", (tenant,)) if tenant is not None else ("", ())
        where = f"FROM requests WHERE request BETWEEN ? AND ? {of_tenant}"
        ((matching,),) = self._all(f"SELECT count(*) {where}", self._low, self._high, *values)
        sql = f"SELECT request {where} ORDER BY request DESC LIMIT ?"
        return [number for (number,) in self._all(sql, self._low, self._high, *values, count)], matching

    def _slowest(self, tenant: str | None, count: int) -> tuple[list[int], int]:
        ended, matching = self._ended("!=", "n.e2e DESC", tenant, count)
        times = self._all(
            f"SELECT request, e2e FROM ends WHERE request IN ({', '.join('?' * len(ended))})",  # noqa: S608
            *ended,
        )
        of_tenant, values = ("AND r.tenant = ?", (tenant,)) if tenant is not None else ("", ())
        here = self._all(
            f"SELECT r.request, ? - r.arrival FROM live l JOIN requests r ON r.request = l.request "  # noqa: S608
            f"WHERE l.request <= ? {of_tenant} ORDER BY r.arrival LIMIT ?",
            *(self._now, self._high, *values, count),
        )
        found = sorted((*times, *here), key=lambda pair: (-pair[1], pair[0]))
        return [number for number, _ in found[:count]], matching + len(here)

    def _ended(self, how: str, order: str, tenant: str | None, count: int) -> tuple[list[int], int]:
        of_tenant, values = ("AND r.tenant = ?", (tenant,)) if tenant is not None else ("", ())
        where = (
            f"FROM ends n JOIN requests r ON r.request = n.request WHERE n.turn BETWEEN ? AND ? AND n.reason {how} ? "
            f"{of_tenant}"
        )
        given = (self._first, self._last, REFUSED, *values)
        ((matching,),) = self._all(f"SELECT count(*) {where}", *given)
        sql = f"SELECT n.request {where} ORDER BY {order} LIMIT ?"
        return [number for (number,) in self._all(sql, *given, count)], matching

    def tenants(self) -> dict[str, int]:
        """How many requests each tenant sent, most first."""
        sql = "SELECT tenant, count(*) FROM requests WHERE request BETWEEN ? AND ? GROUP BY tenant ORDER BY 2 DESC, 1"
        return dict(self._all(sql, self._low, self._high))
