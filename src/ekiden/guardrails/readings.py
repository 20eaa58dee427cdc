"""What is measured to notice harm, by name: each signal with its formula, its unit and the direction of harm.

The values come from ledger records (:mod:`ekiden.evidence.harm`). Rules (:mod:`ekiden.guardrails.rules`) name signals;
the ladder (:mod:`ekiden.guardrails.ladder`) compares readings with thresholds.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec


class Direction(StrEnum):
    """Where harm lies."""

    HIGH = "high"
    LOW = "low"


class Objectives(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What users are to get. A request is good when its answer is whole, its first token came within ``ttft_seconds``
    and its time per output token is at most ``tpot_seconds``; ``attainment`` is the share of all offered requests that
    is to be good, over 0 and under 1."""

    ttft_seconds: float = 5.0
    tpot_seconds: float = 0.25
    attainment: float = 0.95


class Windows(msgspec.Struct, frozen=True, kw_only=True):
    """How far back signals look, in seconds: most of them ``near``; attainment and the fast burn rate ``short``; the
    slow burn rate ``long``."""

    near: float = 10.0
    short: float = 30.0
    long: float = 300.0


DEFAULT_OBJECTIVES: Final = Objectives()
DEFAULT_WINDOWS: Final = Windows()


class Signal(NamedTuple):
    """``numbers`` are the keys of :attr:`Reading.numbers`."""

    unit: str
    direction: Direction
    formula: str
    numbers: tuple[str, ...] = ()


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One signal at one moment.

    ``value``: None where there is nothing to measure, such as a latency while nobody is served; nobody is harmed then.
    ``evidence`` says in words what was seen. ``subject`` is the tenant that it is about, if it is about one.
    ``numbers`` are what an action may need (:attr:`Signal.numbers`).
    """

    value: float | None
    evidence: str = ""
    subject: str | None = None
    numbers: dict[str, float] = {}


Readings = Mapping[str, Reading]
"""By the names of :data:`SIGNALS`. A name that is missing could not be read at all."""

_HIGH = Direction.HIGH
_JOINING = ("joined_per_second", "waiting")

SIGNALS: Final[dict[str, Signal]] = {
    "queue_age": Signal("s", _HIGH, "now - arrival of the oldest waiting request; 0 when none waits", _JOINING),
    "queue_growth": Signal(
        "requests/s", _HIGH, "(waiting now - waiting at the start of the window) / seconds between", _JOINING
    ),
    "predicted_ttft_p90": Signal(
        "s",
        _HIGH,
        "p90 over the waiting requests of: age + place in line / joined per second while others waited + median time "
        "from admission to first token",
        _JOINING,
    ),
    "ttft_p50": Signal("s", _HIGH, "median of first token - arrival, of first tokens in the window"),
    "ttft_p99": Signal("s", _HIGH, "p99 of first token - arrival, of first tokens in the window"),
    "predicted_itl_p99": Signal(
        "s", _HIGH, "p99 over the rows of one token in the window of the predicted p50 of their step's time"
    ),
    "itl_p50": Signal("s", _HIGH, "median gap between the ends of neighbouring turns, weighed by rows of one token"),
    "itl_p99": Signal("s", _HIGH, "p99 gap between the ends of neighbouring turns, weighed by rows of one token"),
    "largest_gap": Signal(
        "s", _HIGH, "largest gap between turns that had streams, with the one that goes on, in the window"
    ),
    "kv_used": Signal("share", _HIGH, "blocks in use / all blocks after the newest turn"),
    "kv_unaccounted": Signal(
        "share",
        _HIGH,
        "(blocks in use - blocks that all live requests could hold by now) / all blocks; 0 when below",
    ),
    "swap_rate": Signal("pools/s", _HIGH, "blocks copied to or from the swap space / all blocks / window"),
    "fairness_gap": Signal(
        "share of bound",
        _HIGH,
        "largest difference in service between two tenants over any time of the window in which both wait / (2 * "
        "max(w_p * longest prompt, w_q * most tokens that a batch can hold))",
    ),
    "tenant_backlog": Signal(
        "share of ttft_seconds",
        _HIGH,
        "waiting requests of the tenant with most of them / joined per second / ttft_seconds, if it has 60% of the "
        "line or more and another tenant sent in the window",
        ("fair_tokens_per_second", *_JOINING),
    ),
    "worst_tenant_attainment": Signal(
        "share", Direction.LOW, "lowest share of good requests among tenants with 5 settled requests in the window"
    ),
    "error_rate": Signal("share", _HIGH, "answers that ended in an error / answers that ended, in the window"),
    "refusal_rate": Signal("share", _HIGH, "refused for want of capacity / arrived, in the window"),
    "step_stall": Signal("s", _HIGH, "now - end of the newest turn, while it left requests running or waiting"),
    "step_time_drift": Signal("ratio", _HIGH, "median of measured / predicted time over the steps of the window"),
    "step_slowdown": Signal(
        "ratio",
        _HIGH,
        "median of measured / fitted time over the steps of the window; fitted to up to 256 steps from all of the run "
        "before it",
    ),
    "burn_rate_short": Signal("ratio", _HIGH, "share of bad among settled requests / (1 - attainment), short window"),
    "burn_rate_long": Signal("ratio", _HIGH, "share of bad among settled requests / (1 - attainment), long window"),
    "burn_rate": Signal("ratio", _HIGH, "the smaller of burn_rate_short and burn_rate_long"),
}
"""A request is settled when it has ended, was refused for want of capacity, or its first token is overdue."""
