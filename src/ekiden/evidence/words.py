"""What explain, export and top say of durations and events."""

from typing import Any

from ekiden.evidence.reader import Event
from ekiden.ledger.records import LEFT_OUT_REASONS, PAUSE_BITS, EventKind, Resumed
from ekiden.state.request import Estimate


def seconds(value: float) -> str:
    """A duration for people."""
    if value < 1.0:
        return f"{value * 1000:.3g} ms"
    return f"{value:.2f} s" if value < 100.0 else f"{value:.0f} s"


def estimate_facts(estimate: Estimate | None) -> dict[str, Any] | None:
    """An estimate by names; times are seconds from the moment at which it was made."""
    if estimate is None:
        return None
    ranges = {"wait": estimate.wait, "first_token": estimate.first_token, "end": estimate.end}
    named = {name: dict(zip(("p10", "p50", "p90"), quantiles, strict=True)) for name, quantiles in ranges.items()}
    return {"deadline": estimate.left, "alone": estimate.alone, **named}


_WORDS = {
    EventKind.ARRIVED: "taken into the queue",
    EventKind.REFUSED: "refused",
    EventKind.PREFILL: "{} prompt tokens computed",
    EventKind.FIRST_TOKEN: "first token",
    EventKind.CAUGHT_UP: "what was dropped is computed again",
    EventKind.CARRIED: "taken over from an engine that had ended, with {} tokens",
    EventKind.TOKENS: "{} tokens in one step, drafts included",
    EventKind.ENDED: "ended",
}


def event_words(event: Event) -> str:
    """One moment of a request's life."""
    value = event.value
    match event.kind:
        case EventKind.ADMITTED:
            found = f", {value} prompt tokens found in the prefix cache" if value else ""
            return f"got a slot and its KV blocks{found}"
        case EventKind.LEFT_OUT:
            return f"left out of steps: {LEFT_OUT_REASONS[value].value}" if value else "back in the steps"
        case EventKind.BLOCKED:
            return "looked at for admission and did not fit" if value else "no longer blocked by the KV pool"
        case EventKind.PREEMPTED:
            return f"preempted, {value} blocks moved to the swap space" if value else "preempted, its blocks dropped"
        case EventKind.RESUMED:
            return "back after preemption" if Resumed.of(value).whole else "back after preemption, to be computed again"
        case EventKind.PAUSED:
            names = [reason.value for reason, bit in PAUSE_BITS.items() if value & bit]
            return f"paused: {', '.join(names)}" if names else "pause withdrawn"
        case kind:
            return _WORDS[kind].format(value)
