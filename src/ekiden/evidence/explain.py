"""Why a request took what it took, or ended as it did: backwards by cause, forwards step by step.

:func:`explain` reads a stored run and returns plain data, which the command and the HTTP route show in their own ways.
Requests of other tenants are named only to an operator (see ``viewer``).
"""

from collections import Counter
from typing import Any

import msgspec

from ekiden.evidence.breakdown import Breakdown, CauseTime, breakdown
from ekiden.evidence.causes import OWN_WORK, REMEDIES, Cause
from ekiden.evidence.reader import LedgerReader, decisions_of, end_detail_of, request_detail_of
from ekiden.evidence.words import estimate_facts, event_words, seconds
from ekiden.ledger.blobs import CarriedDetail
from ekiden.ledger.dead_ends import NOT_RECORDED
from ekiden.ledger.records import ENGINE_ENDED, NO_DRAFT_REASONS, EndRow, EventKind, RequestRow
from ekiden.ledger.retention import was_killed
from ekiden.state.request import FinishReason

_CUT_SHORT = {
    "deadline": "Ended by its deadline",
    "abstained": "Given up because its deadline could no longer be met ({message})",
    "abort": "Aborted by its client",
    "error": "Failed ({message})",
    ENGINE_ENDED: "Its engine ended ({message}) and it goes on in a later run: it was cut off",
}
_NAMED = 3
"""How many other requests are named for one cause."""


