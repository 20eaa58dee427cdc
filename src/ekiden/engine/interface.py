"""What the API, benches and tests may ask of a running engine.

Two things implement it: :class:`ekiden.engine.async_engine.AsyncEngine` (the engine on a thread of this process) and
:class:`ekiden.engine.process.EngineClient` (the engine in its own process, with a supervisor).
"""

from collections.abc import AsyncIterator
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

import msgspec

from ekiden.state.controls import ControlChange, ControlState
from ekiden.state.lineage import Lineage
from ekiden.state.request import RefusedCall, Request, RequestUpdate


class Health(StrEnum):
    """``STALLED``: there is work and no tokens have moved for too long. ``DEAD``: no engine, a restart is due."""

    STARTING = "starting"
    OK = "ok"
    STALLED = "stalled"
    DEAD = "dead"
    STOPPED = "stopped"


STEP_TOKEN_BOUNDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


LATENCY_BOUNDS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0,
)  # fmt: skip
TOKEN_TIME_BOUNDS: Final = (
    0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
LATENCIES: Final = {
    **dict.fromkeys(
        (
            "time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time",
            "request_decode_time",
        ),
        LATENCY_BOUNDS,
    ),
    "request_time_per_output_token": TOKEN_TIME_BOUNDS,
}  # fmt: skip
"""The distributions of :attr:`EngineStats.latencies`, in order, and the bounds by which each is counted."""
OTHER_TENANTS: Final = "(others)"
"""Stands for all tenants that the tenants file does not name."""


class Distribution(msgspec.Struct, frozen=True, array_like=True):
    """A histogram of seconds.

    ``counts[i]`` values were greater than bound ``i - 1`` and at most bound ``i``; the last count is of the values
    above all bounds. ``total`` is the sum of all values.
    """

    counts: tuple[int, ...]
    total: float


class TenantTotals(msgspec.Struct, frozen=True, array_like=True):
    """What the ended requests of one tenant used. ``prompt_tokens`` includes those found in the prefix cache."""

    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0


class EngineCounters(msgspec.Struct, kw_only=True):
    """What an engine adds up step by step. Totals only grow while one engine lives."""

    steps_total: int = 0
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    preemptions_total: int = 0
    step_tokens_total: int = 0
    last_step_tokens: int = 0
    model_seconds_total: float = 0.0
    sampling_seconds_total: float = 0.0
    host_seconds_total: float = 0.0
    steps_run_again_total: int = 0
    new_sizes_total: int = 0
    turns_unrecorded_total: int = 0
    spec_decode_num_drafts_total: int = 0
    """Rows with drafts,"""
    spec_decode_num_draft_tokens_total: int = 0
    """the drafts in them,"""
    spec_decode_num_accepted_tokens_total: int = 0
    """and those that became tokens."""


class EngineStats(EngineCounters, frozen=True, kw_only=True):  # type: ignore[misc]  # msgspec freezes a subclass
    """A frozen snapshot for ``/metrics``, ``/load`` and ``/health``."""

    num_running: int = 0
    num_waiting: int = 0
    num_paused: int = 0
    num_preempted: int = 0
    waiting_by_reason: dict[str, int] = {}
    waiting_tokens: int = 0
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0
    prefix_cache_queries_total: int = 0
    prefix_cache_hits_total: int = 0
    finished_total: dict[str, int] = {}
    refused_total: dict[str, int] = {}
    """Refusals of intake, by reason."""
    spec_decode_no_drafts_total: dict[str, int] = {}
    """Decode rows that could have had drafts and got none, by reason."""
    refused_by_door_total: dict[str, int] = {}
    """Refusals of the HTTP layer, by reason: those reported to :meth:`Engine.note_refusal`."""
    steps_by_tokens: tuple[int, ...] = ()
    """How many steps computed how many tokens: counted as in :class:`Distribution`, by :data:`STEP_TOKEN_BOUNDS`."""
    latencies: tuple[Distribution, ...] = ()
    """How long the requests that have ended took: one distribution for each of :data:`LATENCIES`."""
    engine_restarts_total: int = 0
    """The following are counted by what supervises the engine: engines that took the place of one that had ended,"""
    requests_carried_over_total: int = 0
    """requests that a new engine went on with, once for each engine,"""
    requests_ending_engines_total: int = 0
    """and those that were refused because engines ended at them."""
    tenants: dict[str, TenantTotals] = {}
    """One entry for each configured tenant, and one for all others; empty when no tenant is configured."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What the API and the command line tell about the model that the engine runs."""

    model_id: str
    max_model_len: int
    vocab_size: int
    block_size: int
    num_blocks: int
    hidden_size: int | None = None
    """Floats in a hidden state; None if the model gives none, and so no embeddings."""
    created: int
    """Unix time at which the model was loaded."""
    fingerprint: str
    """``system_fingerprint`` of every response."""
    lineage: Lineage = Lineage()
    """What made the run; ``fingerprint`` ends with the first characters of its digest."""
    details: dict[str, str] = {}


class EngineDied(RuntimeError):
    """The engine has ended and none goes on with the request; sending it again is safe."""


class EndsEngine(EngineDied):
    """The engine has ended at this request again and again, so no engine takes it any more."""


class UpdateIterator(Protocol):
    """The updates of one request; the last one is terminal (refusals included).

    ``aclose`` before the end aborts the request, and may be called at any time, also before the first ``__anext__``.
    Iterating raises :class:`EngineDied`.
    """

    def __aiter__(self) -> AsyncIterator[RequestUpdate]: ...

    async def __anext__(self) -> RequestUpdate: ...

    async def aclose(self) -> None: ...


class Engine(Protocol):
    """An engine that answers many requests at once. All methods run on the caller's event loop."""

    @property
    def card(self) -> ModelCard: ...

    @property
    def health(self) -> Health: ...

    @property
    def ledger_path(self) -> Path | None:
        """The ledger file of the newest run; None when runs are not recorded."""

    def stats(self) -> EngineStats:
        """The latest snapshot; never waits for the engine."""

    def generate(self, request: Request) -> UpdateIterator:
        """Submit the request now and stream what comes of it. Raises :class:`EngineDied` when there is no engine."""

    def note_refusal(self, refused: RefusedCall) -> bool:
        """Have a refusal of the HTTP layer recorded and counted at the next step boundary; returns at once.

        False when nothing will come of it, because there is no engine or very many commands wait for it already.
        """

    async def abort(self, request_id: str, why: str | None = None) -> None:
        """End a request at the next step boundary; its stream gets a terminal update. Unknown ids are ignored.

        ``why``: who asked for it and why, for the ledger and the client; None where its client went away.
        """

    async def pause(self, request_id: str, by: str | None = None) -> None:
        """Take a request out of the running at the next step boundary, keeping what it has. ``by``: who asked."""

    async def resume(self, request_id: str, by: str | None = None) -> None:
        """Let a paused request go on."""

    def restart(self, why: str) -> None:
        """End the engine now. Where a supervisor stands behind it another one goes on with its requests, and the ledger
        has ``why``; elsewhere nothing happens."""

    def controls(self) -> ControlState:
        """The controls in force, as the engine reported them last; never waits for the engine."""

    async def set_controls(self, change: ControlChange) -> ControlState:
        """Change the controls at the next step boundary; what runs and waits goes on.

        A change outlives a restart of the engine until it expires; one that is asked for during a restart is made when
        the engine is ready again. Raises :class:`ekiden.state.controls.InvalidControls`, and :class:`EngineDied` when
        the engine ends before it has answered.
        """
