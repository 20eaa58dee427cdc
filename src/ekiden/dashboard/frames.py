"""What browsers that watch are sent: frames, each made and encoded once, whoever watches.

One thread reads for all of them, and only while there is somebody. It looks twice a second; where looks cost more of
the machine than :data:`MOST_SHARE`, less often, but often enough that nobody takes a frame for an old one. A browser is
sent the newest frame whenever it can take one: one that is slow skips frames, and gets with the next one what has
changed since its last; nothing is kept for it. The clock of frames is the engine's, which does not jump.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ekiden.dashboard.run_list import open_named
from ekiden.dashboard.shapes import Bar, Frame, NoFrame, Point, Signal, Told
from ekiden.dashboard.watched import News, Watched
from ekiden.engine.interface import Engine, Health
from ekiden.evidence.harm import readings
from ekiden.evidence.reader import LedgerReadError
from ekiden.guard.people import People
from ekiden.guard.runtime import Guard, cores
from ekiden.guardrails.readings import DEFAULT_OBJECTIVES, SIGNALS, Reading

logger = logging.getLogger(__name__)

LEAST_PAUSE: Final = 0.5
MOST_PAUSE: Final = 2.5
"""Under the three seconds after which the page calls a frame old."""
MOST_SHARE: Final = 0.005
"""Of the machine's processors, and never more than of four: it shares an interpreter with the HTTP side."""
SIGNALS_SECONDS: Final = 4.0
_GUARD_PATIENCE: Final = 0.05
_QUIET_SECONDS: Final = 60.0
_HEALTH: Final = {
    Health.STARTING: "starting",
    Health.STALLED: "stalled",
    Health.DEAD: "dead",
    Health.STOPPED: "dead",
}
_WORDS: Final = {
    "ok": "",
    "starting": "The engine is starting. What is shown is of the engine before, as far as there was one.",
    "stalled": "The engine has work and no token has moved for a while.",
    "dead": "The engine has ended. What is shown is where it stood; another one is started.",
    "gap": "Some turns of the last moments were lost, and with them what happened in them.",
    "no_ledger": "This server records no decisions (--no-ledger), so there is nothing to show of them.",
}

_encode = msgspec.json.Encoder().encode


def on_a_thread(run: Callable[[], None]) -> None:
    """A thread that the end of the process does not wait for."""
    threading.Thread(target=run, name="ekiden-page", daemon=True).start()


class Event(NamedTuple):
    """One frame as it is sent. ``look`` numbers it; ``run_id`` is empty where there is no run."""

    look: int
    run_id: str
    turn: int
    data: bytes


class Viewer:
    """One browser. ``wake`` is called from another thread whenever there is a new frame."""

    def __init__(self, wake: Callable[[], None], run_id: str, turn: int | None) -> None:
        self.wake = wake
        self.run_id = run_id
        self.turn = turn
        """What it has seen before it came; None for nothing."""
        self.look = -1
        """The newest frame that it was given; -1 for none."""