class CauseShare(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of a request's time. ``turns`` are the first and last it fell into, ``decision`` where to look."""

    cause: str
    seconds: float
    share: float
    words: str
    stage: str
    decision: dict[str, Any]
    turns: tuple[int, int]
    steps: int
    control: dict[str, str] | None = None
    details: dict[str, float] = {}
    named: list[str] = []
    otherwise: str | None = None
    saved_seconds: float | None = None


class LifeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to the request, ``at_seconds`` after it arrived. ``value`` says of what kind, or how
    many, as :class:`ekiden.ledger.records.EventKind` has it; ``words`` say it in English."""

    at_seconds: float
    turn: int
    event: str
    words: str
    value: int = 0


class CarriedOver(msgspec.Struct, frozen=True, kw_only=True):
    """The request came from an engine that had ended: with so many tokens, after so many engines, the last of which
    was recorded as the run ``run_id``."""

    output_tokens: int
    engines_ended: int
    run_id: str | None


class Drafts(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens that were guessed ahead: in so many rows, and how many of them were right, each of which saved a step.
    ``without``: in how many steps it got none, by reason."""

    rows: int
    drafts: int
    accepted: int
    without: dict[str, int]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """``causes`` add up to ``e2e_seconds``, largest first. ``status``: finished, refused or in_flight."""

    request_id: str
    run_id: str
    tenant: str
    status: str
    reason: str | None
    headline: str
    e2e_seconds: float
    queue_seconds: float | None
    ttft_seconds: float | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    max_tokens: int
    expected_output: tuple[int, int, int] | None
    preemptions: int
    external_id: str | None
    fingerprint: str
    causes: list[CauseShare]
    life: list[LifeEvent]
    carried_over: CarriedOver | None = None
    drafts: Drafts | None = None
    """Of a request that has ended, where the engine guesses."""
    estimate: dict[str, Any] | None = None
    """Of a request with a deadline, when intake expected it to end, in seconds from its arrival at intake."""


def explain(reader: LedgerReader, request: RequestRow, *, viewer: str | None = None) -> Explanation:
    """Everything about one request. ``viewer``: the tenant who asks, None for an operator."""
    found, detail = breakdown(reader, request), request_detail_of(request)
    end, timeline, refused = found.end, found.timeline, request.refusal is not None
    lost = end is None and not refused and was_killed(reader.path)
    shares = [_share(reader, found, time, viewer) for time in found.causes]
    headline = f"Refused ({request.refusal}): {detail.message}" if refused else _headline(found, shares, lost)
    came = None
    if detail.carried is not None:
        ends, run_id = detail.carried.ends, detail.carried.run_id
        came = CarriedOver(output_tokens=request.carried or 0, engines_ended=ends, run_id=run_id)
        headline += _before(came)
    return Explanation(
        request_id=request.request_id,
        run_id=reader.header.run_id,
        tenant=request.tenant,
        status="refused" if refused else "in_flight" if end is None and not lost else "finished",
        reason=request.refusal if refused else end.reason if end is not None else FinishReason.ERROR if lost else None,
        headline=headline,
        e2e_seconds=(found.e2e if end is None else end.e2e) / 1e6,
        queue_seconds=request.seconds_until(timeline.admitted and timeline.admitted.at),
        ttft_seconds=_ttft(reader, found, detail.carried),
        prompt_tokens=request.prompt_tokens,
        cached_tokens=0 if end is None else end.cached_tokens,
        output_tokens=0 if end is None else end.output_tokens,
        max_tokens=request.max_tokens,
        expected_output=detail.expected_output,
        preemptions=0 if end is None else end.preemptions,
        external_id=detail.external_id,
        fingerprint=reader.header.fingerprint,
        causes=shares,
        life=_life(found),
        carried_over=came,
        drafts=None if end is None else _drafts(end),
        estimate=estimate_facts(detail.estimate),
    )


def _drafts(end: EndRow) -> Drafts | None:
    found = end_detail_of(end).drafting
    if found is None:
        return None
    without = {NO_DRAFT_REASONS[code].value: count for code, count in found.refused}
    return Drafts(rows=found.rows, drafts=found.drafts, accepted=found.accepted, without=without)


def _ttft(reader: LedgerReader, found: Breakdown, carried: CarriedDetail | None) -> float | None:
    """An earlier engine may have given the first token."""
    if carried is not None and carried.first_token_time is not None:
        return found.request.seconds_until(round(carried.first_token_time * 1e6) - reader.header.clock_base)
    first = found.timeline.first_token
    return found.request.seconds_until(first and first.at)


def _before(came: CarriedOver) -> str:
    """What happened before this run."""
    engines = "an engine" if came.engines_ended == 1 else f"{came.engines_ended} engines"
    recorded = f" (explain --run {came.run_id} tells of that)" if came.run_id else ""
    return f" It brought {came.output_tokens} tokens from {engines} that ended{recorded}."


def _headline(found: Breakdown, shares: list[CauseShare], lost: bool) -> str:
    """One or two sentences: how it ended, and what took most of its time. ``lost``: its engine died without a word."""
    if not shares:
        return "Its turns are past the ledger's retention; only its end is known."
    end, total, first = found.end, seconds(found.e2e / 1e6), shares[0]
    if lost:
        opening = f"Failed ({NOT_RECORDED}) after {total} or more"
    elif end is None:
        opening = f"In the engine for {total} so far"
    elif end.reason in _CUT_SHORT:
        message = end_detail_of(end).message
        how = _CUT_SHORT[end.reason].format(message=message)
        if end.reason == FinishReason.ABORT and message is not None:
            how = f"Aborted ({message})"
        opening = f"{how} after {total} with {end.output_tokens} tokens"
    elif request_detail_of(found.request).reading is not None:
        opening = f"Took {total} to read {found.request.prompt_tokens} tokens"
    else:
        opening = f"Took {total} for {end.output_tokens} tokens"
    text = f"{opening}, {seconds(first.seconds)} of it ({first.share:.0%}) {first.words}."
    others = next((share for share in shares if share.cause not in OWN_WORK), None)
    if others is not None and others is not first and others.seconds >= 0.001:
        text += f" Most of what was not its own work: {seconds(others.seconds)} {others.words}."
    return text


def _share(reader: LedgerReader, found: Breakdown, time: CauseTime, viewer: str | None) -> CauseShare:
    cause, others = time.cause, time.others
    control, otherwise = REMEDIES.get(cause, (None, None))
    # The turn at whose boundary the cause began; for waiting that is the one before.
    before = cause.stage == "refill" and time.first_turn > found.request.turn
    decision: dict[str, Any] = {"stage": cause.stage, "turn": max(1, time.first_turn - before)}
    if cause is Cause.OTHERS_PREFILL:
        others = _prefilled(reader, found.request.request, time)
    if cause is Cause.PREEMPTED:
        decision |= _victim(reader, found, viewer)
    return CauseShare(
        cause=cause.value,
        seconds=time.micros / 1e6,
        share=time.micros / found.e2e if found.e2e else 0.0,
        words=cause.words,
        stage=cause.stage,
        decision=decision,
        turns=(time.first_turn, time.last_turn),
        steps=time.turns,
        control=_control(reader, found, time, control),
        details={name: micros / 1e6 for name, micros in time.details.items()},
        named=[_name(reader, number, viewer) for number, _ in others.most_common(_NAMED)],
        otherwise=otherwise,
        saved_seconds=time.micros / 1e6 if otherwise else None,
    )


def _control(reader: LedgerReader, found: Breakdown, time: CauseTime, name: str | None) -> dict[str, str] | None:
    """The rule in force that made the cause, its value, and who set it."""
    if name is None:
        return None
    if name == "pause":
        name = f"pause {found.request.request_id}"
    row = reader.controls(time.last_turn).get(name)
    if row is None:
        value = reader.header.cache.get(name, reader.header.scheduler.get(name))
        return None if value is None else {"name": name, "value": str(value), "set_by": "configuration", "who": ""}
    why = {"why": row.why} if row.why else {}
    return {"name": row.name, "value": row.value, "set_by": row.set_by, "who": row.who, **why}


def _prefilled(reader: LedgerReader, own: int, time: CauseTime) -> Counter[int]:
    """How many tokens of other requests' prompts were computed in the cause's most expensive turns."""
    tokens: Counter[int] = Counter()
    for row in reader.heaviest_prefills(time.first_turn, time.last_turn):
        for number, count in decisions_of(row).prefills:
            if number != own:
                tokens[number] += count
    return tokens


def _victim(reader: LedgerReader, found: Breakdown, viewer: str | None) -> dict[str, Any]:
    """The first decision that preempted the request: who would have been the victim otherwise."""
    for turn in found.timeline.preempted_turns:
        row = reader.turn(turn)
        if row is not None:
            runner_up = dict(decisions_of(row).victims)[found.request.request]
            return {"turn": turn, "runner_up": _name(reader, runner_up, viewer) if runner_up else None}
    return {}


def _name(reader: LedgerReader, number: int, viewer: str | None) -> str:
    row = reader.request(number)
    if row is None:
        return f"request number {number}"
    return row.request_id if viewer is None or row.tenant == viewer else "a request of another tenant"


def _life(found: Breakdown) -> list[LifeEvent]:
    life = [LifeEvent(at_seconds=0.0, turn=0, event="SENT", words="arrived at the server")]
    for event in found.events:
        after = found.request.seconds_until(event.at)
        if after is not None:
            words = event_words(event)
            if event.kind is EventKind.ENDED and found.end is not None:
                words = f"ended: {found.end.reason}, {found.end.blocks} KV blocks given back"
            life.append(
                LifeEvent(at_seconds=after, turn=event.turn, event=event.kind.name, words=words, value=event.value)
            )
    return life


class WorstRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``explain --worst``."""

    request_id: str
    tenant: str
    reason: str
    e2e_seconds: float
    ttft_seconds: float | None
    output_tokens: int
    cause: str
    cause_seconds: float
    words: str


def worst(reader: LedgerReader, count: int, *, since: int = 0) -> list[WorstRequest]:
    """The slowest requests that ended at or after a time (microseconds of the run), each with its largest cause."""
    pairs = ((end, reader.request(end.request)) for end in reader.worst(count, since))
    return [_worst(reader, end, request) for end, request in pairs if request is not None]


def _worst(reader: LedgerReader, end: EndRow, request: RequestRow) -> WorstRequest:
    first = next(iter(breakdown(reader, request).causes), CauseTime(Cause.UNRECORDED))
    return WorstRequest(
        request_id=request.request_id,
        tenant=request.tenant,
        reason=end.reason,
        e2e_seconds=end.e2e / 1e6,
        ttft_seconds=request.seconds_until(end.first_token),
        output_tokens=end.output_tokens,
        cause=first.cause.value,
        cause_seconds=first.micros / 1e6,
        words=first.cause.words,
    )
