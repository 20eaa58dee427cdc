"""Who has the slots of a running engine, and the finished rows that are still computed in some."""

from ekiden.evidence.following import Following
from ekiden.evidence.live_seen import Seen
from ekiden.evidence.live_view import Slot, SlotState
from ekiden.evidence.reader import decisions_of
from ekiden.evidence.timeline import Timeline, timelines
from ekiden.ledger.records import LEFT_OUT_REASONS, RequestRow

_PADDING_TURNS = 4_096
"""How far back the rows of a padded batch are looked for; they are written when they change."""


def slots_of(seen: Seen) -> list[Slot]:
    """All slots and who has them, also those that are held beyond the number there is to be."""
    slots = {index: Slot(slot=index) for index in range(int(seen.setting("max_num_seqs")))}
    holders = sorted((one for one in seen.live if one.slot_turn), key=lambda one: one.slot_turn)
    for request, place in _padding(seen):
        slots[place] = Slot(slot=place, state=SlotState.PADDING, request_id=request.request_id, tenant=request.tenant)
    found = seen.known.slots_of(seen.reader, holders)
    for one in holders:  # the newest last: where an end was lost, the slot is its successor's
        index = found.get(one.number)
        if index is not None:
            slots[index] = _slot(seen, index, one)
    return [slots[index] for index in sorted(slots)]


def _slot(seen: Seen, index: int, one: Timeline) -> Slot:
    request, since = one.request, None if one.admitted is None else one.admitted.at
    return Slot(
        slot=index,
        state=SlotState[one.phase.name],
        request_id=request.request_id,
        tenant=request.tenant,
        prompt_tokens=request.prompt_tokens,
        computed_tokens=one.computed,
        output_tokens=seen.output[one.number],
        max_tokens=request.max_tokens,
        seconds=0.0 if since is None else seen.ago(since),
        left_out=LEFT_OUT_REASONS[one.left_out].value if one.left_out else None,
    )


def _padding(seen: Seen) -> list[tuple[RequestRow, int]]:
    """Finished rows that are still computed, and their slots."""
    if not seen.setting("batching").endswith("padded") or not seen.last.running:
        return []
    rows = _computed_rows(seen) - {one.number for one in seen.live}
    requests = seen.reader.requests_numbered(sorted(rows))
    there = timelines(requests, (event for request in requests for event in seen.reader.events(request.request)))
    found = Following().slots_of(seen.reader, there)
    return [(request, found[request.request]) for request in requests if request.request in found]


def _computed_rows(seen: Seen) -> set[int]:
    """The requests in the newest plan. The rows of one token are written when they change."""
    rows: set[int] = set()
    newest = True
    for row in seen.reader.turns_backwards(seen.last.turn, _PADDING_TURNS):
        decisions = decisions_of(row)
        if newest and decisions.budget:
            rows.update(number for number, _ in decisions.prefills)
            newest = False
        if decisions.decodes is not None:
            return rows.union(decisions.decodes)
    return rows
