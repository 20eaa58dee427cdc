"""Half characters: JSON may write a character beyond U+FFFF as two escapes, and one without the other is no text.

No tokenizer could read it and no answer could repeat it, so a request that holds one is refused, with the place.
"""

import contextlib
import json
from typing import Any, Final

from ekiden.api.errors import shown
from ekiden.api.hand_checks import rule
from ekiden.api.shape import Place, path

LONE_SURROGATE: Final = "a lone surrogate, which is half a character; send both halves, or U+FFFD"


def lone_surrogate(body: bytes) -> str | None:
    """The path of the first text or key in a JSON document that holds a lone surrogate, if that can be told."""
    if b"\\ud" not in body.lower():
        return None
    with contextlib.suppress(ValueError, RecursionError):
        pending: list[tuple[Place, Any]] = [((), json.loads(body))]
        while pending:
            place, value = pending.pop()
            if isinstance(value, str) and _is_broken(value):
                return path(place)
            if isinstance(value, dict):
                if (key := next(filter(_is_broken, value), None)) is not None:
                    return path((*place, shown(key)[1:-1]))
                pending += [((*place, key), each) for key, each in reversed(value.items())]
            elif isinstance(value, list):
                pending += [((*place, index), value[index]) for index in range(len(value) - 1, -1, -1)]
    return None


def sound_arguments(text: str, at: str = "") -> str:
    """The arguments of an earlier call, which are JSON in a text. Raises a :func:`rule` if there is a lone surrogate in
    what that JSON says. Text that is no JSON is left as it is."""
    if lone_surrogate(text.encode()) is not None:
        raise rule(f"holds {LONE_SURROGATE}", at)
    return text


def _is_broken(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text) if not text.isascii() else False
