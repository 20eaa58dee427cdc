"""Standard output and standard error of a server: what they do not take holds nobody up, and ends nothing.

A write to a pipe waits once 64 KB are in it that its reader has not taken, and one to a terminal while it is stopped
(Ctrl-S). The event loop of the HTTP process and the loop of the engine must wait for neither. So each stream has a
thread that may wait; what it has not written yet is bounded, and what does not fit is dropped and counted.
"""

import atexit
import io
import os
import select
import sys
import threading
from collections import deque
from typing import Any, Final, TextIO

MAX_WAITING: Final = 2**20
"""Bytes that may wait for a reader."""

LAST_SECONDS: Final = 0.5
"""How long the end of a process waits for what is left to be written."""


def keep_going() -> None:
    """From now on, writing to standard output and standard error neither waits nor fails."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream: TextIO | None = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):
            stream.flush()
            outlet = Outlet(number)
            atexit.register(outlet.wait, LAST_SECONDS)
            text = io.TextIOWrapper(
                io.BufferedWriter(outlet),
                stream.encoding,
                stream.errors,
                line_buffering=True,
                write_through=number == 2,
            )
            setattr(sys, name, text)


class Outlet(io.RawIOBase):
    """Takes everything at once, and writes it to the file of ``number`` as that takes it.

    What was dropped is told where it is missing: nothing is taken again until all that waited has been written.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0  # of what waits, and of what is being written
        self._num_dropped = 0
        # A signal's handler may write while this thread is inside; a condition's own lock lets it.
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: Any, /) -> int:
        piece = bytes(data)
        with self._changed:
            if self._num_dropped or self._num_bytes + len(piece) > MAX_WAITING:
                self._num_dropped += 1
                return len(piece)
            self._waiting.append(piece)
            self._num_bytes += len(piece)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="ekiden-outlet", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return len(piece)

    def wait(self, seconds: float) -> bool:
        """Wait until all is written; False if it was not by then."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._num_bytes, seconds)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                piece = self._waiting.popleft()
            self._put(piece)
            with self._changed:
                self._num_bytes -= len(piece)
                if self._num_dropped and not self._waiting:
                    told = b"(%d writes were dropped here, because nothing read them)\n" % self._num_dropped
                    self._num_dropped = 0
                    self._waiting.append(told)
                    self._num_bytes += len(told)
                self._changed.notify_all()

    def _put(self, piece: bytes) -> None:
        try:
            while piece:
                try:
                    piece = piece[os.write(self._number, piece) :]
                except BlockingIOError:  # another holder of the pipe has made it one that does not wait
                    select.select([], [self._number], [])
        except OSError:
            return  # closed, full, or without a reader
