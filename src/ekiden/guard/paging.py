"""Telling a person: a page is sent to a webhook, to a program, or to both, until it is taken.

- Pages wait in a list that the guard keeps over restarts. Each has a key that stays the same from try to try, sent as
  ``Idempotency-Key``, so that a page which arrived although its answer was lost is not shown twice.
- A try that fails is followed by another after a pause that doubles, up to :data:`MAX_PAUSE_SECONDS`; after
  :data:`MAX_TRIES` the page is given up, which is told as loudly as the page would have been.
- Neither an address nor a key is ever logged: some webhooks' addresses are their keys.
- A thread of its own sends, so that a slow receiver holds up no evaluation. It is quiet without pages.
"""

import logging
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import httpx
import msgspec

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 120.0
MAX_TRIES: Final = 30
"""About an hour, with the pauses between them."""
TIMEOUT_SECONDS: Final = 10.0
MAX_WAITING: Final = 200
"""Pages that may wait at once; of more the oldest are given up."""
_IDLE_SECONDS: Final = 3600.0


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What a person is told. ``at`` is Unix time; ``links`` are paths of the server, or addresses."""

    key: str
    rule: str
    owner: str
    evidence: str
    action: str
    at: float
    server: str = ""
    links: dict[str, str] = {}


class WaitingPage(msgspec.Struct, kw_only=True):
    """A page on its way through one channel. ``due`` is Unix time."""

    page: Page
    channel: str
    tries: int = 0
    due: float = 0.0


class PageFailed(Exception):
    """A receiver has not taken a page; the message holds no secret."""


class Channel(Protocol):
    name: str

    def send(self, page: Page) -> None:
        """Raises :class:`PageFailed`."""


class Webhook:
    """Sends a page as JSON by POST; any answer of 200 to 299 has taken it."""

    name = "webhook"

    def __init__(self, url: str, key: str | None = None, transport: httpx.BaseTransport | None = None) -> None:
        self._url, self._transport = url, transport
        self._headers = {"content-type": "application/json", "user-agent": "ekiden-guard"}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"

    def send(self, page: Page) -> None:
        headers = {**self._headers, "idempotency-key": page.key}
        try:
            with httpx.Client(timeout=TIMEOUT_SECONDS, transport=self._transport) as client:
                answer = client.post(self._url, content=msgspec.json.encode(page), headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise PageFailed(f"the webhook gave no answer ({type(error).__name__})") from None
        if not answer.is_success:
            raise PageFailed(f"the webhook answered {answer.status_code}")


class Program:
    """Gives a page as JSON to a program's standard input; exit status 0 has taken it. No shell reads the arguments."""

    name = "command"

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = list(arguments)

    def send(self, page: Page) -> None:
        try:
            ended = subprocess.run(  # noqa: S603 - the program that the operator configured
                self._arguments, input=msgspec.json.encode(page), timeout=TIMEOUT_SECONDS, check=False,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise PageFailed(f"the command took longer than {TIMEOUT_SECONDS:g} s") from None
        except OSError as error:
            raise PageFailed(f"the command cannot be run: {error.strerror}") from None
        if ended.returncode != 0:
            raise PageFailed(f"the command ended with status {ended.returncode}")


Told = Callable[[WaitingPage, str | None], None]
"""Called for each page that a channel took (None), or that is given up, with the reason."""


class Pager:
    """``clock`` gives Unix time. ``told`` is called on the thread that sends, and so must not wait for it."""

    def __init__(self, channels: Sequence[Channel], clock: Callable[[], float], told: Told) -> None:
        self._channels = {channel.name: channel for channel in channels}
        self._clock, self._told = clock, told
        self._lock = threading.Lock()
        self._waiting: list[WaitingPage] = []
        self._wake = threading.Event()
        self._ending = False
        self._thread: threading.Thread | None = None
        self.sent_total = 0
        self.tries_failed_total = 0
        self.given_up_total = 0

    @property
    def channels(self) -> list[str]:
        return list(self._channels)

    def put(self, page: Page) -> None:
        """Send a page through every channel, as soon as possible."""
        self.take_up([WaitingPage(page=page, channel=name, due=page.at) for name in self._channels])

    def take_up(self, pages: Sequence[WaitingPage]) -> None:
        """Go on with pages of an earlier process; those of channels that there are no longer are left out."""
        with self._lock:
            self._waiting += [each for each in pages if each.channel in self._channels]
            dropped, self._waiting = self._waiting[:-MAX_WAITING], self._waiting[-MAX_WAITING:]
        for each in dropped:
            self._give_up(each, f"more than {MAX_WAITING} pages wait")
        self._wake.set()

    def waiting(self) -> list[WaitingPage]:
        with self._lock:
            return [msgspec.structs.replace(each) for each in self._waiting]

    def work(self) -> float:
        """Send what is due; returns the seconds until more is."""
        now = self._clock()
        with self._lock:
            due = [each for each in self._waiting if each.due <= now]
        for each in due:
            self._try(each)
        with self._lock:
            return min((each.due for each in self._waiting), default=now + _IDLE_SECONDS) - now

    def _try(self, each: WaitingPage) -> None:
        try:
            self._channels[each.channel].send(each.page)
        except PageFailed as error:
            self.tries_failed_total += 1
            each.tries += 1
            pause = min(FIRST_PAUSE_SECONDS * 2.0 ** (each.tries - 1), MAX_PAUSE_SECONDS)
            each.due = self._clock() + pause
            logger.warning("page %s, try %d: %s", each.page.key, each.tries, error)
            if each.tries >= MAX_TRIES:
                self._remove(each)
                self._give_up(each, str(error))
            return
        self.sent_total += 1
        self._remove(each)
        self._told(each, None)

    def _remove(self, page: WaitingPage) -> None:
        with self._lock:
            self._waiting = [each for each in self._waiting if each is not page]

    def _give_up(self, each: WaitingPage, why: str) -> None:
        self.given_up_total += 1
        logger.error("page %s of rule %s is given up: %s", each.page.key, each.page.rule, why)
        self._told(each, why)

    # --- its thread

    def start(self) -> None:
        if self._channels:
            self._thread = threading.Thread(target=self._run, name="ekiden-pager", daemon=True)
            self._thread.start()

    def stop(self, seconds: float = 2.0) -> None:
        """What waits is kept by the guard's file. Harmless when it was never started."""
        self._ending = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            pause = self.work()
            if self._ending:  # after a last try
                return
            self._wake.wait(max(0.05, pause))
            self._wake.clear()


def told_of(page: WaitingPage, error: str | None) -> str:
    """How the ledger says what became of a page."""
    what = f"page {page.page.key} through the {page.channel}"
    return f"{what} was taken" if error is None else f"{what} is given up: {error}"


def as_object(pages: Sequence[WaitingPage]) -> list[dict[str, Any]]:
    return [
        {"key": each.page.key, "rule": each.page.rule, "channel": each.channel, "tries": each.tries} for each in pages
    ]
