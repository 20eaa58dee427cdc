"""Reads a lineage back, and says what differs between two of them."""

from typing import NamedTuple

import msgspec

from ekiden.state.lineage import SECTIONS, Lineage, Value


class Change(NamedTuple):
    """``before`` or ``after`` is ``ABSENT`` where only one of the two has the value."""

    section: str
    name: str
    before: Value
    after: Value


ABSENT = "(absent)"


def lineage_of(value: object) -> Lineage:
    """Read back what :meth:`Lineage.as_object` wrote. Raises ``ValueError`` for anything else, altered digests too."""
    if not isinstance(value, dict) or "digest" not in value:
        raise ValueError("it holds no lineage")
    try:
        lineage = msgspec.convert(value, Lineage)
    except msgspec.ValidationError as error:
        raise ValueError(f"its lineage cannot be read: {error}") from error
    if lineage.digest != value["digest"]:
        raise ValueError(f"its lineage was altered: the digest is {lineage.digest[:8]}, not {value['digest']!s:.8}")
    return lineage


def changes(before: Lineage, after: Lineage) -> list[Change]:
    """What differs, section by section; names and folders last, though they decide nothing."""
    found: list[Change] = []
    for section in (*SECTIONS, "apart"):
        old, new = getattr(before, section), getattr(after, section)
        if section == "apart" and not (old and new):
            continue  # a server tells them to administrators only
        for name in sorted(old.keys() | new.keys()):
            was, now = old.get(name, ABSENT), new.get(name, ABSENT)
            if was != now:
                found.append(Change(section, name, was, now))
    return found
