"""Direct questions about one request: why was it refused, cut short, preempted, or answered differently?

Every answer is one or more sentences and the recorded facts they rest on.
"""

from enum import StrEnum
from typing import Any

import msgspec

from ekiden.evidence.explain import explain
from ekiden.evidence.reader import LedgerReader, decisions_of, end_detail_of, request_detail_of
from ekiden.evidence.words import estimate_facts, seconds
from ekiden.ledger.blobs import RequestDetail
from ekiden.ledger.records import ENGINE_ENDED, EventKind, RequestRow
from ekiden.state.request import FinishReason, RefusalReason

WordsAndFacts = tuple[str, dict[str, Any]]


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
    RefusalReason.DEADLINE_TOO_SHORT: "abstain",
    RefusalReason.DEADLINE_TOO_BUSY: "abstain",
    RefusalReason.TENANT_QUEUE_FULL: "tenants_file",
    RefusalReason.TENANT_RATE: "tenants_file",
    RefusalReason.DRAINING: "draining",
    RefusalReason.CONTEXT_LENGTH_EXCEEDED: "max_model_len",
    RefusalReason.EXCEEDS_KV_CACHE: "kv_cache_size",
}


def why(reader: LedgerReader, request: RequestRow, question: Question, other: RequestRow | None = None) -> Answer:
    """Answer one question. ``other`` is what DIFFERENT compares with; by default the newest with the same prompt."""
    if question is Question.DIFFERENT:
        words, facts = _different(reader, request, other)
    else:
        words, facts = _ANSWERS[question](reader, request)
    return Answer(question=question.value, request_id=request.request_id, words=words, facts=facts)


def _slow(reader: LedgerReader, request: RequestRow) -> WordsAndFacts:
    told = explain(reader, request)
    causes = {cause.cause: cause.seconds for cause in told.causes}
    return told.headline, {"e2e_seconds": told.e2e_seconds, "causes": causes}


def _refused(reader: LedgerReader, request: RequestRow) -> WordsAndFacts:
    if request.refusal is None:
        return "It was not refused.", {}
    reason, detail = RefusalReason(request.refusal), request_detail_of(request)
    name = _LIMIT_OF.get(reason)
    control = None if name is None else reader.controls(request.turn).get(name)
    where = "by the HTTP layer" if detail.by_door else "at intake"
    words = f"It was refused {where}, {reason.value}: {detail.message}."
    if control is not None:
        by = f"{control.set_by} {control.who}".strip()
        words += f" The limit {control.name}={control.value} was set by {by}."
    if detail.retry_after is not None:
        words += f" The same request could pass after {seconds(detail.retry_after)}."
    return words, {
        "reason": reason.value,
        "field": detail.param,
        "retry_after": detail.retry_after,
        "limit": name,
        "limit_value": control and control.value,
        "set_by": control and control.set_by,
        "waiting_requests": detail.num_waiting,
        "waiting_tokens": detail.waiting_tokens,
        "prompt_tokens": request.prompt_tokens,
        "estimate": estimate_facts(detail.estimate),
    }


def _truncated(reader: LedgerReader, request: RequestRow) -> WordsAndFacts:
    end, detail = reader.end(request.request), request_detail_of(request)
    if end is None or request.refusal is not None:
        return "It was not cut short: it has no answer that ended.", {}
    if detail.reading is not None and end.reason == FinishReason.STOP:
        return "It was not cut short: its prompt was only read, and it was read to its end.", {}
    own, made = detail.sampling.get("max_tokens"), end.output_tokens
    facts = {"reason": end.reason, "output_tokens": made, "max_tokens": own, "room": request.max_tokens}
    if end.reason == ENGINE_ENDED:
        words = f"Its engine ended after {made} tokens ({end_detail_of(end).message}); it went on in the next run."
        return words, facts
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
            words, slow = _slow(reader, request)
            facts["causes"] = slow["causes"]
        case FinishReason.ABSTAINED:
            given_up = end_detail_of(end)
            words = f"It never ran: its deadline could no longer be met, so it was given up: {given_up.message}."
            facts["estimate"] = estimate_facts(given_up.estimate)
        case FinishReason.ABORT:
            told = end_detail_of(end).message
            who = "Its client went away, or it was aborted," if told is None else f"It was aborted ({told})"
            words = f"{who} after {made} tokens."
        case FinishReason.ERROR:
            words = f"It failed after {made} tokens: {end_detail_of(end).message}."
    if detail.expected_output is not None:
        p10, p50, p90 = facts["expected_output"] = [*detail.expected_output]
        words += f" Its tenant's answers had led to expect {p10} to {p90} tokens, {p50} in the middle."
    return words, facts


