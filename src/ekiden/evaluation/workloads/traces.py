"""Requests as they really came: windows of recorded (or, for ServeGen, sampled) traces, scaled to the machine.

The first half of a trace is dev, the second half confirm. Each half is cut into windows of as many requests as a block
has; the seed says which window is which block, so that the blocks of one seed share no row. Time is scaled so that the
window fills the block: its bursts stay, relative to its mean rate.
"""

from functools import partial

from ekiden.evaluation.workloads.offer import Kind, Offer
from ekiden.evaluation.workloads.package_data import BLOCK_TOKENS, TraceRow, trace
from ekiden.evaluation.workloads.source import Ask, Made, Source, scaled

AZURE_CONVERSATION = "traces/azure_llm_2023_conv.csv"
AZURE_CODE = "traces/azure_llm_2023_code.csv"
MOONCAKE = "traces/mooncake_conversation.csv"
SERVEGEN_LARGE = "traces/servegen_m_large_sampled_1h.csv"
SERVEGEN_REASON = "traces/servegen_deepseek_r1_sampled_1h.csv"


def rows_of(path: str, split: str) -> range:
    """The rows of a split."""
    total = len(trace(path))
    return range(total // 2) if split == "dev" else range(total // 2, total)


def _blocks(path: str, ask: Ask) -> int:
    return len(rows_of(path, ask.split)) // ask.count


def _too_long(path: str, ask: Ask) -> str | None:
    there = len(rows_of(path, "dev"))
    if ask.count <= there:
        return None
    return f"rate x seconds asks for {ask.count} requests, and half of the trace has {there}; ask for a shorter block"


def _make(path: str, ask: Ask) -> Made:
    windows = list(range(_blocks(path, ask)))
    ask.chance("windows", all_blocks=True).shuffle(windows)
    first = rows_of(path, ask.split).start + windows[ask.block] * ask.count
    rows, last = trace(path), first + ask.count
    window = rows[first:last]
    span = _span(rows, first, last)
    scale = ask.seconds / span if span else 0.0  # all at one moment stay at one moment
    times = [min(round((row.arrival_s - window[0].arrival_s) * scale, 6), ask.seconds) for row in window]
    shared = _shared(window) if window[0].blocks else [(0, 0)] * len(window)
    prompts = [scaled(row.prompt_tokens, ask.length_scale) for row in window]
    offers = [
        Offer(
            id=ask.named(index),
            at=at,
            prompt_tokens=prompts[index],
            output_tokens=(output := scaled(row.output_tokens, ask.length_scale)),
            max_tokens=output,
            prefix_of=ask.named(earlier) if blocks else "",
            prefix_tokens=min(round(blocks * BLOCK_TOKENS * ask.length_scale), prompts[index], prompts[earlier])
            if blocks
            else 0,
            tenant=row.tenant,
        )
        for index, (row, at, (earlier, blocks)) in enumerate(zip(window, times, shared, strict=True))
    ]
    about = {"file": path, "rows": [first, last], "trace_seconds": round(span, 3), "time_scale": round(scale, 6)}
    return Made(offers=offers, about=about, files=(path,))


def _span(rows: tuple[TraceRow, ...], first: int, last: int) -> float:
    """Seconds from the first row of a window to the first one after it; at the end of the trace a mean gap is added."""
    if last < len(rows):
        return rows[last].arrival_s - rows[first].arrival_s
    return (rows[-1].arrival_s - rows[first].arrival_s) * (last - first) / max(1, last - first - 1)


def _shared(window: tuple[TraceRow, ...]) -> list[tuple[int, int]]:
    """For each row the latest earlier one of the window with the longest common prefix, and that prefix in blocks."""
    holder: dict[int, int] = {}
    found = []
    for index, row in enumerate(window):
        # A block's name stands for all that comes before it, so the last known block ends the longest common prefix.
        known = next((depth for depth, block in enumerate(row.blocks) if block not in holder), len(row.blocks))
        found.append((holder[row.blocks[known - 1]] if known else 0, known))
        holder.update(dict.fromkeys(row.blocks, index))
    return found


def _source(name: str, path: str, summary: str) -> Source:
    return Source(
        name=name,
        kind=Kind.NORMAL,
        summary=summary,
        options=(),
        make=partial(_make, path),
        blocks=partial(_blocks, path),
        fault=partial(_too_long, path),
    )


TRACES = (
    _source(
        "azure-conversation", AZURE_CONVERSATION, "Conversations of an Azure service in 2023: smooth, medium answers"
    ),
    _source("azure-code", AZURE_CODE, "Code completion of an Azure service in 2023: bursty, short answers"),
    _source(
        "mooncake-conversation",
        MOONCAKE,
        "Conversations of Mooncake in 2025: long prompts that begin alike; scale the lengths",
    ),
    _source("servegen-large", SERVEGEN_LARGE, "Tenants of a large chat model, sampled from ServeGen's statistics"),
    _source("servegen-reason", SERVEGEN_REASON, "Tenants of a reasoning model, sampled from ServeGen: long answers"),
)
