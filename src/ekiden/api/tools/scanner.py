"""Reads a tool call's JSON object as it is written, character by character, and gives its arguments out as they come.

It checks no more of the JSON than it must to find where values end; :func:`whole_object` checks the arguments.
"""

import json
from typing import Final, NoReturn

_SPACE: Final = " \t\r\n"
_ARGUMENT_KEYS: Final = ("arguments", "parameters")


class ValueScanner:
    """Finds the end of one JSON value. ``text`` is what was read of it."""

    def __init__(self) -> None:
        self.text = ""
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, character: str) -> bool:
        """Take one character of the value; True when it was the last one.

        A number or a word has no last character of its own: whoever calls ends it at a comma or a bracket.
        """
        self.text += character
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
                return self._depth == 0
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            return self._depth <= 0
        return False

    @property
    def is_word(self) -> bool:
        """True for a number, true, false or null, as far as can be seen."""
        return self._depth == 0 and not self._in_string and self.text[:1] not in ('"', "{", "[")


class CallScanner:
    """Reads ``{"name": ..., "arguments": {...}}`` in any order of keys.

    ``name`` is set when it is known; ``take`` gives arguments that have come since, none before the name has.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.done = False
        self.failed = False
        self._place = "before"
        self._key = ""
        self._value: ValueScanner | None = None
        self._arguments = ""
        self._given = 0
        self._has_arguments = False
        self._may_stream = False

    def whole(self) -> str | None:
        """The arguments' JSON text, when a complete object of them has come; ``{}`` when the call ended without any."""
        if not self._has_arguments:
            return "{}" if self.done else None
        return whole_object(self._arguments) if self._may_stream else None

    def feed(self, text: str) -> int:
        """Read on; returns how many characters were taken.

        All, unless the object ended, cannot be read from there on, or has just told its name: the caller may then want
        no more.
        """
        nameless = self.name is None
        for index, character in enumerate(text):
            if self.done or (nameless and self.name is not None):
                return index
            self._read(character)
            if self.failed:
                return index
        return len(text)

    def take(self) -> str:
        if self.name is None:
            return ""
        if self.done and not self._has_arguments:
            self._has_arguments, self._arguments = True, "{}"
        if not self.done and not self._may_stream:
            return ""
        fragment = self._arguments[self._given :]
        self._given = len(self._arguments)
        return fragment

    def _read(self, character: str) -> None:
        if self._value is not None:
            self._read_value(self._value, character)
        elif character in _SPACE:
            return
        elif self._place == "before" and character == "{":
            self._place = "key"
        elif self._place == "key" and character == '"':
            self._value = ValueScanner()
            self._read_value(self._value, character)
        elif self._place in ("key", "next") and character == "}":
            self.done = True
        elif self._place == "colon" and character == ":":
            self._place = "value"
        elif self._place == "next" and character == ",":
            self._place = "key"
        elif self._place == "value" and character not in ",}]:":
            self._read_value(self._begin_value(), character)
        else:
            self.failed = True

    def _begin_value(self) -> ValueScanner:
        value = self._value = ValueScanner()
        if self._key in _ARGUMENT_KEYS and not self._has_arguments:
            self._has_arguments = True
            self._arguments = ""
        return value

    def _read_value(self, value: ValueScanner, character: str) -> None:
        if value.text and value.is_word and character in ",}":
            self._end_value(value.text.rstrip(_SPACE))
            self._read(character)
            return
        ended = value.feed(character)
        if self._place == "value" and self._key in _ARGUMENT_KEYS:
            # An object comes as it is written; what is wrapped in a string is unwrapped when it is complete.
            self._may_stream = value.text[0] == "{"
            self._arguments = value.text
        if ended:
            self._end_value(value.text)

    def _end_value(self, text: str) -> None:
        self._value = None
        if self._place == "key":
            self._key, self._place = _loaded_text(text) or "", "colon"
            return
        self._place = "next"
        if self._key == "name":
            self.name = _loaded_text(text)
            self.failed = self.name is None
        elif self._key in _ARGUMENT_KEYS:
            if text.startswith('"'):
                text = _loaded_text(text) or "{}"
            self._arguments = "{}" if text == "null" else text
            self._may_stream = True


def whole_object(text: str) -> str | None:
    """The text if it is a JSON object, and None otherwise. Line ends and the like in strings are written as escapes."""
    for strict in (True, False):
        try:
            value = json.loads(text, strict=strict, parse_constant=_refuse)
            written = text if strict else json.dumps(value, allow_nan=False)
        except (ValueError, RecursionError):
            continue
        return written if isinstance(value, dict) else None
    return None


def _refuse(word: str) -> NoReturn:
    """NaN and Infinity are no JSON."""
    raise ValueError(word)


def _loaded_text(text: str) -> str | None:
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
