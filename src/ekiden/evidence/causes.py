"""What a request's time can go to: each cause, the stage that decides it, its words, and what would avoid it."""

from collections.abc import Callable
from enum import StrEnum


def _by(stage: str) -> Callable[[str, str], tuple[str, str, str]]:
    """Declares the causes that a stage decides."""
    return lambda value, words: (value, stage, words)


_intake, _formation, _advance, _retirement, _refill = map(
    _by, ("intake", "formation", "advance", "retirement", "refill")
)


class Cause(StrEnum):
    """``words`` complete "time went to ..."."""

    STEP_BOUNDARY = _intake("step_boundary", "waiting for the step in progress to end")
    SLOTS = _refill("waiting_for_slot", "waiting for a free slot")
    KV_BLOCKS = _refill("waiting_for_kv_blocks", "waiting for KV blocks: it was next in line and did not fit")
    BEHIND_REQUEST = _refill("waiting_behind_request", "waiting behind a request that did not fit the KV pool")
    TENANT_TURN = _refill(
        "waiting_for_tenants_turn", "waiting for its tenant's turn: the slots went to tenants that had received less"
    )
    PRIORITY = _refill("waiting_behind_priority", "waiting behind requests of higher priority that came later")
    EARLIER_DEADLINE = _refill(
        "waiting_behind_earlier_deadline", "waiting behind requests with earlier deadlines that came later"
    )
    BATCHING = _refill("waiting_for_batching_policy", "waiting because the batching policy let nobody join")
    PREEMPTED_FIRST = _refill("waiting_for_preempted", "waiting while preempted requests came back first")
    OWN_PREFILL = _advance("own_prefill", "computing its own prompt")
    OWN_DECODE = _advance("own_decode", "making its own tokens")
    OTHERS_PREFILL = _formation("others_prefill", "computing other requests' prompts")
    SWAPPING = _formation("others_swapping", "steps that moved other requests' KV blocks")
    INTER_TOKEN_TARGET = _formation(
        "held_back_by_inter_token_target", "being held back so that running answers keep their pace"
    )
    PREFIX_IN_FLIGHT = _formation(
        "held_back_for_shared_prefix", "waiting for another request to compute the beginning that both share"
    )
    RUNNING_KV_BLOCKS = _formation("held_back_by_kv_blocks", "sitting out steps because no KV block was free")
    PREEMPTED = _formation("preempted", "being preempted: its KV blocks were taken for requests that had run longer")
    RECOMPUTE = _formation("recomputing_after_preemption", "computing again what was dropped when it was preempted")
    EARLIER_ENGINE = _intake("earlier_engine", "being in an engine that ended, until another one took it over")
    CATCHING_UP = _formation("recomputing_after_engine_end", "computing again what an engine that ended had computed")
    RESUMING = _refill("waiting_to_resume", "waiting to come back after a pause")
    SLOW_READER = _retirement("slow_reader", "being paused because its client read too slowly")
    OPERATOR_PAUSE = _intake("paused_by_operator", "being paused by an operator")
    HOST = _advance("between_steps", "work between the steps")
    UNRECORDED = _intake("not_recorded", "turns that the ledger lost")

    stage: str
    words: str

    def __new__(cls, value: str, stage: str, words: str) -> "Cause":
        cause = str.__new__(cls, value)
        cause._value_, cause.stage, cause.words = value, stage, words
        return cause


OWN_WORK = frozenset({Cause.OWN_PREFILL, Cause.OWN_DECODE})

_JOINED = "it would have joined that much earlier"
_ENDED = "it would have ended that much earlier"
_BY_ARRIVAL = ("scheduling_policy", f"in order of arrival (fcfs) {_JOINED}")
_LARGER_POOL = ("kv_cache_size", "with a larger KV pool: none of it")

REMEDIES: dict[Cause, tuple[str | None, str]] = {
    Cause.SLOTS: ("max_num_seqs", f"with a free slot {_JOINED}"),
    Cause.KV_BLOCKS: ("kv_cache_size", f"with enough free blocks {_JOINED}"),
    Cause.BEHIND_REQUEST: ("max_overtakes", "without that request it would have joined up to that much earlier"),
    Cause.TENANT_TURN: _BY_ARRIVAL,
    Cause.PRIORITY: _BY_ARRIVAL,
    Cause.EARLIER_DEADLINE: _BY_ARRIVAL,
    Cause.BATCHING: ("batching", f"with continuous batching {_JOINED}"),
    Cause.PREEMPTED_FIRST: _LARGER_POOL,
    Cause.OTHERS_PREFILL: ("max_num_batched_tokens", f"without those prompts, by the step-time model, {_ENDED}"),
    Cause.SWAPPING: _LARGER_POOL,
    Cause.INTER_TOKEN_TARGET: (
        "target_itl_ms",
        "without the target its prompt would have been computed that much earlier",
    ),
    Cause.RUNNING_KV_BLOCKS: _LARGER_POOL,
    Cause.PREEMPTED: ("kv_cache_size", "with a larger KV pool, or had the runner-up been chosen: none of it"),
    Cause.RECOMPUTE: ("swap_size", "with a larger swap space: none of it"),
    Cause.SLOW_READER: (None, "with a client that keeps up: none of it"),
    Cause.OPERATOR_PAUSE: ("pause", "without the pause: none of it"),
}
"""The control that made the time of a cause, and what another setting of it would have done."""
