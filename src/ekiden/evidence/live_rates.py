"""What a running engine did in the last moments: its memory, its pace, and what each tenant got."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

import msgspec

from ekiden.evidence.live_seen import Seen
from ekiden.evidence.live_view import Memory, Pace, Spread, Tenant
from ekiden.evidence.reader import decisions_of, inputs_of
from ekiden.evidence.timeline import RUNNING, Phase
from ekiden.ledger.records import TurnRow
from ekiden.state.controls import TenantLimits
from ekiden.state.request import DEFAULT_TENANT

SHOWN_TENANTS = 8


def memory_of(seen: Seen) -> Memory:
    header, free = seen.reader.header, seen.last.free_blocks
    preempted = [one for one in seen.live if one.phase in (Phase.PREEMPTED, Phase.RESUMING)]
    times = [turn for one in (*seen.live, *seen.gone) for turn in one.preempted_turns]
    return Memory(
        used=header.num_blocks - free,
        free=free,
        total=header.num_blocks,
        block_size=header.block_size,
        swap_total=header.num_swap_blocks,
        preempted=len(preempted),
        preempted_blocks=sum(one.swapped for one in preempted),
        moved=sum(turn.swapped for turn in seen.turns),
        preemptions=sum(turn >= seen.first_turn for turn in times),
    )


def pace_of(seen: Seen) -> Pace:
    turns, seconds = seen.turns, max((seen.now - seen.since) / 1e6, 1e-6)
    steps = [turn for turn in turns if turn.decode_rows or turn.prefill_tokens]
    drafts, accepted = _drafts(seen)
    output, prompt = sum(turn.tokens for turn in turns), sum(turn.prefill_tokens for turn in turns)
    return Pace(
        steps=len(steps),
        output_tokens=output,
        prompt_tokens=prompt,
        output_tokens_per_second=output / seconds,
        prompt_tokens_per_second=prompt / seconds,
        rows_per_step=sum(turn.decode_rows for turn in steps) / max(1, len(steps)),
        ttft=Spread.of((micros, 1) for _, micros in _first_tokens(seen)),
        itl=Spread.of(_gaps(turns)),
        step=Spread.of((turn.took, 1) for turn in steps),
        drafts=drafts,
        accepted_drafts=accepted,
    )


def _first_tokens(seen: Seen) -> list[tuple[str, int]]:
    """Those of the window: whose each is, and the microseconds since the request arrived."""
    return [
        (one.request.tenant, first.at - one.request.arrival)
        for one in (*seen.live, *seen.gone)
        if (first := one.first_token) is not None and first.at is not None and first.turn >= seen.first_turn
    ]


def _drafts(seen: Seen) -> tuple[int, int]:
    """Tokens guessed ahead in the window, and how many of them were right."""
    if not seen.reader.header.max_drafts:
        return 0, 0
    drafts = accepted = 0
    for turn in seen.reader.turns_backwards(seen.last.turn, seen.last.turn - seen.first_turn + 1):
        drafts += sum(count for _, count in decisions_of(turn).drafts)
        accepted += sum(max(0, row.tokens - 1) for row in inputs_of(turn).drafts)
    return drafts, accepted


def tenants_of(seen: Seen) -> tuple[list[Tenant], Tenant | None]:
    """What each tenant has now and had in the window; the first few, and the sum over the others."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    first, last = seen.first_turn, seen.last.turn
    decoding = {turn.turn for turn in seen.turns if turn.decode_rows and turn.tokens}
    silent = [turn for turn in range(first, last + 1) if turn not in decoding]
    for one in (*seen.live, *seen.gone):
        count = counts[one.request.tenant]
        count["prompt_tokens"] += sum(tokens for turn, tokens in one.chunks.items() if turn >= first)
        count["output_tokens"] += one.output_tokens(first, last, silent)
    oldest: dict[str, float] = {}
    for one in seen.live:
        where = "waiting" if one.phase is Phase.WAITING else "running" if one.phase in RUNNING else "away"
        counts[one.request.tenant][where] += 1
        if where == "waiting":
            oldest.setdefault(one.request.tenant, seen.ago(one.request.arrival))
    firsts: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for name, micros in _first_tokens(seen):
        firsts[name].append((micros, 1))
    for request, _ in seen.ended:
        counts[request.tenant]["ended" if request.refusal is None else "refused"] += 1
    control = seen.reader.controls(last).get("tenants")
    if control is None:
        limits = msgspec.convert(seen.reader.header.tenants, dict[str, TenantLimits])
    else:
        limits = msgspec.json.decode(control.value, type=dict[str, TenantLimits])
    others = limits.get(DEFAULT_TENANT, TenantLimits())
    tenants = [
        Tenant(
            tenant=name,
            weight=limits.get(name, others).weight,
            ttft_p50=Spread.of(firsts[name]).p50,
            oldest_seconds=oldest.get(name),
            **count,
        )
        for name, count in counts.items()
    ]
    tenants.sort(key=lambda t: (-t.prompt_tokens - t.output_tokens, -t.running - t.waiting - t.away, t.tenant))
    rest = tenants[SHOWN_TENANTS:]
    return tenants[:SHOWN_TENANTS], Tenant.sum_of(rest) if rest else None


def _gaps(turns: list[TurnRow]) -> Iterable[tuple[int, int]]:
    """The time between the ends of neighbouring turns, with the rows of one token of the later one."""
    for before, turn in pairwise(turns):
        if turn.decode_rows and turn.turn == before.turn + 1:
            yield turn.end - before.end, turn.decode_rows
