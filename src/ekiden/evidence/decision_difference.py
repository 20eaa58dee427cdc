"""Where the decisions of a replayed turn differ from the recorded ones."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat, zip_longest

import msgspec

from ekiden.evidence.reader import decisions_of, end_detail_of, request_detail_of
from ekiden.ledger.blobs import TurnDecisions
from ekiden.ledger.records import EndRow, RequestRow, Rows, TurnRow

_COLUMNS = TurnRow._fields[: TurnRow._fields.index("inputs")]
"""Those that are plain figures of the turn."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A turn whose decisions differ: for each differing field what was recorded and what the replay did."""

    turn: int
    fields: list[tuple[str, object, object]]


def difference(recorded: Rows, replayed: Rows) -> Difference | None:
    """Where the decisions of one turn differ, field by field; None where they are the same.

    The inputs (times, cancellations, how answers ended) are no decisions. Events repeat decisions, so they count only
    where they were read.
    """
    old, new = recorded.turn, replayed.turn
    found = _differing(_COLUMNS, old, new)
    if old.epoch is not None:
        found += _differing(["epoch"], [old.epoch], [new.epoch])
    if old.decisions != new.decisions:  # an earlier version wrote the same ones in other bytes
        before, after = (msgspec.structs.astuple(decisions_of(turn)) for turn in (old, new))
        found += _differing(TurnDecisions.__struct_fields__, before, after)
    if recorded.events:
        found += _differing(repeat("event"), recorded.events, replayed.events)
    found += _differing(repeat("request"), map(_of_request, recorded.requests), map(_of_request, replayed.requests))
    found += _differing(repeat("end"), map(_of_end, recorded.ends), map(_of_end, replayed.ends))
    return Difference(old.turn, found) if found else None


def _differing(
    names: Iterable[str], recorded: Iterable[object], replayed: Iterable[object]
) -> list[tuple[str, object, object]]:
    """Of as many pairs as there are names."""
    pairs = zip_longest(recorded, replayed)
    return [(name, old, new) for name, (old, new) in zip(names, pairs, strict=False) if old != new]


def _of_request(row: RequestRow) -> tuple[object, ...]:
    """What intake decided about a request. Messages are left out: they may repeat texts that were not kept."""
    detail = request_detail_of(row)
    found = (detail.num_waiting, detail.waiting_tokens, detail.worst_case_blocks, detail.expected_output)
    return (*row._replace(detail=b""), *found, detail.param, detail.retry_after, detail.estimate)


def _of_end(row: EndRow) -> tuple[object, ...]:
    detail = end_detail_of(row)
    return (*row[:-1], detail.stop_reason, detail.estimate, detail.drafting)
