"""What a replay needs of a stored run: its requests made again, and where two runs of decisions first differ.

Prompts need not be kept for that. What the engine sees of a prompt is its length and which blocks it shares with
others, so a prompt is made of token ids that share blocks exactly as the recorded keys do (:class:`PromptMaker`).
The engine itself is driven by :mod:`ekiden.evidence.decision_replay`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import msgspec

from ekiden.ledger.details import KEY_BYTES, unpack_tokens
from ekiden.ledger.records import (
    EndDetail,
    EndRow,
    RequestDetail,
    RequestRow,
    Rows,
    TurnDecisions,
    TurnInputs,
    TurnRow,
)
from ekiden.state.request import Request
from ekiden.state.sampling_params import Grammar, GrammarKind, SamplingParams

_DECODE_REQUEST = msgspec.msgpack.Decoder(RequestDetail).decode
_DECODE_END = msgspec.msgpack.Decoder(EndDetail).decode
_DECODE_DECISIONS = msgspec.msgpack.Decoder(TurnDecisions).decode
_DECODE_INPUTS = msgspec.msgpack.Decoder(TurnInputs).decode
_FIGURES = TurnRow._fields.index("inputs")
"""How many columns of a turn are plain figures."""


@dataclass(slots=True)
class _Node:
    """A known beginning of prompts: the blocks seen after it, by their keys."""

    tokens: tuple[int, ...] = ()
    children: "dict[bytes, _Node]" = field(default_factory=dict)


class PromptMaker:
    """Token ids for recorded prompts: blocks with equal keys get equal tokens, different ones different tokens."""

    def __init__(self, *, vocab_size: int, block_size: int) -> None:
        self._vocab_size = vocab_size
        self._block_size = block_size
        self._root = _Node()

    def prompt(self, row: RequestRow, detail: RequestDetail) -> tuple[int, ...]:
        """The recorded token ids where they were kept, else ones that share blocks as the recorded ones did."""
        if detail.prompt is not None:
            return unpack_tokens(detail.prompt)
        if detail.bad_token is not None:
            return (detail.bad_token,) + (0,) * (row.prompt_tokens - 1)
        tokens: list[int] = []
        node = self._root
        for start in range(0, len(detail.block_keys), KEY_BYTES):
            key = detail.block_keys[start : start + KEY_BYTES]
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = _Node(self._numerals(len(node.children)))
            tokens += child.tokens
            node = child
        return (*tokens, *(0,) * (row.prompt_tokens - len(tokens)))

    def _numerals(self, number: int) -> tuple[int, ...]:
        """The number of a block among its siblings, written in the base of the vocabulary over one block."""
        digits = []
        for _ in range(self._block_size):
            number, digit = divmod(number, self._vocab_size)
            digits.append(digit)
        return tuple(digits)


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
    return _request(row, detail, prompt, sampling)


def kept_request_of(row: RequestRow, detail: RequestDetail) -> Request | None:
    """The request itself, for a replay with the model; None when its prompt was not kept."""
    if detail.prompt is None:
        return None
    sampling: dict[str, Any] = dict(detail.sampling)
    if "stop" in sampling:
        sampling["stop"] = tuple(sampling["stop"])
    if "grammar" in sampling:
        sampling["grammar"] = msgspec.convert(sampling["grammar"], Grammar)
    return _request(row, detail, unpack_tokens(detail.prompt), sampling)


def _request(row: RequestRow, detail: RequestDetail, prompt: tuple[int, ...], sampling: dict[str, Any]) -> Request:
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
    )


def request_detail_of(row: RequestRow) -> RequestDetail:
    return _DECODE_REQUEST(row.detail)


def end_detail_of(row: EndRow) -> EndDetail:
    return _DECODE_END(row.detail)


def inputs_of(row: TurnRow) -> TurnInputs:
    return _DECODE_INPUTS(row.inputs)


def decisions_of(row: TurnRow) -> TurnDecisions:
    return _DECODE_DECISIONS(row.decisions)


# --- comparing


@dataclass(frozen=True, slots=True)
class Difference:
    """The first turn whose decisions differ: for each differing field what was recorded and what the replay did."""

    turn: int
    fields: list[tuple[str, object, object]]


def same_decisions(recorded: Rows, replayed: Rows) -> bool:
    """Whether two turns hold the same decisions, byte for byte.

    What the world did (``inputs``) is no decision. Events repeat decisions, so they count only where they were read.
    """
    return (
        recorded.turn.decisions == replayed.turn.decisions
        and recorded.turn[:_FIGURES] == replayed.turn[:_FIGURES]
        and recorded.turn.epoch in (None, replayed.turn.epoch)
        and recorded.events in ([], replayed.events)
        and list(map(_of_request, recorded.requests)) == list(map(_of_request, replayed.requests))
        and list(map(_of_end, recorded.ends)) == list(map(_of_end, replayed.ends))
    )


def _of_request(row: RequestRow) -> tuple[object, ...]:
    """What intake decided about a request. Messages are left out: they may repeat texts that were not kept."""
    detail = _DECODE_REQUEST(row.detail)
    found = (detail.num_waiting, detail.waiting_tokens, detail.worst_case_blocks, detail.expected_output)
    return (*row[:-1], *found, detail.param, detail.retry_after)


def _of_end(row: EndRow) -> tuple[object, ...]:
    detail = _DECODE_END(row.detail)
    return (*row[:-1], detail.stop_reason)


def difference(recorded: Rows, replayed: Rows) -> Difference:
    """Where the decisions of one turn differ, field by field."""
    found: list[tuple[str, object, object]] = [
        (name, old, new)
        for name, old, new in zip(TurnRow._fields[:_FIGURES], recorded.turn, replayed.turn, strict=False)
        if old != new
    ]
    if recorded.turn.epoch not in (None, replayed.turn.epoch):
        found.append(("epoch", recorded.turn.epoch, replayed.turn.epoch))
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
