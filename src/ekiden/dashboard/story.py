"""Everything that a ledger tells of one request: its explanation, its bars and its neighbours', the decisions."""

from pathlib import Path
from typing import Final

from ekiden.dashboard.bars import bars_of
from ekiden.dashboard.decisions import decisions_about
from ekiden.dashboard.padding import Padding
from ekiden.dashboard.part import read_part
from ekiden.dashboard.period import slots_at
from ekiden.dashboard.request_list import line_of
from ekiden.dashboard.run_list import open_with_request
from ekiden.dashboard.shapes import Answered, Bar, RequestStory, Waited
from ekiden.evidence.breakdown import Breakdown, breakdown
from ekiden.evidence.explain import explain
from ekiden.evidence.period_rows import PeriodRows
from ekiden.evidence.places import admitted_slots
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.timeline import Moment
from ekiden.evidence.why import Question, why
from ekiden.ledger.records import RequestRow
from ekiden.ledger.retention import is_being_written

MOST_ANSWERS: Final = 16
"""Of the answers of one call, so many are told of."""
MOST_NEIGHBOURS: Final = 400
_MARGIN: Final = 0.05
"""Of a request's time, so much is shown before and after it."""


def stories(folder: Path, request_id: str, run: str | None) -> list[RequestStory]:
    """Each answer of a call, from the run that is named, or from the newest that knows it.

    Raises :class:`LedgerReadError` for a request that no run knows, or not this one.
    """
    reader, rows = open_with_request(folder, request_id, run)
    with reader:
        return [story(reader, row) for row in rows[:MOST_ANSWERS]]


def story(reader: LedgerReader, row: RequestRow) -> RequestStory:
    with reader.snapshot():
        return _story(reader, row)


def _story(reader: LedgerReader, row: RequestRow) -> RequestStory:
    found = breakdown(reader, row)
    rows, timeline, end = PeriodRows(reader), found.timeline, found.end
    newest = rows.end_of(rows.last)
    until = newest if end is None else end.at
    slot = admitted_slots(reader, [timeline]).get(row.request)
    margin = round(_MARGIN * (until - row.arrival))
    part = read_part(reader, max(0, row.arrival - margin), until + margin, most=MOST_NEIGHBOURS)
    padding = Padding(reader, rows, part.requests)
    own = bars_of(timeline, slot=slot, end=end, now=Moment(rows.last, 1, newest), padding=padding)
    joined = timeline.admitted.at if timeline.admitted is not None else None if end is None else end.at
    return RequestStory(
        run_id=reader.header.run_id,
        started=reader.header.started,
        recording=is_being_written(reader.path),
        line=line_of(reader, found),
        explanation=explain(reader, row),
        bars=own,
        waited=Waited(
            request_id=row.request_id,
            tenant=row.tenant,
            start=row.arrival / 1e6,
            end=None if joined is None else joined / 1e6,
        ),
        neighbours=_others(part.bars, row.request),
        slots=slots_at(reader, part),
        decisions=decisions_about(reader, found),
        answers=_answers(reader, found),
    )


def _others(bars: list[Bar], own: int) -> list[Bar]:
    return [bar for bar in bars if not bar.id.startswith(f"{own}.")][-MOST_NEIGHBOURS:]


def _answers(reader: LedgerReader, found: Breakdown) -> list[Answered]:
    """The questions that arise of this request."""
    questions = [Question.REFUSED] if found.request.refusal is not None else []
    if found.end is not None and found.request.refusal is None:
        questions += [Question.TRUNCATED, Question.DIFFERENT]
    if found.timeline.preempted_turns:
        questions.append(Question.PREEMPTED)
    told = [why(reader, found.request, question) for question in questions]
    return [Answered(question=each.question, words=each.words, facts=each.facts) for each in told]
