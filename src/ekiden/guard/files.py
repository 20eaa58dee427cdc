"""A small file that keeps one value over restarts. It is replaced as a whole, so a process that is killed at any moment
leaves the old value or the new one."""

import logging
import os
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

logger = logging.getLogger(__name__)

Kept = TypeVar("Kept")


class StateFile(Generic[Kept]):
    """``path`` None keeps nothing. ``kind`` is a struct whose every field has a default."""

    def __init__(self, path: Path | None, kind: type[Kept]) -> None:
        self.path = path
        self._kind = kind
        self._written: bytes | None = None

    def load(self) -> Kept:
        """The value that was saved last; a new one where there is none. A file that cannot be read is put aside, with
        an error in the log: a server must not fail to start for it."""
        if self.path is None or not self.path.exists():
            return self._kind()
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=self._kind)
        except (OSError, msgspec.DecodeError) as error:
            aside = self.path.with_name(self.path.name + ".damaged")
            logger.error("%s cannot be read and is put aside as %s: %s", self.path, aside.name, error)
            try:
                self.path.replace(aside)
            except OSError as failure:
                logger.error("%s cannot be put aside: %s", self.path, failure)
            return self._kind()

    def save(self, value: Kept) -> None:
        """Raises :class:`OSError`. What is there already is not written again."""
        text = msgspec.json.encode(value)
        if self.path is None or text == self._written:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        number = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(number, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
        self._written = text
