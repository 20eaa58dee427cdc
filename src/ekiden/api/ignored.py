"""What a request asked for and did not get: fields that were taken without effect.

The response names them in ``x-ekiden-ignored-fields``, the log names each once, and a counter counts them always.
Names that are in no table of ours come from clients, so they are cleaned and cut, their number is bounded, and the
counter has one label, ``other``, for all of them.
"""

import logging
import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from starlette.types import Scope

from ekiden.api.identity import RESPONSE_HEADERS

HEADER: Final = b"x-ekiden-ignored-fields"
MAX_NAMES: Final = 32
"""Most names that a response tells; dots stand for the rest."""
MAX_KEY: Final = 64
"""Most characters of a name that a client made up."""
MAX_LOGGED: Final = 256
"""Most names that are remembered as told in the log."""
OTHER: Final = "other"

_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9_.\-]")

logger = logging.getLogger(__name__)


class Ignored(NamedTuple):
    """A field without effect by its path, such as ``messages[].cache_control``. ``known``: the path is in a table of
    ours, and no text of a client's."""

    path: str
    known: bool = True


def cleaned(key: str) -> str:
    """A key as it may stand in a header: short, and without commas, line breaks or anything else of meaning there."""
    return _UNUSUAL.sub("?", key[:MAX_KEY]) or "?"


class IgnoredFields:
    """Tells the client, the log and the metrics; ``count`` is given the counter's label."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self._logged: set[str] = set()

    def tell(self, scope: Scope, fields: Iterable[Ignored]) -> None:
        """Put the names on the response to come, in their order and each once, and log and count them."""
        known = {field.path: field.known for field in fields}
        if not known:
            return
        paths = list(known)
        told = paths if len(paths) <= MAX_NAMES else [*paths[:MAX_NAMES], "..."]
        scope[RESPONSE_HEADERS].append((HEADER, ", ".join(told).encode("ascii")))
        for path, is_known in known.items():
            self._count(path if is_known else OTHER)
            if path not in self._logged and len(self._logged) < MAX_LOGGED:
                self._logged.add(path)
                logger.info("%s is taken without effect; this is told once", path)
