"""Direct questions about one request: why was it refused, cut short, preempted, or answered differently?

Every answer is one or more sentences and the recorded facts they rest on.
"""

from enum import StrEnum
from typing import Any

import msgspec

from ekiden.evidence.explain import explain
from ekiden.evidence.reader import LedgerReader, decisions_of, end_detail_of, request_detail_of
from ekiden.evidence.words import seconds
from ekiden.ledger.records import ControlRow, EventKind, RequestRow
from ekiden.state.request import FinishReason, RefusalReason


class Question(StrEnum):
    SLOW = "slow"
    REFUSED = "refused"
    TRUNCATED = "truncated"
    PREEMPTED = "preempted"
    DIFFERENT = "different"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    question: str
    request_id: str
    words: str
    facts: dict[str, Any]


_LIMIT_OF = {
    RefusalReason.QUEUE_FULL_REQUESTS: "max_num_queued_reqs",
    RefusalReason.QUEUE_FULL_TOKENS: "max_num_queued_tokens",
    RefusalReason.QUEUE_TOO_SLOW: "max_queue_seconds",
    RefusalReason.TENANT_QUEUE_FULL: "tenants_file",
    RefusalReason.TENANT_RATE: "tenants_file",
    RefusalReason.DRAINING: "draining",
    RefusalReason.CONTEXT_LENGTH_EXCEEDED: "max_model_len",
    RefusalReason.EXCEEDS_KV_CACHE: "kv_cache_size",
}


def why(reader: LedgerReader, request: RequestRow, question: Question, other: RequestRow | None = None) -> Answer:
    """Answer one question. ``other`` is what DIFFERENT compares with; by default the newest with the same prompt."""
    match question:
        case Question.SLOW:
            return _slow(reader, request)
        case Question.REFUSED:
            return _refused(reader, request)
        case Question.TRUNCATED:
            return _truncated(reader, request)
        case Question.PREEMPTED:
            return _preempted(reader, request)
        case Question.DIFFERENT:
            return _different(reader, request, other)


def _answer(question: Question, request: RequestRow, words: str, **facts: Any) -> Answer:
    return Answer(question=question.value, request_id=request.request_id, words=words, facts=facts)


def _slow(reader: LedgerReader, request: RequestRow) -> Answer:
    told = explain(reader, request)
    causes = {cause.cause: cause.seconds for cause in told.causes}
    return _answer(Question.SLOW, request, told.headline, e2e_seconds=told.e2e_seconds, causes=causes)


def _refused(reader: LedgerReader, request: RequestRow) -> Answer:
    if request.refusal is None:
        return _answer(Question.REFUSED, request, "It was not refused.")
    reason, detail = RefusalReason(request.refusal), request_detail_of(request)
    name = _LIMIT_OF.get(reason)
    control = None if name is None else reader.controls(request.turn).get(name)
    set_by = "" if control is None else f" The limit {control.name}={control.value} was set by {_by(control)}."
    where = "by the HTTP layer" if detail.by_door else "at intake"
    later = "" if detail.retry_after is None else f" The same request could pass after {seconds(detail.retry_after)}."
    return _answer(
        Question.REFUSED,
        request,
        f"It was refused {where}, {reason.value}: {detail.message}.{set_by}{later}",
        reason=reason.value,
        field=detail.param,
        retry_after=detail.retry_after,
        limit=name,
        limit_value=None if control is None else control.value,
        set_by=None if control is None else control.set_by,
        waiting_requests=detail.num_waiting,
        waiting_tokens=detail.waiting_tokens,
        prompt_tokens=request.prompt_tokens,
    )


def _by(control: ControlRow) -> str:
    return f"{control.set_by} {control.who}".strip()


def _truncated(reader: LedgerReader, request: RequestRow) -> Answer:
    end, detail = reader.end(request.request), request_detail_of(request)
    if end is None or request.refusal is not None:
        return _answer(Question.TRUNCATED, request, "It was not cut short: it has no answer that ended.")
    own, made = detail.sampling.get("max_tokens"), end.output_tokens
    facts = {"reason": end.reason, "output_tokens": made, "max_tokens": own, "room": request.max_tokens}
    match FinishReason(end.reason):
        case FinishReason.STOP:
            words = f"It was not cut short: it ended by itself after {made} tokens."
        case FinishReason.LENGTH if own is not None:
            words = f"It reached the {own} tokens that it asked for with max_tokens."
        case FinishReason.LENGTH:
            words = (
                f"It reached the {request.max_tokens} tokens that were left of the context of "
                f"{reader.header.max_model_len} (or of the KV pool) after its prompt of {request.prompt_tokens}."
            )
        case FinishReason.DEADLINE:
            told = explain(reader, request)
            facts["causes"] = {cause.cause: cause.seconds for cause in told.causes}
            words = told.headline
        case FinishReason.ABORT:
            words = f"Its client went away, or it was aborted, after {made} tokens."
        case FinishReason.ERROR:
            words = f"It failed after {made} tokens: {end_detail_of(end).message}."
    if detail.expected_output is not None:
        p10, p50, p90 = detail.expected_output
        facts["expected_output"] = [p10, p50, p90]
        words += f" Its tenant's answers had led to expect {p10} to {p90} tokens, {p50} in the middle."
    return _answer(Question.TRUNCATED, request, words, **facts)


