"""From a TOML document to message types, with every fault and not only the first.

msgspec's own conversion stops at the first fault. So the nesting is walked here, and msgspec converts single values.
"""

import re
from collections.abc import Mapping
from typing import Any, get_args, get_origin

import msgspec

from ekiden.build.config_sources import nearest

MISSING = object()
"""In place of a value that has a fault."""


def build(value: object, kind: Any, where: str, faults: list[str]) -> Any:
    """``value`` as a ``kind``, which is a struct, a list or dict of such, or plain; ``MISSING`` if it has a fault.

    Elements of lists and dicts that have faults are left out, so that the sound ones can be looked at further.
    """
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(value, kind, where, faults)
    element = get_args(kind)[-1] if get_args(kind) else None
    if isinstance(element, type) and issubclass(element, msgspec.Struct):
        if get_origin(kind) is dict:
            if not isinstance(value, Mapping):
                faults.append(f"{where} is {shown(value)}; it must be tables such as [{where}.name]")
                return MISSING
            named = {name: build(item, element, f"{where}.{name}", faults) for name, item in value.items()}
            return {name: item for name, item in named.items() if item is not MISSING}
        if not isinstance(value, list):
            faults.append(f"{where} is {shown(value)}; it must be tables that each begin with [[{where}]]")
            return MISSING
        listed = [build(item, element, f"{where}{_label(item, at)}", faults) for at, item in enumerate(value, 1)]
        return [item for item in listed if item is not MISSING]
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason = re.sub(r" - at `\$.*", "", str(error))
        faults.append(f"{where} is {shown(value)}; {reason[:1].lower()}{reason[1:]}")
        return MISSING


def shown(value: object) -> str:
    """A value as an error quotes it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _label(item: object, at: int) -> str:
    """How an element of a list is called: by its name where it has one, else by its place from 1."""
    name = item.get("name") if isinstance(item, Mapping) else None
    return f"[{name}]" if isinstance(name, str) and name else f"[{at}]"


def _struct(value: object, kind: type[msgspec.Struct], where: str, faults: list[str]) -> Any:
    if not isinstance(value, Mapping):
        faults.append(f"{where} is {shown(value)}; it must be a table, written [{where}]")
        return MISSING
    before = len(faults)
    built = fields_of(value, kind, where, faults)
    return kind(**built) if len(faults) == before else MISSING


def fields_of(table: Mapping[str, Any], kind: type[msgspec.Struct], where: str, faults: list[str]) -> dict[str, Any]:
    """The sound fields of a struct, by name."""
    prefix = f"{where}." if where else ""
    known = {each.encode_name: each for each in msgspec.structs.fields(kind)}
    for name in table:
        if name not in known:
            hint = nearest(name, known) or f"; known here: {', '.join(sorted(known))}"
            faults.append(f"{prefix}{name} is not known{hint}")
    built = {}
    for name, each in known.items():
        if name in table:
            value = build(table[name], each.type, prefix + name, faults)
            if value is not MISSING:
                built[each.name] = value
        elif each.required:
            faults.append(f"{prefix}{name} is missing; add it")
    return built
