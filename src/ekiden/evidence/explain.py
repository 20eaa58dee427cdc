"""Why a request took what it took, or ended as it did: backwards by cause, forwards step by step.

:func:`explain` reads a stored run and returns plain data; whoever shows it decides how. Requests of other tenants are
named only to those who may know them (``viewer``).
"""

from typing import Any

import msgspec

from ekiden.evidence.life import Cause, CauseTime, Life, life_of
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.recorded_requests import decisions_of, end_detail_of, request_detail_of
from ekiden.evidence.words import MEANINGS, OWN_WORK, event_words, seconds
from ekiden.ledger.records import REFUSED, EventKind, RequestDetail, RequestRow

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
    """Something that happened to the request, ``at_seconds`` after it arrived."""

    at_seconds: float
    turn: int
    event: str
    words: str


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


def explain(reader: LedgerReader, request: RequestRow, *, viewer: str | None = None) -> Explanation:
    """Everything about one request. ``viewer``: the tenant who asks, None for an operator."""
    life, detail = life_of(reader, request), request_detail_of(request)
    end = life.end
    refused = request.refusal is not None
    causes = sorted(life.causes.values(), key=lambda cause: -cause.micros)
    shares = [_share(reader, life, cause, viewer) for cause in causes]
    return Explanation(
        request_id=request.request_id,
        run_id=reader.header.run_id,
        tenant=request.tenant,
        status="refused" if refused else "finished" if life.finished else "in_flight",
        reason=request.refusal if refused else None if end is None else end.reason,
        headline=_headline(life, detail, shares),
        e2e_seconds=(end.e2e if end is not None else life.e2e) / 1e6,
        queue_seconds=_since_arrival(life, EventKind.ADMITTED),
        ttft_seconds=_since_arrival(life, EventKind.FIRST_TOKEN),
        prompt_tokens=request.prompt_tokens,
        cached_tokens=end.cached_tokens if end is not None else 0,
        output_tokens=end.output_tokens if end is not None else 0,
        max_tokens=request.max_tokens,
        expected_output=detail.expected_output,
        preemptions=end.preemptions if end is not None else 0,
        external_id=detail.external_id,
        fingerprint=reader.header.fingerprint,
        causes=shares,
        life=_life_events(reader, life),
    )


def _since_arrival(life: Life, kind: EventKind) -> float | None:
    for event in life.events:
        if event.kind == kind and event.turn in life.times:
            return (life.times[event.turn][event.late] - life.request.arrival) / 1e6
    return None


def _headline(life: Life, detail: RequestDetail, shares: list[CauseShare]) -> str:
    """One or two sentences: how it ended, and what took most of its time."""
    end, request = life.end, life.request
    if request.refusal is not None:
        return f"Refused ({request.refusal}): {detail.message}"
    total = life.e2e / 1e6
    if not shares:
        return "Its turns are past the ledger's retention; only its end is known."
    first = shares[0]
    largest = f"{seconds(first.seconds)} of it ({first.share:.0%}) {first.words}"
    if end is None:
        opening = f"In the engine for {seconds(total)} so far"
    elif end.reason == "deadline":
        opening = f"Ended by its deadline after {seconds(total)} with {end.output_tokens} tokens"
    elif end.reason in ("abort", "error"):
        ended = "Aborted by its client" if end.reason == "abort" else f"Failed ({end_detail_of(end).message})"
        opening = f"{ended} after {seconds(total)} with {end.output_tokens} tokens"
    else:
        opening = f"Took {seconds(total)} for {end.output_tokens} tokens"
    others = next((share for share in shares if Cause(share.cause) not in OWN_WORK), None)
    text = f"{opening}, {largest}."
    if others is not None and others is not first and others.seconds >= 0.001:
        text += f" Most of what was not its own work: {seconds(others.seconds)} {others.words}."
    return text


