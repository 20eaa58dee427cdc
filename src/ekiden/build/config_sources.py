"""Where each setting's value comes from: flag, then EKIDEN_ variable, then TOML file, then default.

Everything is read off the dataclasses in :mod:`ekiden.config`: a new field there is a flag, a variable and a TOML key
here without another line. Nothing is ignored: an unknown key, section or EKIDEN_ variable is an error that
names the nearest known one, and every error names the setting, the value and the source it came from.
"""

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, cast, get_args, get_type_hints

from ekiden.config import Config, ConfigError
from ekiden.guardrails.limits import load_tenants

PREFIX = "EKIDEN_"
CONFIG_VARIABLE = "EKIDEN_CONFIG"
DEBUG_VARIABLE = "EKIDEN_DEBUG"
_SECRETS = frozenset({"api_key", "guard_webhook", "guard_webhook_key"})
"""Some services take a page at an address that is itself the key."""
# A Kubernetes service called "ekiden" puts EKIDEN_PORT=tcp://..., EKIDEN_SERVICE_HOST and the like into every pod.
_SERVICE_LINK = re.compile(r"EKIDEN_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
ROOMS: dict[str, type] = {name: room for name, room in get_type_hints(Config).items() if name != "tenants"}

Value = str | int | float | bool | None
_TRUTH = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
_KINDS: dict[type, tuple[Callable[[str], Value], str]] = {
    str: (str, "text"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: (lambda text: _TRUTH[text.lower()], "true or false"),
}
"""For each type of a setting how text is read, and how an error names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One field of one room. ``kind`` is str, int, float or bool; ``optional`` allows None."""

    room: str
    name: str
    kind: type
    optional: bool
    default: Value
    help: str
    choices: tuple[str, ...]
    flag: str

    @property
    def key(self) -> str:
        return f"{self.room}.{self.name}"

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def positional(self) -> bool:
        """True for a setting given as an argument (``MODEL``) and not as a flag."""
        return not self.flag.startswith("--")

    def of(self, config: Config) -> Value:
        """The setting's value in a configuration."""
        return cast(Value, getattr(getattr(config, self.room), self.name))

    def shown(self, value: Value) -> Value:
        """The value as people may see it."""
        return "(set)" if self.name in _SECRETS and value else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The effective configuration and, by setting key, where each value came from."""

    config: Config
    sources: dict[str, str]
    again: "Callable[[], Resolved]" = field(compare=False)
    """Reads the same sources once more."""


def all_settings() -> tuple[Setting, ...]:
    """Every setting in the order of the rooms and fields of :class:`ekiden.config.Config`."""
    found: list[Setting] = []
    for room, room_type in ROOMS.items():
        hints = get_type_hints(room_type)
        for item in dataclasses.fields(room_type):
            kind, optional = _plain_type(hints[item.name])
            declared = {name: item.metadata[name] for name in ("help", "choices", "flag")} | {"default": item.default}
            declared["flag"] = declared["flag"] or "--" + item.name.replace("_", "-")
            found.append(Setting(room=room, name=item.name, kind=kind, optional=optional, **declared))
    names = [setting.name for setting in found]
    assert len(set(names)) == len(names), "two rooms share a field name, so their flags would clash"
    return tuple(found)


def resolve(
    flags: Mapping[str, str | bool | None], environ: Mapping[str, str], config_file: str | None = None
) -> Resolved:
    """Resolve every setting.

    ``flags`` maps setting names to what was typed (None: not given); ``config_file`` falls back to EKIDEN_CONFIG.
    Raises :class:`ConfigError`, also for what the tenants file holds.
    """
    known = {setting.name: setting for setting in all_settings()}
    _refuse_unknown_variables(environ, known.values())
    path = config_file or environ.get(CONFIG_VARIABLE) or None
    from_file = _read_file(Path(path), known) if path else {}
    sections: dict[str, dict[str, Any]] = {room: {} for room in ROOMS}
    sources: dict[str, str] = {}
    for setting in known.values():
        typed, written = flags.get(setting.name), environ.get(setting.variable)
        value: Value
        if typed is not None:
            source = setting.flag if not setting.positional else f"argument {setting.flag}"
            value = typed if isinstance(typed, bool) else _parse(setting, typed, source)
        elif written is not None:
            source = setting.variable
            value = _parse(setting, written, source)
        elif setting.name in from_file:
            source, value = str(path), from_file[setting.name]
        else:
            source, value = "default", setting.default
        sections[setting.room][setting.name], sources[setting.key] = value, source
    config = _build(sections, {name: sources[setting.key] for name, setting in known.items()})
    return Resolved(config=config, sources=sources, again=lambda: resolve(flags, environ, config_file))


def nearest(name: str, candidates: Iterable[str]) -> str:
    """``; did you mean X?`` for the closest candidate, or nothing when none is close."""
    close = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _plain_type(hint: Any) -> tuple[type, bool]:
    kinds = set(get_args(hint) or (hint,))
    (kind,) = kinds - {NoneType}  # a setting has one type
    return kind, NoneType in kinds


def _refuse_unknown_variables(environ: Mapping[str, str], known: Iterable[Setting]) -> None:
    names = {CONFIG_VARIABLE, DEBUG_VARIABLE, *(setting.variable for setting in known)}
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in names and not _SERVICE_LINK.fullmatch(variable):
            # The prefix is left out of the comparison: with it all names would look alike.
            hint = nearest(variable.removeprefix(PREFIX), [name.removeprefix(PREFIX) for name in names])
            hint = hint.replace("mean ", f"mean {PREFIX}") or "; `ekiden config show` lists the settings"
            raise ConfigError(f"environment variable {variable} is not a setting{hint}")


def _read_file(path: Path, known: Mapping[str, Setting]) -> dict[str, Value]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    values: dict[str, Value] = {}
    for room, section in document.items():
        if room not in ROOMS or not isinstance(section, dict):
            raise ConfigError(_unknown_section(path, room, known))
        names = {setting.name for setting in known.values() if setting.room == room}
        for name, value in section.items():
            if name not in names:
                elsewhere = f"; it belongs under [{known[name].room}]" if name in known else nearest(name, names)
                raise ConfigError(f"{path}: {name} under [{room}] is not a setting{elsewhere}")
            values[name] = _check_toml(known[name], value, path)
    return values


def _unknown_section(path: Path, name: str, known: Mapping[str, Setting]) -> str:
    if name in known:
        return f"{path}: {name} must stand under [{known[name].room}]"
    if name in ROOMS:
        return f"{path}: {name} must be a section, written [{name}]"
    return f"{path}: [{name}] is not a section{nearest(name, ROOMS)} (sections: {', '.join(sorted(ROOMS))})"


def _check_toml(setting: Setting, value: object, path: Path) -> Value:
    if setting.kind is float and type(value) is int:
        return float(value)
    # bool is a subclass of int, and `port = true` is a mistake.
    if type(value) is not setting.kind:
        raise ConfigError(f"{setting.name} is {value!r} in {path}; it must be {_KINDS[setting.kind][1]}")
    return value  # type: ignore[return-value]  # kind is one of the four types of Value


def is_text(given: str) -> bool:
    """False for an argument or a variable that came with bytes which the locale's encoding does not have."""
    return not any("\ud800" <= character <= "\udfff" for character in given)


def _parse(setting: Setting, text: str, source: str) -> Value:
    """The value of a flag's or variable's text. Empty text means "no value" for settings that may have none."""
    if text == "" and setting.optional:
        return None
    read, wanted = _KINDS[setting.kind]
    if not is_text(text):
        raise ConfigError(f"{setting.name} from {source} holds bytes that are no text; write it in UTF-8")
    try:
        return read(text)
    except (ValueError, KeyError):
        message = f"{setting.name} is {text!r} from {source}; it must be {wanted}"
    if re.match(r"\w+://", text):
        message += (
            " (a Kubernetes service named 'ekiden' sets this variable: use enableServiceLinks: false, or another "
            "service name)"
        )
    raise ConfigError(message)


def _build(sections: Mapping[str, dict[str, Any]], sources: Mapping[str, str]) -> Config:
    """``sources``: by the settings' names, for errors."""
    try:
        built: dict[str, Any] = {room: section(**sections[room]) for room, section in ROOMS.items()}
        return Config(**built, tenants=load_tenants(built["limits"].tenants_file))
    except ConfigError as error:
        source = sources.get(str(error).split(" ", 1)[0], "default")
        raise ConfigError(str(error) if source == "default" else f"{error} (from {source})") from None
