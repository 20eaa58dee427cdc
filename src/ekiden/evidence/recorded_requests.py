"""Recorded requests made again, for a replay or a what-if.

Prompts need not be kept for that. What the engine sees of a prompt is its length and which blocks it shares with
others, so a prompt is made of token ids that share blocks exactly as the recorded keys do (:class:`PromptMaker`).
"""

from collections import Counter
from typing import Any

import msgspec

from ekiden.ledger.blobs import CarriedDetail, RequestDetail
from ekiden.ledger.details import KEY_BYTES, unpack_tokens
from ekiden.ledger.records import RequestRow
from ekiden.state.request import Carried, Request
from ekiden.state.sampling_params import Grammar, GrammarKind, SamplingParams


class PromptMaker:
    """Token ids for recorded prompts: blocks with equal keys get equal tokens, different ones different tokens."""

    def __init__(self, *, vocab_size: int, block_size: int) -> None:
        self._vocab_size = vocab_size
        self._block_size = block_size
        self._blocks: dict[bytes, tuple[int, ...]] = {}
        self._followers: Counter[bytes] = Counter()
        """How many different blocks are known after a block. A key names a block and all that is before it."""

    def prompt(self, row: RequestRow, detail: RequestDetail) -> tuple[int, ...]:
        """The recorded token ids where they were kept, else ones that share blocks as the recorded ones did."""
        if detail.prompt is not None:
            return unpack_tokens(detail.prompt)
        if detail.bad_token is not None:
            return (detail.bad_token,) + (0,) * (row.prompt_tokens - 1)
        tokens: list[int] = []
        before = b""
        for start in range(0, len(detail.block_keys), KEY_BYTES):
            key = detail.block_keys[start : start + KEY_BYTES]
            if key not in self._blocks:
                # The block's number among its siblings, in the base of the vocabulary, with a digit for each token.
                number, digits = self._followers[before], []
                for _ in range(self._block_size):
                    number, digit = divmod(number, self._vocab_size)
                    digits.append(digit)
                self._blocks[key] = tuple(digits)
                self._followers[before] += 1
            tokens += self._blocks[key]
            before = key
        return (*tokens, *(0,) * (row.prompt_tokens - len(tokens)))


def request_of(row: RequestRow, detail: RequestDetail, prompt: tuple[int, ...]) -> Request:
    """The request as intake saw it, for a replay of decisions.

    Stop strings become ones of the same length and a grammar's source the request's number: what they did is recorded.
    """
    sampling: dict[str, Any] = dict(detail.sampling)
    if "stop" in sampling:
        sampling["stop"] = tuple("x" * (len(s) if isinstance(s, str) else s) for s in sampling["stop"])
    if "grammar" in sampling:
        kept = sampling["grammar"]
        kind = GrammarKind(kept["kind"] if isinstance(kept, dict) else kept)
        sampling["grammar"] = Grammar(kind=kind, source=str(row.request))
    sampling.pop("reasoning_marks", None)  # it decides where stop strings and grammars apply
    if "stop_token_ids" in sampling:
        sampling["stop_token_ids"] = tuple(sampling["stop_token_ids"])
    return Request(
        request_id=row.request_id,
        prompt_token_ids=prompt,
        sampling=SamplingParams(**sampling),
        arrival_time=detail.arrival,
        tenant=row.tenant,
        priority=row.priority,
        deadline=detail.deadline,
        external_id=detail.external_id,
        traceparent=detail.traceparent,
        carried=None if detail.carried is None else _carried_of(row.carried or 0, detail.carried),
        reading=detail.reading,
        takes_partial=detail.takes_partial,
    )


def _carried_of(count: int, detail: CarriedDetail) -> Carried:
    """What a request brought. Which tokens these were decides nothing but what stop strings and grammars made of them,
    which is recorded."""
    return Carried(
        token_ids=(0,) * count, first_token_time=detail.first_token_time, ends=detail.ends, run_id=detail.run_id
    )


def kept_request_of(row: RequestRow, detail: RequestDetail) -> Request | None:
    """The request itself, for a replay with the model; None when its prompt was not kept. What it brought from an
    earlier engine is left out: the whole answer is made again."""
    if detail.prompt is None:
        return None
    sampling = msgspec.convert(detail.sampling, SamplingParams)
    return msgspec.structs.replace(
        request_of(row, detail, unpack_tokens(detail.prompt)), sampling=sampling, carried=None
    )