def _share(reader: LedgerReader, life: Life, time: CauseTime, viewer: str | None) -> CauseShare:
    meaning = MEANINGS[time.cause]
    numbers = sorted(time.others, key=lambda number: -time.others[number])[:_NAMED]
    if time.cause is Cause.OTHERS_PREFILL:
        numbers = _prefilling(reader, life.request.request, time)
    decision: dict[str, Any] = {"stage": meaning.stage, "turn": _deciding_turn(life, time)}
    if time.cause is Cause.PREEMPTED:
        decision |= _victim(reader, life, viewer)
    return CauseShare(
        cause=time.cause.value,
        seconds=time.micros / 1e6,
        share=time.micros / life.e2e if life.e2e else 0.0,
        words=meaning.words,
        stage=meaning.stage,
        decision=decision,
        turns=(time.first_turn, time.last_turn),
        steps=time.turns,
        control=_control(reader, life, time, meaning.control),
        details={name: micros / 1e6 for name, micros in time.details.items()},
        named=[_name(reader, number, viewer) for number in numbers],
        otherwise=meaning.otherwise,
        saved_seconds=time.micros / 1e6 if meaning.otherwise is not None else None,
    )


def _deciding_turn(life: Life, time: CauseTime) -> int:
    """The turn at whose boundary the cause began; for waiting that is the one before."""
    waits = MEANINGS[time.cause].stage == "refill"
    return max(1, time.first_turn - 1) if waits and time.first_turn > life.request.turn else time.first_turn


def _control(reader: LedgerReader, life: Life, time: CauseTime, name: str | None) -> dict[str, str] | None:
    """The rule in force that made the cause, its value, and who set it."""
    if name is None:
        return None
    if name == "pause":
        name = f"pause {life.request.request_id}"
    row = reader.controls(time.last_turn).get(name)
    if row is None:
        header = reader.header
        value = header.cache.get(name, header.scheduler.get(name))
        return None if value is None else {"name": name, "value": str(value), "set_by": "configuration", "who": ""}
    return {"name": row.name, "value": row.value, "set_by": row.set_by, "who": row.who}


def _prefilling(reader: LedgerReader, own: int, time: CauseTime) -> list[int]:
    """Whose prompts were computed in the cause's most expensive turns."""
    tokens: dict[int, int] = {}
    for row in reader.heaviest_prefills(time.first_turn, time.last_turn):
        for number, count in decisions_of(row).prefills:
            if number != own:
                tokens[number] = tokens.get(number, 0) + count
    return sorted(tokens, key=lambda number: -tokens[number])[:_NAMED]


def _victim(reader: LedgerReader, life: Life, viewer: str | None) -> dict[str, Any]:
    """The first decision that preempted the request: who would have been the victim otherwise."""
    own = life.request.request
    for event in life.events:
        row = reader.turn(event.turn) if event.kind == EventKind.PREEMPTED else None
        if row is None:
            continue
        for victim, runner_up in decisions_of(row).victims:
            if victim == own:
                return {"turn": row.turn, "runner_up": _name(reader, runner_up, viewer) if runner_up else None}
    return {}


def _name(reader: LedgerReader, number: int, viewer: str | None) -> str:
    row = reader.request(number)
    if row is None:
        return f"request number {number}"
    return row.request_id if viewer is None or row.tenant == viewer else "a request of another tenant"


def _life_events(reader: LedgerReader, life: Life) -> list[LifeEvent]:
    arrived = LifeEvent(at_seconds=0.0, turn=0, event="SENT", words="arrived at the server")
    found = [arrived]
    for event in life.events:
        if event.turn in life.times:
            at = (life.times[event.turn][event.late] - life.request.arrival) / 1e6
            words = event_words(event)
            if event.kind == EventKind.ENDED and life.end is not None:
                words = f"ended: {life.end.reason}, {life.end.blocks} KV blocks given back"
            found.append(LifeEvent(at_seconds=at, turn=event.turn, event=EventKind(event.kind).name, words=words))
    return found


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


def worst(
    reader: LedgerReader, count: int, *, since: int | None = None, until: int | None = None
) -> list[WorstRequest]:
    """The slowest requests that ended in a period (microseconds of the run), each with its largest cause."""
    found = []
    for end in reader.worst(count, since=since, until=until):
        request = reader.request(end.request)
        if request is None or end.reason == REFUSED:
            continue
        life = life_of(reader, request)
        causes = sorted(life.causes.values(), key=lambda time: -time.micros)
        first = causes[0] if causes else CauseTime(Cause.UNRECORDED)
        found.append(
            WorstRequest(
                request_id=request.request_id,
                tenant=request.tenant,
                reason=end.reason,
                e2e_seconds=end.e2e / 1e6,
                ttft_seconds=None if end.first_token is None else (end.first_token - request.arrival) / 1e6,
                output_tokens=end.output_tokens,
                cause=first.cause.value,
                cause_seconds=first.micros / 1e6,
                words=MEANINGS[first.cause].words,
            )
        )
    return found
