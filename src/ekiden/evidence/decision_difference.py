"""Whether a replayed turn holds the decisions of the recorded one, and where they differ first."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from ekiden.evidence.reader import decisions_of, end_detail_of, request_detail_of
from ekiden.ledger.records import EndRow, RequestRow, Rows, TurnDecisions, TurnRow


@dataclass(frozen=True, slots=True)
class Difference:
    """The first turn whose decisions differ: for each differing field what was recorded and what the replay did."""

    turn: int
    fields: list[tuple[str, object, object]]


def same_decisions(recorded: Rows, replayed: Rows) -> bool:
    """Whether two turns hold the same decisions.

    The inputs (times, cancellations, how answers ended) are no decisions. Events repeat decisions, so they count only
    where they were read. Equal bytes are equal decisions; an earlier version wrote the same ones in other bytes.
    """
    return (
        (
            recorded.turn.decisions == replayed.turn.decisions
            or decisions_of(recorded.turn) == decisions_of(replayed.turn)
        )
        and recorded.turn[:-2] == replayed.turn[:-2]
        and recorded.events in ([], replayed.events)
        and list(map(_of_request, recorded.requests)) == list(map(_of_request, replayed.requests))
        and list(map(_of_end, recorded.ends)) == list(map(_of_end, replayed.ends))
    )


def _of_request(row: RequestRow) -> tuple[object, ...]:
    """What intake decided about a request. Messages are left out: they may repeat texts that were not kept."""
    detail = request_detail_of(row)
    found = (detail.num_waiting, detail.waiting_tokens, detail.worst_case_blocks, detail.expected_output)
    return (*row[:-1], *found, detail.param, detail.retry_after)


def _of_end(row: EndRow) -> tuple[object, ...]:
    detail = end_detail_of(row)
    return (*row[:-1], detail.stop_reason)


def difference(recorded: Rows, replayed: Rows) -> Difference:
    """Where the decisions of one turn differ, field by field."""
    found: list[tuple[str, object, object]] = [
        (name, old, new)
        for name, old, new in zip(TurnRow._fields[:-2], recorded.turn[:-2], replayed.turn[:-2], strict=True)
        if old != new
    ]
    old_decisions, new_decisions = decisions_of(recorded.turn), decisions_of(replayed.turn)
    for name in TurnDecisions.__struct_fields__:
        old, new = getattr(old_decisions, name), getattr(new_decisions, name)
        if old != new:
            found.append((name, old, new))
    found += _differing("event", recorded.events, replayed.events if recorded.events else [])
    found += _differing("request", map(_of_request, recorded.requests), map(_of_request, replayed.requests))
    found += _differing("end", map(_of_end, recorded.ends), map(_of_end, replayed.ends))
    return Difference(recorded.turn.turn, found)


def _differing(name: str, recorded: Any, replayed: Any) -> Iterator[tuple[str, object, object]]:
    for old, new in zip_longest(recorded, replayed):
        if old != new:
            yield name, old, new
