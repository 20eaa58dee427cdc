"""Which keys of a body's objects have a meaning, and what becomes of the others.

A body is read by its models; what they do not declare, they pass over. Afterwards one walk over the decoded JSON finds
what was passed over. Each model has a table, ``fates``, of the names that clients send and this server does not act on:

- *ignored*: neglecting it changes nothing in what the answer means, so it is taken without effect, and named;
- *refused*: neglecting it would break what the client relies on, so it is a 400 that says why.

``fine`` are values that ask for what happens anyway; like null they count as not given. A name in no table is ignored,
or refused with ``--unknown-fields refuse``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ekiden.api.errors import invalid, shown, unsupported
from ekiden.api.ignored import MAX_NAMES, Ignored, cleaned

UNKNOWN: Final = "unknown_parameter"
MAX_SHOWN_KEY: Final = 120
MAX_SHOWN_PATH: Final = 400
"""Characters of a key and of a path that an error repeats."""

Place = tuple[str | int, ...]
"""Where something is in a body: ``("messages", 0, "role")``."""


def path(place: Place) -> str:
    """``("messages", 0, "role")`` as ``messages[0].role``; long keys and long paths, which are a client's, are cut."""
    text = ""
    for part in place:
        key = f"[{part}]" if isinstance(part, int) else part
        key = key if len(key) <= MAX_SHOWN_KEY else f"{key[:MAX_SHOWN_KEY]}..."
        text += f".{key}" if text and isinstance(part, str) else key
        if len(text) > MAX_SHOWN_PATH:
            return f"{text[:MAX_SHOWN_PATH]}..."
    return text


def general_path(place: Place) -> str:
    """The same for all entries of a list: ``messages[].role``."""
    text = ""
    for part in place:
        text += "[]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a field that the server does not act on. ``words`` say why."""

    refused: bool
    words: str
    fine: tuple[Any, ...] = ()

    def is_fine(self, value: Any) -> bool:
        return any(type(value) is type(each) and value == each for each in self.fine)


def ignored(why: str, *, fine: tuple[Any, ...] = ()) -> Fate:
    """Any value is taken, has no effect and is named to the client, except null and those in ``fine``."""
    return Fate(False, why, fine)


def refused(why: str, *, fine: tuple[Any, ...] = ()) -> Fate:
    """Any value is refused, except null and those in ``fine``."""
    return Fate(True, why, fine)


class Objects(NamedTuple):
    """The objects in a field, of one shape. ``listed``: they stand in a list, which only the documentation shows."""

    key: str
    shape: "Shape"
    listed: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """The keys of an object with a meaning, the fates of others, and the objects within.

    ``types``: objects of any other ``type`` are left out as a whole. ``kinds``: shapes by ``type``, for objects that
    differ by it; this shape is for the rest. ``closed``: an unknown key may be a constraint, so it is always refused.
    """

    names: frozenset[str]
    fates: Mapping[str, Fate] = field(default_factory=dict)
    inner: tuple[Objects, ...] = ()
    types: frozenset[str] | None = None
    kinds: Mapping[str, "Shape"] = field(default_factory=dict)
    closed: bool = False

    def leaves_out(self, item: Mapping[str, Any]) -> bool:
        """Whether an object is of a type that the server has nothing for."""
        return self.types is not None and isinstance(kind := item.get("type"), str) and kind not in self.types

    def all_fates(self, place: str = "") -> Iterator[tuple[str, Fate]]:
        """The fates of an object and all that may be in it, by path, for the documentation."""
        for name, fate in self.fates.items():
            yield place + name, fate
        for shape in self.kinds.values():
            yield from shape.all_fates(place)
        for key, shape, listed in self.inner:
            yield from shape.all_fates(f"{place}{key}{'[]' if listed else ''}.")


class PassedOver:
    """Finds what the models of a body passed over. Each name is kept once, whatever its index in a list."""

    def __init__(self, *, refuse_unknown: bool) -> None:
        self._refuse_unknown = refuse_unknown
        self._seen: set[tuple[Shape, str]] = set()
        self.names: list[Ignored] = []

    def look(self, shape: Shape, item: dict[str, Any], place: Place = ()) -> None:
        """Look through an object. Raises :class:`ApiError` 400 for what may not be neglected."""
        if shape.kinds or shape.types is not None:
            if shape.leaves_out(item):
                if self._is_new(shape, item["type"]):
                    whole = general_path(place).removesuffix("[]")
                    self.names.append(Ignored(f"{whole}[type={cleaned(item['type'])}]", known=False))
                return
            kind = item.get("type")
            shape = shape.kinds.get(kind, shape) if isinstance(kind, str) else shape
        if not item.keys() <= shape.names:
            for key in item:
                if key not in shape.names and item[key] is not None:
                    self._find(shape, key, item[key], place)
        for key, inner, _ in shape.inner:
            value = item.get(key)
            if isinstance(value, dict):
                self.look(inner, value, (*place, key))
            elif isinstance(value, list):
                for index, each in enumerate(value):
                    if isinstance(each, dict):
                        self.look(inner, each, (*place, key, index))

    def _find(self, shape: Shape, key: str, value: Any, place: Place) -> None:
        fate = shape.fates.get(key)
        if fate is None:
            if self._refuse_unknown or shape.closed:
                name = path((*place, shown(key)[1:-1]))
                raise invalid(name, f"Unknown field {name!r}; the fields are listed under /docs.", code=UNKNOWN)
            if self._is_new(shape, key):
                self.names.append(Ignored(general_path((*place, cleaned(key))), known=False))
        elif not fate.is_fine(value):
            if fate.refused:
                name = path((*place, key))
                raise unsupported(name, f"{name} is {shown(value)}; leave it out: {fate.words}.")
            if self._is_new(shape, key):
                self.names.append(Ignored(general_path((*place, key))))

    def _is_new(self, shape: Shape, key: str) -> bool:
        """Whether a name was not found before. What is beyond the bound is never new."""
        if len(self._seen) > MAX_NAMES or (shape, key) in self._seen:
            return False
        self._seen.add((shape, key))
        return True
