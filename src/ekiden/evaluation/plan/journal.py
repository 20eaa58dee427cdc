"""What happened to an evaluation or a release, in a file of which nothing can be changed, moved or left out unseen.

``journal.jsonl`` has one entry a line. Each holds the digest of the entry before it, so a change to one breaks the
chain at the next. ``journal.head`` holds the number and digest of the last, so that entries cut off the end are missed.
Whoever rewrites the whole chain is not caught by that, but by a digest that was published: that of the registration
shows another plan, and that of the last entry (:meth:`Journal.last_digest`) another result.
"""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from ekiden.errors import UserError
from ekiden.models.files import replace_file

START = "0" * 64
"""Stands for the entry before the first."""


class Event(StrEnum):
    REGISTERED = "registered"
    DEV_RUN = "dev run"
    TUNED = "tuned"
    CONFIRM_STARTED = "confirm started"
    CONFIRM_RESUMED = "confirm resumed"
    RUN_STORED = "run stored"
    CONFIRM_FINISHED = "confirm finished"
    VERDICT = "verdict"


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    number: int
    """From 0."""
    time: str
    """UTC, such as ``2026-11-30T21:22:00Z``."""
    event: str
    """One of the events of the journal's kind."""
    payload: dict[str, Any]
    before: str
    """The digest of the entry before; ``START`` for the first."""
    digest: str = ""
    """SHA-256 over all of the above."""

    def computed(self) -> str:
        """What ``digest`` must be."""
        return hashlib.sha256(_line(msgspec.structs.replace(self, digest=""))).hexdigest()


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    digest: str


class Journal:
    """The journal in ``folder``, which is made with the first entry. ``now`` gives the time.

    ``events``: what may be written. ``way_out``: what the error says that there is to do about a journal that was
    changed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        events: type[StrEnum] = Event,
        way_out: str = "register again",
    ) -> None:
        self.path = folder / "journal.jsonl"
        self._head = folder / "journal.head"
        self._now = now
        self._events = events
        self._way_out = way_out

    def read(self) -> tuple[list[Entry], list[str]]:
        """The entries that are as they were written, and in sentences what is wrong. Raises ``OSError``."""
        try:
            return self._judged(self.path.read_bytes())
        except FileNotFoundError:
            return [], ["the journal is missing, though its head is there"] if self._head.exists() else []

    def last_digest(self) -> str:
        """The digest of the newest entry, which stands for all of them; ``START`` if there is none."""
        entries, _ = self.read()
        return entries[-1].digest if entries else START

    def append(
        self, event: StrEnum, payload: dict[str, Any], *, allowed: Callable[[Sequence[Entry]], None] = lambda _: None
    ) -> Entry:
        """Add an entry, unless ``allowed`` raises on seeing those before it. Only one process at a time is in here.

        Raises :class:`UserError` for a journal that is not as it was written, or that cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked() as handle:
                entries, faults = self.read()
                if faults:
                    raise UserError(
                        f"{self.path}: {faults[0]}; nothing can be added to it. Move the folder "
                        f"{self.path.parent} away and {self._way_out}"
                    )
                allowed(entries)
                entry = Entry(
                    number=len(entries),
                    time=f"{self._now():%Y-%m-%dT%H:%M:%SZ}",
                    event=self._events(event).value,
                    payload=msgspec.to_builtins(payload),
                    before=entries[-1].digest if entries else START,
                )
                entry = msgspec.structs.replace(entry, digest=entry.computed())
                _write(handle, _line(entry) + b"\n")
                replace_file(self._head, _line(_Head(number=entry.number, digest=entry.digest)))
                return entry
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror or error}") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield handle
        finally:
            os.close(handle)

    def _judged(self, content: bytes) -> tuple[list[Entry], list[str]]:
        """Entries that are not as they were written are left out of the first."""
        intact: list[Entry] = []
        faults: list[str] = []
        digests: list[str] = []
        *lines, rest = content.split(b"\n")
        if rest:
            faults.append(f"the journal's last line (entry {len(lines)}) is incomplete")
        for number, line in enumerate(lines):
            before = digests[-1] if digests else START
            digests.append("")
            try:
                entry = msgspec.json.decode(line, type=Entry)
                self._events(entry.event)
            except (msgspec.DecodeError, ValueError):
                faults.append(f"the journal's entry {number} cannot be read")
                continue
            digests[-1] = entry.digest
            if _line(entry) != line or entry.digest != entry.computed():
                faults.append(f"the journal's entry {number} ({entry.event}) was edited")
                continue
            if entry.number != number or (before and entry.before != before):
                faults.append(
                    f"entries of the journal before {number} ({entry.event}) were removed, added or reordered"
                )
            intact.append(entry)
        return intact, faults + self._missed(digests)

    def _missed(self, digests: Sequence[str]) -> list[str]:
        """What the head tells of the end. A process that was killed may have added one entry more than it tells."""
        last = len(digests) - 1
        try:
            head = msgspec.json.decode(self._head.read_bytes(), type=_Head)
        except FileNotFoundError:
            # The first entry alone may have been written by a process that was killed right after.
            return ["the journal's head is missing"] if last > 0 else []
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ["the journal's head cannot be read"]
        if head.number > last:
            return [f"the journal ends at entry {last}; entries up to {head.number} were removed"]
        if not max(0, last - 1) <= head.number or digests[head.number] != head.digest:
            return ["the journal's head is not of this journal"]
        return []


def _line(value: msgspec.Struct) -> bytes:
    """The one way to write an entry: sorted by name, without spaces."""
    return msgspec.json.encode(value, order="sorted")


def _write(handle: int, content: bytes) -> None:
    """All of it, or nothing: a disk that is full leaves no half of an entry."""
    size = os.fstat(handle).st_size
    try:
        written = os.write(handle, content)
        if written < len(content):
            raise OSError(f"only {written} of {len(content)} bytes could be written; is the disk full?")
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, size)
        raise
