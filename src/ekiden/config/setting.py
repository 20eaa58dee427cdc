"""What a setting is: a field of a frozen dataclass whose metadata has its help text and its bounds.

Flag, TOML key and variable follow from the field's name: ``scheduler.max_num_seqs`` is ``--max-num-seqs``,
``max_num_seqs`` under ``[scheduler]`` and ``EKIDEN_MAX_NUM_SEQS``. A field may name another flag.
"""

import re
from dataclasses import dataclass, field, fields
from typing import Any

from ekiden.errors import UserError


class ConfigError(UserError, ValueError):
    """A configuration value that cannot work; the message names the setting, the value and what to do."""


def setting(
    default: Any,
    help_text: str,
    *,
    flag: str | None = None,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    over: float | None = None,
    size: bool = False,
    form: tuple[str, str] | None = None,
) -> Any:
    """A dataclass field with its help text and bounds. A value is at least ``least`` and greater than ``over``.

    ``size``: it is written like ``512MiB``. ``form``: a regular expression that it must match, and what that asks for.
    """
    metadata = {
        "help": help_text, "choices": choices, "least": least, "over": over, "flag": flag, "size": size, "form": form,
    }  # fmt: skip
    return field(default=default, metadata=metadata)


def check(ok: bool, message: str) -> None:
    """Raise :class:`ConfigError` with the message unless ``ok``."""
    if not ok:
        raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The settings of one room."""

    def __post_init__(self) -> None:
        """Check every value against its field's choices and bounds; None means "not set"."""
        for each in fields(self):
            name, value, bounds = each.name, getattr(self, each.name), each.metadata
            if value is None:
                continue
            if choices := bounds["choices"]:
                check(value in choices, f"{name} is {value!r}; it must be one of {', '.join(choices)}")
            if (least := bounds["least"]) is not None:
                check(value >= least, f"{name} is {value}; it must be at least {least}")
            if (over := bounds["over"]) is not None:
                check(value > over, f"{name} is {value}; it must be over {over}")
            if bounds["size"]:
                parse_size(name, value)
            if form := bounds["form"]:
                check(re.fullmatch(form[0], value) is not None, f"{name} is {value!r}; it must be {form[1]}")


_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def parse_size(name: str, text: str) -> int:
    """The bytes that ``512MiB``, ``2GiB`` or ``1000000`` means; raises :class:`ConfigError` naming the setting."""
    found = re.fullmatch(r"\s*(\d+\.?\d*(?:e\d+)?|\.\d+)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNITS:
        raise ConfigError(f"{name} is {text!r}; write a size such as 512MiB or 2GiB")
    return int(float(found[1]) * _UNITS[found[2]])
