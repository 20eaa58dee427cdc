"""What the page's data are: the structs that `/dashboard/data/` answers with, and that the browser's modules read.

Times without another word are seconds since a run began. Durations are seconds. A field that is None is not known, or
not yet; it is never a zero in disguise.
"""

from typing import Any

import msgspec

from ekiden.evidence.explain import Explanation
from ekiden.evidence.live_view import LiveView

PHASES = ("prefill", "decode", "recompute", "preempted", "paused", "padding")
"""What a request in a slot may be doing."""

Segment = tuple[str, float, float | None]
"""One of :data:`PHASES`, when it began, and when it ended: None while it goes on."""


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One stay of a request in a slot, or a pause, for which it gives its slot back.

    ``id`` is unique in the run and stays: a later bar of the same id replaces the earlier one. ``slot`` is None for a
    pause, and where the turn that gave the slot is no longer kept. ``end`` is None while the stay goes on. ``state``:
    how it stands (:data:`PHASES`), or how the request ended: ``stop``, ``length``, ``abort``, ``deadline``, ``error``;
    ``left`` where the stay ended and the request goes on.
    """

    id: str
    request_id: str
    tenant: str
    slot: int | None
    segments: list[Segment]
    start: float
    end: float | None
    state: str


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What the turns that ended in ``(t - seconds, t]`` show. A quantile is None where nothing was measured.

    ``tenants``: prompt tokens computed and output tokens a second, by tenant: the share that each got.
    """

    t: float
    seconds: float
    turns: int
    tokens_per_second: float
    prompt_tokens_per_second: float
    running: int
    waiting: int
    kv_used: float
    """Share of the blocks in use after the last of the turns."""
    ttft_p50: float | None = None
    ttft_p95: float | None = None
    itl_p50: float | None = None
    itl_p99: float | None = None
    step_seconds: float | None = None
    """Median time of the turns that computed."""
    step_predicted_p50: float | None = None
    step_predicted_p90: float | None = None
    tenants: dict[str, float] = {}


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """One of the signals of harm (:data:`ekiden.guardrails.readings.SIGNALS`), measured when the frame was made."""

    name: str
    value: float | None
    unit: str
    direction: str
    formula: str
    evidence: str
    subject: str | None = None


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine last published of itself; there also where nothing is recorded."""

    health: str
    running: int
    waiting: int
    paused: int
    preempted: int
    kv_blocks_used: int
    kv_blocks_total: int
    generation_tokens_total: int
    restarts: int


class NoFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A frame without a view: there is no ledger, or none that can be read. ``why`` says so in a sentence."""

    state: str
    as_of: float
    why: str
    engine: Told
    guard: dict[str, Any] | None = None
    reset: bool = True


class Frame(LiveView, frozen=True, kw_only=True):
    """The live view of a run with what changed since an earlier frame.

    ``state``: ``ok``; ``starting``, ``stalled`` or ``dead`` as the engine is; ``gap``: turns were lost lately.
    ``as_of``: Unix time at which it was made. ``at``: the same in seconds of the run. ``reset``: forget earlier bars
    and points, these are all. ``bars`` and ``series``: those that are new or changed since the event whose id the
    browser named, or since the event before.
    """

    state: str
    as_of: float
    at: float
    started: float
    """Unix time at which the run began."""
    why: str = ""
    reset: bool = False
    bars: list[Bar]
    series: list[Point]
    signals: list[Signal]
    guard: dict[str, Any] | None = None
    """What ``GET /admin/guard`` tells; None without a guard."""
    engine: Told


class PageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the page needs first."""

    version: str
    model: str
    has_keys: bool
    """Whether data are given for a key only."""
    may_act: bool
    """Whether this caller's key may act at ``/admin/``."""
    can_act: bool
    """Whether anybody's may: the server has a file of keys."""
    who: str | None
    """The name of the caller's key."""
    guard: str
    """off, watch or act."""
    ledger: bool
    languages: list[str]
    slots: int
    max_model_len: int
    phases: list[str]
    run_id: str | None
    """The run that is being written."""
    controls: dict[str, Any]
    """The controls in force, by name."""
    meanings: dict[str, str]
    """What the controls do, by name, in English."""
    batching: list[str]
    orders: list[str]
    objectives: dict[str, float]
    """``ttft_seconds``, ``tpot_seconds`` and ``attainment`` that the guard's rules, or the defaults, ask for."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded run. One that cannot be read has ``readable`` false and ``why``; the other fields are then None."""

    run_id: str
    readable: bool
    why: str = ""
    model: str | None = None
    version: str | None = None
    started: float | None = None
    seconds: float | None = None
    turns: int | None = None
    first_turn: int | None = None
    """Later than 1 where retention has deleted its beginning."""
    requests: int | None = None
    recording: bool = False
    lineage: str | None = None
    batching: str | None = None
    order: str | None = None
    slots: int | None = None


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Turns that were lost between two times."""

    start: float
    end: float
    turns: int


class Waited(msgspec.Struct, frozen=True, kw_only=True):
    """A request's wait in the queue: from its arrival to its first slot, or its end without one."""

    request_id: str
    tenant: str
    start: float
    end: float | None


class ControlSet(msgspec.Struct, frozen=True, kw_only=True):
    """A control's new value, who set it and why."""

    at: float
    name: str
    value: str
    old: str | None
    set_by: str
    who: str
    why: str
    expires: float | None


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What was set in a run, the oldest first. ``started``: Unix time at which the run began."""

    started: float
    controls: list[ControlSet]


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a run. ``whole``: whether all bars and waits that there were are in it; the newest are kept."""

    run_id: str
    started: float
    start: float
    end: float
    run_start: float
    """From here on the ledger has its turns."""
    run_end: float
    recording: bool
    slots: int
    bars: list[Bar]
    series: list[Point]
    queue: list[Waited]
    controls: list[ControlSet]
    guard: list[ControlSet]
    gaps: list[Gap]
    whole: bool


class RequestLine(msgspec.Struct, frozen=True, kw_only=True):
    """A request in a list. ``main_cause`` has the name and ``main_words`` the words of where most of its time went."""

    request_id: str
    tenant: str
    arrived: float
    queue_seconds: float | None
    ttft: float | None
    e2e: float | None
    prompt_tokens: int
    tokens: int
    cached: int
    end: str | None
    """The reason; None while it is in the engine."""
    refusal: str | None
    main_cause: str | None
    main_words: str | None
    main_seconds: float | None


class RequestLines(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    started: float
    by: str
    tenants: dict[str, int]
    """How many requests each tenant sent in the period."""
    requests: list[RequestLine]
    matching: int
    """How many there were, before the list was cut."""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """One question of :mod:`ekiden.evidence.why`, answered."""

    question: str
    words: str
    facts: dict[str, Any]


class Considered(msgspec.Struct, frozen=True, kw_only=True):
    """One decision about the request, with what was chosen and what was passed over."""

    turn: int
    at: float
    stage: str
    words: str
    chosen: list[str] = []
    passed_over: list[str] = []
    facts: dict[str, Any] = {}


class RequestStory(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of a call: everything that the ledger tells of it."""

    run_id: str
    started: float
    recording: bool
    line: RequestLine
    explanation: Explanation
    bars: list[Bar]
    waited: Waited
    neighbours: list[Bar]
    """Bars of others while it was in the engine."""
    slots: int
    decisions: list[Considered]
    answers: list[Answered]


class Levels(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of a distribution by name, such as ``p50``."""

    count: int
    quantiles: dict[str, float]


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a comparison."""

    run_id: str
    label: str
    model: str
    seconds: float
    requests: int
    refused: int
    output_tokens: int
    slots: int
    settings: dict[str, Any]
    distributions: dict[str, Levels]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs on one axis. ``differences``: b - a at each level, for each distribution that both have.

    ``pictures``: both as SVG elements of :mod:`ekiden.dashboard.slot_svg`, whose bars link to the request's address.
    Times are from each run's first arrival, or from ``start`` after it; ``whole``: whether all of both is drawn.
    """

    a: Compared
    b: Compared
    differences: dict[str, dict[str, float]]
    differing: dict[str, tuple[Any, Any]]
    """Settings of which the two differ."""
    formulas: dict[str, str]
    start: float
    end: float
    pictures: list[str]
    tenants: dict[str, str]
    """The colours of the bars by tenant, in both pictures; empty where one tenant has all, and each request its own."""
    whole: bool