class Frames:
    """The frames of the run that an engine writes.

    ``clock`` is the engine's clock; ``date`` gives Unix time; ``cpu`` the seconds that the thread has computed.
    ``spawn`` runs something beside.
    """

    def __init__(
        self,
        engine: Engine,
        guard: Guard | None,
        *,
        recording: bool,
        clock: Callable[[], float] = time.monotonic,
        date: Callable[[], float] = time.time,
        cpu: Callable[[], float] = time.thread_time,
        spawn: Callable[[Callable[[], None]], None] = on_a_thread,
    ) -> None:
        self._engine, self._guard, self._recording = engine, guard, recording
        self._people = None if guard is None else People(guard)
        self._clock, self._date, self._cpu, self._spawn = clock, date, cpu, spawn
        self._looking = threading.Lock()
        """Held by the thread that reads the ledger; never waited for by who must not wait."""
        self._lock = threading.Lock()
        """Held for moments, by whoever reads or changes what follows."""
        self._viewers: set[Viewer] = set()
        self._over = threading.Event()
        self._watched: Watched | None = None
        self._frame: Frame | NoFrame | None = None
        self._newest: Event | None = None
        self.looks_total = 0
        self.seconds_total = 0.0
        self.pause_seconds = LEAST_PAUSE
        self._readings: Mapping[str, Reading] = {}
        self._read_at = -float("inf")
        self._guard_view: dict[str, Any] | None = None
        self._complained = -float("inf")

    # --- whoever watches

    def join(self, wake: Callable[[], None], last_event_id: str | None = None) -> Viewer:
        """Begin to watch. ``last_event_id``: the id of the last event that this browser got, if any."""
        viewer = Viewer(wake, *_seen(last_event_id))
        with self._lock:
            self._viewers.add(viewer)
            if len(self._viewers) == 1:
                self._newest = None  # it is of who watched before
                self._over = threading.Event()
                self._spawn(partial(self._run, self._over))
        return viewer

    def leave(self, viewer: Viewer) -> None:
        with self._lock:
            self._viewers.discard(viewer)
            if not self._viewers:
                self._over.set()

    @property
    def watched_by(self) -> int:
        """How many browsers watch."""
        return len(self._viewers)

    def next_for(self, viewer: Viewer) -> Event | None:
        """The newest frame as this browser needs it; None when it has that."""
        with self._lock:
            newest, frame = self._newest, self._frame
            if newest is None or frame is None or viewer.look == newest.look:
                return None
            if isinstance(frame, Frame) and (viewer.run_id != newest.run_id or viewer.look != newest.look - 1):
                newest = newest._replace(data=self._lacking(viewer, frame))
            viewer.run_id, viewer.turn, viewer.look = newest.run_id, newest.turn, newest.look
            return newest

    def _lacking(self, viewer: Viewer, frame: Frame) -> bytes:
        """The frame with all that this browser lacks."""
        watched = self._watched
        assert watched is not None
        found: tuple[list[Bar], list[Point]] | None = None
        if viewer.run_id == frame.run_id and viewer.look >= 0:
            found = watched.since(viewer.look)
        elif viewer.run_id == frame.run_id and viewer.turn is not None:
            found = watched.since_turn(viewer.turn)
        bars, series = watched.since(-1) if found is None else found
        return encoded(msgspec.structs.replace(frame, bars=bars, series=series, reset=found is None))

    # --- the thread

    def _run(self, over: threading.Event) -> None:
        with self._looking:
            if not over.is_set():
                self.look()  # it reads the last minutes, and is no measure of the others
                over.wait(LEAST_PAUSE)
            while not over.is_set():
                self.look()
                over.wait(self.pause_seconds)
            if self._watched is not None:
                self._watched.close()

    def look(self) -> None:
        """Make the next frame, and wake who watches. Never raises: a frame says what is the matter."""
        started = self._cpu()
        try:
            frame = self._made()
        except Exception as error:  # noqa: BLE001 - a fault of the page must not end its thread
            self._complain(error)
            frame = self._without("unreadable", f"The page could not look: {type(error).__name__}: {error}")
        run_id, turn = (frame.run_id, frame.turn) if isinstance(frame, Frame) else ("", 0)
        event = Event(self.looks_total + 1, run_id, turn, encoded(frame))
        with self._lock:
            self._frame, self._newest = frame, event
            viewers = list(self._viewers)
        took = self._cpu() - started
        self.looks_total += 1
        self.seconds_total += took
        self.pause_seconds = min(MOST_PAUSE, max(LEAST_PAUSE, took / (MOST_SHARE * min(cores(), 4))))
        for viewer in viewers:
            viewer.wake()

    def _complain(self, error: Exception) -> None:
        if time.monotonic() - self._complained >= _QUIET_SECONDS:
            self._complained = time.monotonic()
            logger.error("the page could not look: %s: %s", type(error).__name__, error)

    # --- one frame

    def _made(self) -> Frame | NoFrame:
        if not self._recording:
            return self._without("no_ledger", _WORDS["no_ledger"])
        state = _HEALTH.get(self._engine.health, "ok")
        path = self._engine.ledger_path
        if path is None:
            return self._without("starting" if state == "ok" else state, _WORDS["starting"])
        try:
            watched = self._watching(path)
            news = watched.read(self._clock())
        except (LedgerReadError, sqlite3.Error) as error:
            return self._without("unreadable", f"The ledger cannot be read: {error}")
        view, number = news.view, self.looks_total + 1
        with self._lock:
            watched.keep(number, news)
            bars, series = watched.since(number - 1)
        signals = self._signals(watched, news.at)
        if state == "ok" and not view.recording:
            state = "starting"
        elif state == "ok" and not view.exact:
            state = "gap"
        return self._frame_of(watched, news, state, signals, bars=bars, series=series)

    def _frame_of(self, watched: Watched, news: News, state: str, signals: list[Signal], **drawn: Any) -> Frame:
        view = {name: getattr(news.view, name) for name in news.view.__struct_fields__}
        return Frame(
            **view, **drawn, state=state, as_of=self._date(), at=news.at / 1e6, started=watched.header.started,
            why=_WORDS[state], signals=signals, guard=self._guarded(), engine=self._told(),
        )  # fmt: skip

    def of_ended(self, folder: Path, run: str) -> bytes:
        """The last frame of a run, as an event: how it stood at the end of its newest turn, with its last minutes.

        Raises :class:`LedgerReadError` and sqlite3.Error.
        """
        with open_named(folder, run) as reader:
            path = reader.path
        watched = Watched(path)
        try:
            news = watched.read(None)
            watched.keep(0, news)
            bars, series = watched.since(-1)
            signals = as_signals(readings(watched.reader))
            return encoded(self._frame_of(watched, news, "ok", signals, bars=bars, series=series, reset=True))
        finally:
            watched.close()

    def _watching(self, path: Path) -> Watched:
        if self._watched is None or self._watched.path != path:
            if self._watched is not None:
                self._watched.close()
            watched = Watched(path)
            with self._lock:
                self._watched, self._newest = watched, None
        return self._watched

    def _without(self, state: str, why: str) -> NoFrame:
        return NoFrame(state=state, as_of=self._date(), why=why, engine=self._told(), guard=self._guarded())

    def _told(self) -> Told:
        stats = self._engine.stats()
        return Told(
            health=self._engine.health.value,
            running=stats.num_running,
            waiting=stats.num_waiting,
            paused=stats.num_paused,
            preempted=stats.num_preempted,
            kv_blocks_used=stats.kv_blocks_used,
            kv_blocks_total=stats.kv_blocks_total,
            generation_tokens_total=stats.generation_tokens_total,
            restarts=stats.engine_restarts_total,
        )

    def _signals(self, watched: Watched, at: int) -> list[Signal]:
        """What the guard has seen; without one that looks, what it would see."""
        if self._guard is not None and self._guard.mode != "off":
            found = self._guard.readings
        else:
            if self._clock() - self._read_at >= SIGNALS_SECONDS:
                self._read_at = self._clock()
                objectives = DEFAULT_OBJECTIVES if self._guard is None else self._guard.rules.objectives
                self._readings = readings(watched.reader, at=at / 1e6, objectives=objectives)
            found = self._readings
        return as_signals(found)

    def _guarded(self) -> dict[str, Any] | None:
        if self._people is not None:
            self._guard_view = self._people.view_within(_GUARD_PATIENCE) or self._guard_view
        return self._guard_view


def as_signals(found: Mapping[str, Reading]) -> list[Signal]:
    """Readings with what is known of their signals."""
    return [
        Signal(
            name=name, value=reading.value, unit=SIGNALS[name].unit, direction=SIGNALS[name].direction.value,
            formula=SIGNALS[name].formula, evidence=reading.evidence, subject=reading.subject,
        )
        for name, reading in found.items()
    ]  # fmt: skip


def encoded(frame: Frame | NoFrame) -> bytes:
    """A frame as an event of a stream. A frame without a run has no id: a browser keeps the one that it has."""
    name = f"id: {frame.run_id}:{frame.turn}\n".encode() if isinstance(frame, Frame) else b""
    return b"event: frame\n" + name + b"data: " + _encode(frame) + b"\n\n"


def _seen(event_id: str | None) -> tuple[str, int | None]:
    """The run and the turn of an event's id; none for one that is no id of ours."""
    run_id, _, turn = (event_id or "").rpartition(":")
    return (run_id, int(turn)) if run_id and turn.isascii() and turn.isdigit() and len(turn) < 16 else ("", None)