def _preempted(reader: LedgerReader, request: RequestRow) -> Answer:
    found: list[dict[str, Any]] = []
    away_since: int | None = None
    for event in reader.events(request.request):
        if event.kind is EventKind.RESUMED and away_since is not None and event.at is not None:
            found[-1]["back_after_seconds"] = (event.at - away_since) / 1e6
            away_since = None
        row = reader.turn(event.turn) if event.kind is EventKind.PREEMPTED else None
        if row is None:
            continue
        away_since = row.start
        runner_up = reader.request(dict(decisions_of(row).victims).get(request.request, 0))
        found.append(
            {
                "turn": event.turn,
                "blocks_moved": event.value,
                "free_blocks": row.free_blocks,
                "running": row.running,
                "runner_up": None if runner_up is None else runner_up.request_id,
            }
        )
    if not found:
        return _answer(Question.PREEMPTED, request, "It was never preempted.")
    first = found[0]
    other, moved = first["runner_up"], first["blocks_moved"]
    chosen = "no other could be chosen" if other is None else f"otherwise {other} would have been chosen"
    kept = f"{moved} blocks were moved aside" if moved else "its blocks were dropped"
    away = sum(entry.get("back_after_seconds", 0.0) for entry in found)
    words = (
        f"A KV block was needed and none was free; it was the newest of those running, {chosen}; {kept}. "
        f"It was preempted {len(found)} time(s) and away for {seconds(away)} in all."
    )
    return _answer(Question.PREEMPTED, request, words, preemptions=found, away_seconds=away)


def _different(reader: LedgerReader, request: RequestRow, other: RequestRow | None) -> Answer:
    detail = request_detail_of(request)
    other = other or reader.same_prompt(detail.prompt_digest, request.request)
    if other is None:
        return _answer(Question.DIFFERENT, request, "No other request of this run has the same prompt.")
    theirs = request_detail_of(other)
    mine, their = reader.end(request.request), reader.end(other.request)
    facts: dict[str, Any] = {"other": other.request_id, "same_prompt": detail.prompt_digest == theirs.prompt_digest}
    changed = {
        name: [detail.sampling.get(name), theirs.sampling.get(name)]
        for name in sorted(detail.sampling.keys() | theirs.sampling.keys())
        if detail.sampling.get(name) != theirs.sampling.get(name)
    }
    facts["sampling_differs"] = changed
    same_output = None
    if mine is not None and their is not None:
        same_output = end_detail_of(mine).output_digest == end_detail_of(their).output_digest
        facts |= {"same_output": same_output, "reasons": [mine.reason, their.reason]}
        facts["output_tokens"] = [mine.output_tokens, their.output_tokens]
    return _answer(Question.DIFFERENT, request, _difference_words(facts, detail.sampling, changed), **facts)


def _difference_words(facts: dict[str, Any], sampling: dict[str, Any], changed: dict[str, Any]) -> str:
    other = facts["other"]
    if facts.get("same_output"):
        return f"It was not answered differently: {other} has the same tokens."
    if not facts["same_prompt"]:
        return f"Its prompt is not that of {other}: their digests differ."
    if changed:
        return f"It was asked differently from {other}: {', '.join(changed)}."
    drawn = sampling.get("temperature", 1.0) != 0.0 and sampling.get("seed") is None
    if drawn:
        return f"Both {other} and it drew their tokens, and neither gave a seed, so each had one of its own."
    reasons = facts.get("reasons")
    if reasons is not None and reasons[0] != reasons[1]:
        return f"They ended differently ({reasons[0]} and {reasons[1]}); up to there the tokens should be the same."
    return (
        f"Nothing recorded explains it: {other} had the same prompt and the same sampling in the same run, so the "
        "tokens should be the same. Run the determinism self-test, and replay the run with the model."
    )
