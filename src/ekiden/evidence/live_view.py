"""What ``ekiden top`` and ``GET /admin/live`` show: plain data, the same for both.

Times are seconds. "In the window" is: in the last ``window_seconds`` before the view was taken.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from ekiden.measure.percentiles import percentiles


class SlotState(StrEnum):
    """The phases of a request that has a slot have the same names."""

    EMPTY = "empty"
    PREFILL = "prefilling"
    DECODE = "decoding"
    RECOMPUTE = "recomputing"
    """What was dropped when it was preempted is being computed again."""
    PREEMPTED = "preempted"
    """It keeps the slot; its KV blocks were taken."""
    PADDING = "padding"
    """It has ended; the batch goes on computing its row."""


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    slot: int
    state: SlotState = SlotState.EMPTY
    request_id: str | None = None
    tenant: str | None = None
    prompt_tokens: int = 0
    computed_tokens: int = 0
    """Of the prompt, the tokens whose keys and values are in the KV pool or the swap space."""
    output_tokens: int = 0
    max_tokens: int = 0
    seconds: float = 0.0
    """Since it was admitted for the first time."""
    left_out: str | None = None
    """Why it runs and gets no tokens now."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    tenant: str
    prompt_tokens: int
    seconds: float
    """Since it arrived."""
    cause: str
    """What it waits for, by the name that ``explain`` has for it."""
    behind: str | None = None
    """The request that it waits for, where the cause names one."""
    passed_over: bool = False
    """It was looked at for admission and did not fit."""


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """``first`` has the first in line, then those that were passed over, then the others by arrival."""

    waiting: int = 0
    by_cause: dict[str, int] = {}
    oldest_seconds: float | None = None
    prompt_tokens: int = 0
    first: list[Waiting] = []


class Away(msgspec.Struct, frozen=True, kw_only=True):
    """A request in the engine that neither waits for admission nor has a slot. ``why``: what pauses it; empty when it
    waits for a slot again."""

    request_id: str
    tenant: str
    why: list[str]
    output_tokens: int


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """In blocks. ``used`` are referenced by requests; ``free`` can be given out, cached prefixes included."""

    used: int
    free: int
    total: int
    block_size: int
    swap_total: int
    preempted: int
    """Requests whose blocks were taken, and the blocks they have in the swap space."""
    preempted_blocks: int
    moved: int
    """Blocks copied to or from the swap space in the window."""
    preemptions: int
    """In the window."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles by the rule of :mod:`ekiden.measure.percentiles`; None where there is nothing to tell."""

    count: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None

    @staticmethod
    def of(micros: Iterable[tuple[int, int]]) -> "Spread":
        """Of microseconds that each count several times."""
        pairs = list(micros)
        counts = [count for _, count in pairs]
        if not sum(counts):
            return Spread()
        p50, p95, p99 = percentiles([value for value, _ in pairs], (50, 95, 99), counts=counts)
        return Spread(count=sum(counts), p50=p50 / 1e6, p95=p95 / 1e6, p99=p99 / 1e6)


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """In the window.

    ``ttft``: from arrival to first token, of the requests that got it. ``itl``: one value for each token of a decode
    row, the time from the end of the turn before to the end of its own. So it tells what a step and the host cost the
    answers that went on; the gaps of requests that sat out turns, were preempted or paused are in ``explain``.
    ``step``: time of a turn that computed.
    """

    steps: int
    output_tokens: int
    prompt_tokens: int
    """Computed, so without those found in the prefix cache."""
    output_tokens_per_second: float
    prompt_tokens_per_second: float
    rows_per_step: float
    """Tokens of decode rows, drafts included, on average over the turns that computed."""
    ttft: Spread
    itl: Spread
    step: Spread
    drafts: int = 0
    """Tokens guessed ahead, and those of them that became tokens."""
    accepted_drafts: int = 0


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """``running``, ``waiting`` and ``away`` (paused, preempted) are now; tokens and ``ended`` are of the window.

    ``ttft_p50``: the median from arrival to first token, of the window; None where there was none, and for several
    tenants together. ``oldest_seconds``: for how long the first of those that wait has waited.
    """

    tenant: str
    weight: float = 1.0
    running: int = 0
    waiting: int = 0
    away: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    ended: int = 0
    refused: int = 0
    ttft_p50: float | None = None
    oldest_seconds: float | None = None

    @staticmethod
    def sum_of(tenants: "Sequence[Tenant]", name: str | None = None) -> "Tenant":
        counts = {field: sum(getattr(tenant, field) for tenant in tenants) for field in Tenant.__struct_fields__[2:-2]}
        oldest = [tenant.oldest_seconds for tenant in tenants if tenant.oldest_seconds is not None]
        return Tenant(tenant=name or f"{len(tenants)} others", oldest_seconds=max(oldest, default=None), **counts)


class Control(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: str
    set_by: str
    who: str
    seconds: float
    """Since it has been in force."""
    why: str = ""
    expires_in_seconds: float | None = None


class LiveView(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    model: str
    version: str
    lineage: str
    """The digest of what makes the answers."""
    recording: bool
    """Whether an engine is writing to the run."""
    turn: int
    age_seconds: float
    """Since the newest turn ended; an engine without work takes no turns."""
    window_seconds: float
    exact: bool
    """False when turns were lost, and with them what happened in them."""
    running: int
    slots: list[Slot]
    queue: Queue
    paused: int
    away: list[Away]
    memory: Memory
    pace: Pace
    tenants: list[Tenant]
    """Those with most tokens in the window, then with most requests."""
    other_tenants: Tenant | None
    """The sum over the others; its name says how many."""
    ended: dict[str, int]
    """In the window, by reason."""
    refused: dict[str, int]
    controls: list[Control]
    order: str
    """The scheduling policy."""
    epoch: int = 0
    """How many times the controls have changed."""
