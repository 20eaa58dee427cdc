"""The standard streams as commands find them: closed, full, without a reader, or unable to show a character.

Rules:
- A closed stream becomes /dev/null. Else the next socket or file that is opened would get its number, and what is
  written to standard error would go into it.
- Characters that a stream's encoding does not have are written as plain ones of the same width, so tables stay whole.
- A server outlives its streams: what cannot be written is dropped (:mod:`ekiden.outlets`). The output of any other
  command is its result, so one that cannot be written is an error (:func:`flushed`).
"""

import codecs
import errno
import io
import os
import sys
import unicodedata
from typing import Final

from ekiden.errors import UserError

PLAIN: Final = "ekiden-plain"
UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_STAND_INS: Final = str.maketrans("…·•█░━╸╺▁→←‘’“”‐‑–—×", "..*#.---_><''\"\"----x")


def prepare() -> None:
    """What every command needs, before anything is opened or written."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if _is_closed(number):
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - lives as long as we do
    codecs.register_error(PLAIN, _plain)
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, PLAIN), (sys.stderr, PLAIN)):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def flushed(status: int) -> int:
    """Write what is left, so that Python does not fail to at its end; returns the exit status, which is then 1.

    Raises :class:`UserError` when it cannot be written and nothing else went wrong.
    """
    failure: OSError | None = None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            failure = failure or error
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if failure is None:
        return status
    if status == 0 and not isinstance(failure, BrokenPipeError):
        raise UserError(f"the output cannot be written: {failure.strerror}")
    return status or 1


def encodable(text: str) -> bool:
    """True when standard output can show every character."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _is_closed(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return True
    return False


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_stand_in, error.object[error.start : error.end])), error.end


def _stand_in(character: str) -> str:
    plain = unicodedata.normalize("NFKD", character.translate(_STAND_INS))[:1]
    if plain.isascii():
        return plain
    return "??" if unicodedata.east_asian_width(character) in "WF" else "?"