def _preempted(reader: LedgerReader, request: RequestRow) -> WordsAndFacts:
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
                "runner_up": runner_up and runner_up.request_id,
            }
        )
    if not found:
        return "It was never preempted.", {}
    other, moved = found[0]["runner_up"], found[0]["blocks_moved"]
    chosen = "no other could be chosen" if other is None else f"otherwise {other} would have been chosen"
    kept = f"{moved} blocks were moved aside" if moved else "its blocks were dropped"
    away = sum(entry.get("back_after_seconds", 0.0) for entry in found)
    words = (
        f"A KV block was needed and none was free; it was the newest of those running, {chosen}; {kept}. "
        f"It was preempted {len(found)} time(s) and away for {seconds(away)} in all."
    )
    return words, {"preemptions": found, "away_seconds": away}


def _different(reader: LedgerReader, request: RequestRow, other: RequestRow | None) -> WordsAndFacts:
    detail = request_detail_of(request)
    other = other or reader.same_prompt(detail.prompt_digest, request.request)
    if other is None:
        return "No other request of this run has the same prompt.", {}
    own, its = _asked(detail), _asked(request_detail_of(other))
    pairs = {name: [own.get(name), its.get(name)] for name in own | its}
    facts: dict[str, Any] = {
        "other": other.request_id,
        "same_prompt": detail.prompt_digest == request_detail_of(other).prompt_digest,
        "sampling_differs": {name: pair for name, pair in sorted(pairs.items()) if pair[0] != pair[1]},
    }
    ends = [end for end in (reader.end(request.request), reader.end(other.request)) if end is not None]
    if len(ends) == 2:
        facts["same_output"] = len({end_detail_of(end).output_digest for end in ends}) == 1
        facts["reasons"] = [end.reason for end in ends]
        facts["output_tokens"] = [end.output_tokens for end in ends]
    return _difference_words(facts, detail.sampling), facts


def _asked(detail: RequestDetail) -> dict[str, Any]:
    """What was asked of a prompt: how to answer it, or what to read of it."""
    read = {} if detail.reading is None else {"reading": msgspec.to_builtins(detail.reading)}
    return {**detail.sampling, **read}


def _difference_words(facts: dict[str, Any], sampling: dict[str, Any]) -> str:
    other = facts["other"]
    if facts.get("same_output"):
        return f"It was not answered differently: {other} has the same tokens."
    if not facts["same_prompt"]:
        return f"Its prompt is not that of {other}: their digests differ."
    if facts["sampling_differs"]:
        return f"It was asked differently from {other}: {', '.join(facts['sampling_differs'])}."
    if sampling.get("temperature", 1.0) != 0.0 and sampling.get("seed") is None:
        return f"Both {other} and it drew their tokens, and neither gave a seed, so each had one of its own."
    reasons = facts.get("reasons")
    if reasons is not None and reasons[0] != reasons[1]:
        return f"They ended differently ({reasons[0]} and {reasons[1]}); up to there the tokens should be the same."
    return (
        f"Nothing recorded explains it: {other} had the same prompt and the same sampling in the same run, so the "
        "tokens should be the same. Run the determinism self-test, and replay the run with the model."
    )


_ANSWERS = {
    Question.SLOW: _slow,
    Question.REFUSED: _refused,
    Question.TRUNCATED: _truncated,
    Question.PREEMPTED: _preempted,
}
