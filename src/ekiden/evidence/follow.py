"""Sends a span for each request while the server runs, by following the ledger that its engine writes.

Rules:
- A thread of the API's process reads what has ended, about once a second. The engine knows nothing of it, so a slow or
  absent collector cannot hold up a step.
- The ledger is the queue: nothing is kept in memory but one batch, and what could not be sent is read again later.
  After ``MAX_TRIES`` failures in a row a batch is left out, so that one bad batch cannot stop all others.
- Failures are logged once in ``QUIET_SECONDS``, and stop nothing.
- At the end, what is left is sent for a few seconds; ``ekiden export --otel`` sends the rest.
"""

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ekiden.evidence.reader import LedgerReader, LedgerReadError
from ekiden.evidence.spans import SpanMaker, delivered

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 60.0
MAX_TRIES: Final = 20
"""A quarter of an hour, with the pauses between them."""
QUIET_SECONDS: Final = 60.0


class Follower:
    """``run`` says where the newest run is recorded; it changes when the engine is restarted.

    ``exporter`` is an OpenTelemetry span exporter, used by this thread alone and shut down at the end.
    """

    def __init__(
        self,
        run: Callable[[], Path | None],
        exporter: Any,
        *,
        poll_seconds: float = POLL_SECONDS,
        max_tries: int = MAX_TRIES,
    ) -> None:
        self._run, self._exporter = run, exporter
        self._poll_seconds, self._max_tries = poll_seconds, max_tries
        self._runs: deque[SpanMaker] = deque()
        self._stopping = threading.Event()
        self._give_up_at = float("inf")
        self._tries = 0
        self._told_at = -float("inf")
        self._reason = _Reason()
        self.sent = 0
        """Spans that the exporter took."""
        self.left_out = 0
        """Requests whose spans it did not take."""
        self._thread = threading.Thread(target=self._follow, name="ekiden-spans", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Send what is left, for at most so long. The engine must have closed its ledger by now. Harmless when it was
        never started."""
        if self._thread.ident is None:
            return
        self._give_up_at = time.monotonic() + seconds
        self._stopping.set()
        self._thread.join(seconds)
        self._exporter.shutdown()  # also ends its waiting between tries
        self._thread.join(1.0)

    def _follow(self) -> None:
        exporter = logging.getLogger("opentelemetry.exporter")
        exporter.addHandler(self._reason)
        exporter.propagate = False
        try:
            while not self._stopping.wait(self._pause()):
                self._look()
            self._look()
        finally:
            exporter.removeHandler(self._reason)
            exporter.propagate = True
            for run in self._runs:
                if run.batch() is not None:
                    name = run.reader.path.stem
                    logger.warning("some spans of run %s were not sent; `ekiden export %s --otel` does", name, name)
                run.reader.close()

    def _pause(self) -> float:
        """Until the next look; longer and longer while the collector does not answer."""
        return min(self._poll_seconds * 2.0**self._tries, max(MAX_PAUSE_SECONDS, self._poll_seconds))

    def _look(self) -> None:
        try:
            path = self._run()
            if path is not None and (not self._runs or path != self._runs[-1].reader.path):
                self._runs.append(SpanMaker(LedgerReader(path)))
            self._send_what_is_there()
        except (sqlite3.Error, LedgerReadError) as error:
            self._complain("the ledger cannot be read, so spans wait", str(error))

    def _complain(self, what: str, reason: str) -> None:
        if time.monotonic() - self._told_at >= QUIET_SECONDS:
            self._told_at = time.monotonic()
            logger.warning("%s: %s", what, reason)

    def _send_what_is_there(self) -> None:
        while self._runs and time.monotonic() < self._give_up_at:
            run = self._runs[0]
            spans = run.batch()
            if spans is not None:
                if not self._send(run, spans):
                    return
            elif len(self._runs) > 1:
                self._runs.popleft().reader.close()  # its engine is gone, and all it wrote is sent
            else:
                return

    def _send(self, run: SpanMaker, spans: list[Any]) -> bool:
        taken = delivered(self._exporter, spans)
        if taken:
            self.sent += len(spans)
        else:
            self._tries += 1
            reason = self._reason.last or "the exporter gives no reason"
            self._complain("spans cannot be sent and are tried again", reason)
            if self._tries < self._max_tries:
                return False
            logger.error("%d spans are left out after %d tries", len(spans), self._tries)
            self.left_out += len(spans)
        self._tries = 0
        run.go_on()
        return taken


class _Reason(logging.Handler):
    """Keeps what the exporter logs for every try, so that it is logged only once in a while."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "max retries" not in text:  # the one that names no reason
            self.last = text[:300]
