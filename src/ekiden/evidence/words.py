"""What explain and export say in words: what each cause means, which control made it, and what would avoid it."""

from typing import NamedTuple

from ekiden.evidence.breakdown import Cause
from ekiden.evidence.reader import Event
from ekiden.ledger.records import LEFT_OUT_REASONS, PAUSE_BITS, EventKind, Resumed


class Meaning(NamedTuple):
    """``words`` completes "time went to ..."; ``control`` names a setting, ``otherwise`` what would have been."""

    words: str
    stage: str
    control: str | None = None
    otherwise: str | None = None


def _waits(words: str, control: str, otherwise: str) -> Meaning:
    return Meaning(f"waiting {words}", "refill", control, f"{otherwise} it would have joined that much earlier")


_BY_ARRIVAL = "in order of arrival (fcfs)"
_LARGER_POOL = "with a larger KV pool: none of it"

MEANINGS: dict[Cause, Meaning] = {
    Cause.STEP_BOUNDARY: Meaning("waiting for the step in progress to end", "intake"),
    Cause.SLOTS: _waits("for a free slot", "max_num_seqs", "with a free slot"),
    Cause.KV_BLOCKS: _waits(
        "for KV blocks: it was next in line and did not fit", "kv_cache_size", "with enough free blocks"
    ),
    Cause.BEHIND_REQUEST: Meaning(
        "waiting behind a request that did not fit the KV pool",
        "refill",
        "max_overtakes",
        "without that request it would have joined up to that much earlier",
    ),
    Cause.TENANT_TURN: _waits(
        "for its tenant's turn: the slots went to tenants that had received less", "scheduling_policy", _BY_ARRIVAL
    ),
    Cause.PRIORITY: _waits("behind requests of higher priority that came later", "scheduling_policy", _BY_ARRIVAL),
    Cause.EARLIER_DEADLINE: _waits(
        "behind requests with earlier deadlines that came later", "scheduling_policy", _BY_ARRIVAL
    ),
    Cause.BATCHING: _waits("because the batching policy let nobody join", "batching", "with continuous batching"),
    Cause.PREEMPTED_FIRST: Meaning(
        "waiting while preempted requests came back first", "refill", "kv_cache_size", _LARGER_POOL
    ),
    Cause.OWN_PREFILL: Meaning("computing its own prompt", "advance"),
    Cause.OWN_DECODE: Meaning("making its own tokens", "advance"),
    Cause.OTHERS_PREFILL: Meaning(
        "computing other requests' prompts",
        "formation",
        "max_num_batched_tokens",
        "without those prompts, by the step-time model, it would have ended that much earlier",
    ),
    Cause.SWAPPING: Meaning("steps that moved other requests' KV blocks", "formation", "kv_cache_size", _LARGER_POOL),
    Cause.INTER_TOKEN_TARGET: Meaning(
        "being held back so that running answers keep their pace",
        "formation",
        "target_itl_ms",
        "without the target its prompt would have been computed that much earlier",
    ),
    Cause.PREFIX_IN_FLIGHT: Meaning(
        "waiting for another request to compute the beginning that both share", "formation"
    ),
    Cause.RUNNING_KV_BLOCKS: Meaning(
        "sitting out steps because no KV block was free", "formation", "kv_cache_size", _LARGER_POOL
    ),
    Cause.PREEMPTED: Meaning(
        "being preempted: its KV blocks were taken for requests that had run longer",
        "formation",
        "kv_cache_size",
        "with a larger KV pool, or had the runner-up been chosen: none of it",
    ),
    Cause.RECOMPUTE: Meaning(
        "computing again what was dropped when it was preempted",
        "formation",
        "swap_size",
        "with a larger swap space: none of it",
    ),
    Cause.RESUMING: Meaning("waiting to come back after a pause", "refill"),
    Cause.SLOW_READER: Meaning(
        "being paused because its client read too slowly",
        "retirement",
        otherwise="with a client that keeps up: none of it",
    ),
    Cause.OPERATOR_PAUSE: Meaning("being paused by an operator", "intake", "pause", "without the pause: none of it"),
    Cause.HOST: Meaning("work between the steps", "advance"),
    Cause.UNRECORDED: Meaning("turns that the ledger lost", "intake"),
}
assert MEANINGS.keys() == set(Cause), "a cause has no meaning"

OWN_WORK = frozenset({Cause.OWN_PREFILL, Cause.OWN_DECODE})


def seconds(value: float) -> str:
    """A duration for people."""
    if value < 1.0:
        return f"{value * 1000:.3g} ms"
    return f"{value:.2f} s" if value < 100.0 else f"{value:.0f} s"


def event_words(event: Event) -> str:
    """One moment of a request's life."""
    value = event.value
    match event.kind:
        case EventKind.ARRIVED:
            return "taken into the queue"
        case EventKind.REFUSED:
            return "refused"
        case EventKind.ADMITTED:
            found = f", {value} prompt tokens found in the prefix cache" if value else ""
            return f"got a slot and its KV blocks{found}"
        case EventKind.PREFILL:
            return f"{value} prompt tokens computed"
        case EventKind.FIRST_TOKEN:
            return "first token"
        case EventKind.LEFT_OUT:
            return f"left out of steps: {LEFT_OUT_REASONS[value].value}" if value else "back in the steps"
        case EventKind.BLOCKED:
            return "looked at for admission and did not fit" if value else "no longer blocked by the KV pool"
        case EventKind.PREEMPTED:
            return f"preempted, {value} blocks moved to the swap space" if value else "preempted, its blocks dropped"
        case EventKind.RESUMED:
            return "back after preemption" if Resumed.of(value).whole else "back after preemption, to be computed again"
        case EventKind.CAUGHT_UP:
            return "what was dropped is computed again"
        case EventKind.PAUSED:
            names = [reason.value for reason, bit in PAUSE_BITS.items() if value & bit]
            return f"paused: {', '.join(names)}" if names else "pause withdrawn"
        case EventKind.TOKENS:
            return f"{value} tokens in one step, drafts included"
        case EventKind.ENDED:
            return "ended"
