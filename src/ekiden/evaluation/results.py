"""What one run of one arm gave: the value that loads produce, that is stored, and that all figures are made from."""

import msgspec

from ekiden.measure.figures import RequestRecord


class Answered(msgspec.Struct, kw_only=True):
    """One offered request and what became of it. Times of ``record`` are seconds since the start of the run.

    The fields from ``tenant`` to ``pair`` repeat the offer's, so that a stored run can be read without its workload.
    """

    id: str
    record: RequestRecord
    """``intended`` is the offer's time; ``failure`` is None for a whole answer, else a short kind."""
    token_ids: tuple[int, ...] | None = None
    """The answer's tokens; None where the server does not tell them."""
    text_digest: str | None = None
    """SHA-256 of the answer's text, where a server gives text only."""
    slowest_alone: float | None = None
    """End-to-end seconds of the same request on an idle server, where it was measured or predicted: for slowdowns."""
    tenant: str = "default"
    language: str = ""
    pair: str = ""
    priority: int = 0
    prompt_tokens: int = 0
    """Tokens offered, whether or not the server came to read them."""
    output_tokens: int = 0
    """Length that the answer should have had."""


class StepTotals(msgspec.Struct, kw_only=True):
    """Sums over the steps of a run, where the engine was in reach.

    Utilisation is ``useful_slot_steps / slot_steps``, the used share of the budget ``computed_tokens / budget_tokens``,
    the share of KV blocks ``used_block_steps / block_steps``, time outside the model ``1 - model_seconds / seconds``.
    """

    steps: int
    seconds: float
    model_seconds: float
    useful_slot_steps: int
    slot_steps: int
    computed_tokens: int
    budget_tokens: int
    used_block_steps: int
    block_steps: int
    preemptions: int
    kv_tokens: int | None = None
    """Tokens that the KV pool holds, for the bound on unfairness."""


class ArmRun(msgspec.Struct, kw_only=True):
    """One arm serving one block of one workload, once."""

    arm: str
    workload: str
    block: int
    position: int
    """Place in the order of runs within the block, from 0."""
    started: float
    """Seconds since the epoch."""
    seconds: float
    """From the start of the arrivals to the end of the last answer."""
    arrival_seconds: float
    """How long requests arrived: what goodput is divided by."""
    workload_digest: str
    results: list[Answered]
    steps: StepTotals | None = None
    cpu_seconds: float | None = None
    """Processor time of the engine's process."""
    joules: float | None = None
    """From a counter of the machine; None where there is none."""
    run_id: str | None = None
    """The ledger's run, for ``ekiden explain``."""
    loop: str = "open"
    """``open``: requests came at their own times. ``closed``: as many were kept in flight as was asked for; each counts
    from the moment it was sent, so that its latencies cannot be compared with those of an open loop."""
    void: str | None = None
    """Why this run counts for nothing, such as a load generator that came too late."""
