"""What the ledger keeps of a request and of its end beside the columns: digests and lengths; texts and tokens only
where prompts are to be kept."""

import zlib
from array import array
from collections.abc import Sequence as Tokens
from hashlib import blake2b
from typing import Any

import msgspec

from ekiden.kv_cache.prefix_cache import prefix_keys, prompt_keys
from ekiden.ledger.blobs import CarriedDetail, DraftTotals, EndDetail, RequestDetail
from ekiden.ledger.records import NO_DRAFT_CODES
from ekiden.state.drafting import Drafting
from ekiden.state.request import Carried, Finish, FinishReason, Refusal, RefusalReason, TokenLogprobs
from ekiden.state.sampling_params import SamplingParams
from ekiden.state.sequence import Sequence
from ekiden.state.turn import Arrival

STOP_STRING = "string"
FAILED_RULES = "error"
KEY_BYTES = 8
"""Of each block's key. Two different prompt beginnings look the same with a chance of one in 2 ** 64."""
_ESTIMATED = frozenset(
    {
        RefusalReason.DEADLINE_TOO_SHORT,
        RefusalReason.DEADLINE_TOO_BUSY,
        RefusalReason.TENANT_QUEUE_FULL,
        RefusalReason.TENANT_RATE,
        RefusalReason.INVALID,
        RefusalReason.INTERNAL_ERROR,
    }
)
"""Refused after the deadline was judged, for which a replay needs to know what of the prompt was in the cache."""
_DEFAULTS = msgspec.structs.asdict(SamplingParams())


def digest(token_ids: Tokens[int]) -> bytes:
    """BLAKE2b over the token ids, 16 bytes."""
    try:
        content = array("q", token_ids).tobytes()
    except OverflowError:  # a refused request may hold anything
        content = repr(token_ids).encode()
    return blake2b(content, digest_size=16).digest()


def reading_digest(pooled: bytes | None, scores: Tokens[TokenLogprobs]) -> bytes:
    """BLAKE2b over what was read of a prompt, 16 bytes: the vector, and the log-probabilities."""
    content = array("d", [score.logprob for score in scores]).tobytes()
    return blake2b((pooled or b"") + content, digest_size=16).digest()


def pack_tokens(token_ids: Tokens[int]) -> bytes | None:
    """Token ids, compressed; None when one of them is outside 32 bits, as in a refused request."""
    try:
        return zlib.compress(array("i", token_ids).tobytes(), 1)
    except OverflowError:
        return None


def unpack_tokens(packed: bytes) -> tuple[int, ...]:
    tokens = array("i")
    tokens.frombytes(zlib.decompress(packed))
    return tuple(tokens)


def request_detail(arrival: Arrival, block_size: int, prefix_caching: bool, keep_prompts: bool) -> RequestDetail:
    """What is kept of a request that intake has seen. Also computes the keys of its prompt's blocks, as admission would
    do later."""
    request, outcome = arrival.request, arrival.outcome
    refusal = outcome if isinstance(outcome, Refusal) else None
    prompt = request.prompt_token_ids
    keys, worst, expected, wait = b"", 0, None, None
    estimate = None if refusal is None else refusal.estimate
    if refusal is not None and prefix_caching and request.deadline is not None and refusal.reason in _ESTIMATED:
        known = prefix_keys(prompt, block_size, len(prompt) // block_size)
        keys = b"".join([key[:KEY_BYTES] for key in known])
    if isinstance(outcome, Sequence):
        estimate = outcome.estimate
        worst, expected = -(-outcome.max_total_tokens // block_size), outcome.expected_output
        wait = outcome.expected_wait
        if prefix_caching:
            keys = b"".join([key[:KEY_BYTES] for key in prompt_keys(outcome, block_size)])
    return RequestDetail(
        arrival=request.arrival_time,
        deadline=request.deadline,
        sampling=_sampling_changes(request.sampling, keep_texts=keep_prompts, refused=refusal is not None),
        prompt_digest=digest(prompt),
        block_keys=keys,
        num_waiting=arrival.num_waiting,
        waiting_tokens=arrival.waiting_tokens,
        worst_case_blocks=worst,
        expected_output=expected,
        external_id=request.external_id,
        prompt=pack_tokens(prompt) if keep_prompts else None,
        message=refusal.message if refusal else None,
        param=refusal.param if refusal else None,
        retry_after=refusal.retry_after if refusal else None,
        bad_token=_bad_token(prompt, refusal),
        traceparent=request.traceparent,
        by_door=refusal is not None and refusal.by_door,
        carried=_carried_detail(request.carried),
        reading=request.reading,
        expected_wait=wait,
        estimate=estimate,
        takes_partial=request.takes_partial,
    )


def _carried_detail(carried: Carried | None) -> CarriedDetail | None:
    return None if carried is None else CarriedDetail(carried.ends, carried.run_id, carried.first_token_time)


def end_detail(sequence: Sequence, finish: Finish, keep_prompts: bool) -> EndDetail:
    """How a request ended."""
    output = sequence.token_ids[sequence.num_prompt_tokens :]
    read = sequence.request.reading is not None
    return EndDetail(
        output_digest=reading_digest(sequence.pooled, sequence.prompt_logprobs) if read else digest(output),
        stop_reason=STOP_STRING if isinstance(finish.stop_reason, str) else finish.stop_reason,
        message=finish.message,
        output=pack_tokens(output) if keep_prompts else None,
        estimate=finish.estimate,
        drafting=_draft_totals(sequence.drafting),
    )


def _draft_totals(drafting: Drafting | None) -> DraftTotals | None:
    if drafting is None:
        return None
    refused = sorted((NO_DRAFT_CODES[reason], count) for reason, count in drafting.refused.items())
    return DraftTotals(drafting.num_rows, drafting.num_drafts, drafting.num_accepted, refused)


def stop_of(sequence: Sequence) -> int | str | None:
    """What ended a sequence before its length did: a stop token of the client, STOP_STRING or FAILED_RULES. None for
    the model's own end token or the end of a grammar."""
    if sequence.finish_reason is FinishReason.ERROR:
        return FAILED_RULES
    return STOP_STRING if isinstance(sequence.stop_reason, str) else sequence.stop_reason


def _sampling_changes(sampling: SamplingParams, *, keep_texts: bool, refused: bool) -> dict[str, Any]:
    """What differs from the defaults. Of the client's own texts only lengths and kinds, unless they are kept."""
    values = msgspec.structs.asdict(sampling)
    changes = {name: value for name, value in values.items() if value != _DEFAULTS[name]}
    if refused:
        changes = {name: _storable(value) for name, value in changes.items()}
    if keep_texts:
        return changes
    if sampling.stop:
        changes["stop"] = [len(text) for text in sampling.stop]
    if sampling.grammar is not None:
        changes["grammar"] = sampling.grammar.kind.value
    return changes


def _storable(value: Any) -> Any:
    """A value of a refused request, its whole numbers within 63 bits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-(2**62), min(2**62, value))
    if isinstance(value, tuple):
        return tuple(map(_storable, value))
    return {_storable(key): each for key, each in value.items()} if isinstance(value, dict) else value


def _bad_token(prompt: Tokens[int], refusal: Refusal | None) -> int | None:
    """The token for which a request was refused, within 63 bits."""
    if not prompt or refusal is None or refusal.reason is not RefusalReason.TOKEN_OUT_OF_VOCABULARY:
        return None
    low, high = min(prompt), max(prompt)
    return int(_storable(low if low < 0 else high))
