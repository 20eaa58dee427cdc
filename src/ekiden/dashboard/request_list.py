"""Lists of requests, of all tenants or of one: the slowest of a period, the refused ones, the newest."""

from ekiden.dashboard.shapes import RequestLine, RequestLines
from ekiden.evidence.breakdown import Breakdown, breakdown
from ekiden.evidence.listing import Listing
from ekiden.evidence.period_rows import PeriodRows
from ekiden.evidence.reader import LedgerReader
from ekiden.ledger.records import REFUSED, RequestRow


def list_requests(
    reader: LedgerReader, since: float | None, until: float | None, *, by: str, tenant: str | None, count: int
) -> RequestLines:
    """Those that ended or came in a part of a run (seconds of the run; None: from its beginning, to its end).

    ``by``: one of :data:`ekiden.evidence.listing.BY`.
    """
    with reader.snapshot():
        rows = PeriodRows(reader)
        low = -1 if since is None else round(since * 1e6)
        high = rows.end_of(rows.last) if until is None else round(until * 1e6)
        first, last = rows.turns_of(low, high)
        if last < first:
            last = first = min(first, rows.last)  # nothing ended in it; what was in the engine may still be told
        listing = Listing(reader, rows, first, last)
        numbers, matching = listing.chosen(by, tenant, count)
        found = [row for number in numbers if (row := reader.request(number)) is not None]
        return RequestLines(
            run_id=reader.header.run_id,
            started=reader.header.started,
            by=by,
            tenants=listing.tenants(),
            requests=[request_line(reader, row) for row in found],
            matching=matching,
        )


def request_line(reader: LedgerReader, row: RequestRow) -> RequestLine:
    return line_of(reader, breakdown(reader, row))


def line_of(reader: LedgerReader, found: Breakdown) -> RequestLine:
    """A request in a line, from its times by cause."""
    row, end, timeline = found.request, found.end, found.timeline
    admitted, first = timeline.admitted, timeline.first_token
    main = found.causes[0] if found.causes and row.refusal is None else None
    return RequestLine(
        request_id=row.request_id,
        tenant=row.tenant,
        arrived=row.arrival / 1e6,
        queue_seconds=row.seconds_until(None if admitted is None else admitted.at),
        ttft=row.seconds_until(None if first is None else first.at),
        e2e=found.e2e / 1e6 if end is None else end.e2e / 1e6,
        prompt_tokens=row.prompt_tokens,
        tokens=_tokens(reader, found) if end is None else end.output_tokens,
        cached=end.cached_tokens if end is not None else 0 if admitted is None else admitted.value,
        end=None if end is None else end.reason if end.reason != REFUSED else None,
        refusal=row.refusal,
        main_cause=None if main is None else main.cause.value,
        main_words=None if main is None else main.cause.words,
        main_seconds=None if main is None else main.micros / 1e6,
    )


def _tokens(reader: LedgerReader, found: Breakdown) -> int:
    """What a request that has not ended has so far."""
    last, timeline = reader.bounds()[1], found.timeline
    silent = [turn for stretch in timeline.stretches_until(last) for turn in reader.silent_turns(*stretch)]
    return timeline.output_tokens(1, last, silent) + (found.request.carried or 0)
