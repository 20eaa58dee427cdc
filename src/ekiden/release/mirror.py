"""The mirror: copies of production's requests are offered to another server, which nobody waits for.

It follows the ledger as the shadow does, and so costs production nothing on the path of a request: no copy is made, no
connection held in the server's process. It needs the prompts, which the ledger has only with ``--ledger-keep-prompts``;
that, and this process's own processor time, which is counted, is the whole price. Copies are sent a second or so after
their originals, at the pace at which those came, and at most ``most`` at a time: what finds no place is left out and
counted, so that a slow server cannot make it keep requests in memory.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpx
import msgspec

from ekiden.evidence.reader import LedgerReader, request_detail_of
from ekiden.evidence.recorded_requests import kept_request_of
from ekiden.measure.percentiles import percentiles
from ekiden.state.request import Request

_AT_ONCE: Final = 256
_SENT: Final = (
    "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids",
    "ignore_eos", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip
"""What of the sampling is sent along. Grammars and biases are left out, so such answers may be others."""


class MirrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """``seconds_p50`` and ``seconds_p99`` are of whole answers of the other server, sending included."""

    sent: int
    answered: int
    failed: int
    left_out: int
    """There was no room for them."""
    without_prompt: int
    """The ledger did not keep their prompts."""
    seconds_p50: float | None
    seconds_p99: float | None
    cpu_seconds: float
    cpu_share: float
    """Of one core, of this process, since it began."""


class Mirror:
    """``ledger`` opens the run that is being written; ``client`` reaches the other server at ``url`` (it ends in
    ``/v1``) under the model's name there. Only requests that come from now on are copied."""

    def __init__(
        self,
        ledger: Callable[[], LedgerReader],
        client: httpx.Client,
        url: str,
        model: str,
        *,
        most: int = 16,
        now: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self._ledger, self._client, self._url, self._model = ledger, client, url.rstrip("/"), model
        self._most, self._now, self._cpu = most, now, cpu
        self._began, self._cpu_began = now(), cpu()
        self._run, self._number = "", 0
        self._lock = threading.Lock()
        self._in_flight = 0
        self._counts = dict.fromkeys(("sent", "answered", "failed", "left_out", "without_prompt"), 0)
        self._seconds: list[float] = []
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="ekiden-mirror")

    def look(self) -> None:
        """Send copies of what came since the last look; returns at once."""
        with self._ledger() as reader:
            if reader.header.run_id != self._run:
                self._number = reader.requests_newest() if not self._run else 0
                self._run = reader.header.run_id
            rows = reader.requests_after(self._number, _AT_ONCE)
        for row in rows:
            self._number = row.request
            detail = request_detail_of(row)
            if row.refusal is not None or detail.reading is not None:
                continue
            request = kept_request_of(row, detail)
            if request is None:
                self._counts["without_prompt"] += 1
            elif self._has_room():
                self._pool.submit(self._send, request)

    def _has_room(self) -> bool:
        with self._lock:
            has_room = self._in_flight < self._most
            self._in_flight += has_room
            self._counts["sent" if has_room else "left_out"] += 1
        return has_room

    def _send(self, request: Request) -> None:
        body: dict[str, Any] = {"model": self._model, "prompt": list(request.prompt_token_ids)}
        body |= {
            name: value for name in _SENT if (value := getattr(request.sampling, name, None)) not in (None, ())
        }  # absent: the default
        began, ok = self._now(), False
        with contextlib.suppress(httpx.HTTPError):  # it is counted as failed
            ok = self._client.post(f"{self._url}/completions", json=body).status_code == 200
        with self._lock:
            self._in_flight -= 1
            self._counts["answered" if ok else "failed"] += 1
            if ok:
                self._seconds = [*self._seconds[-9_999:], self._now() - began]

    def close(self) -> None:
        """Wait for what is under way."""
        self._pool.shutdown()

    def report(self) -> MirrorReport:
        with self._lock:
            seconds = list(self._seconds)
            counts = dict(self._counts)
        points = percentiles(seconds, (50, 99)) if seconds else [None, None]
        used = self._cpu() - self._cpu_began
        return MirrorReport(
            **counts,
            seconds_p50=points[0],
            seconds_p99=points[1],
            cpu_seconds=used,
            cpu_share=used / max(1e-9, self._now() - self._began),
        )
