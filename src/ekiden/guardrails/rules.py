"""The guard's rules, as data: which signal, from which value on, for how long, what then, and whose they are.

A file of rules is TOML:

    [objectives]                     # what users are to get; each has a default
    ttft_seconds = 5.0
    tpot_seconds = 0.25
    attainment = 0.95

    [[rules]]
    name = "queue-burns-ttft"
    signal = "predicted_ttft_p90"    # a name of SIGNALS
    threshold = 0.8                  # it fires beyond this value
    of = "ttft_seconds"              # thresholds are shares of this objective; without it they are in the signal's unit
    clear_threshold = 0.4            # it is over at or within this value; between the two nothing changes
    for_seconds = 3.0                # how long it must be beyond without a break
    actions = ["shed_newest", "page"]  # the ladder's rungs, in order
    step_seconds = 15.0              # at least so long on a rung before the next
    cooldown_seconds = 20.0          # how long it must be over before each step down
    owner = "serving on-call"

Reading is strict, and an error names all faults of the file.
"""

import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import msgspec

import ekiden.data
from ekiden.errors import UserError
from ekiden.guardrails.actions import ACTIONS
from ekiden.guardrails.readings import SIGNALS, Direction, Objectives

MOST_BYTES: Final = 2**20
MOST_RULES: Final = 64
_NAME: Final = r"^[a-z0-9][a-z0-9-]{0,63}$"


class RulesError(UserError, ValueError):
    """Rules that cannot be followed. ``faults`` has one sentence for each thing that is wrong."""

    def __init__(self, where: str, faults: list[str]) -> None:
        self.faults = faults
        told = faults[0] if len(faults) == 1 else "".join(f"\n({at}) {fault}" for at, fault in enumerate(faults, 1))
        super().__init__(f"{where}: {told}" if len(faults) == 1 else f"{where} has {len(faults)} faults:{told}")


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule; times are seconds. :attr:`limit` and :attr:`clear_limit` are in the signal's unit."""

    name: str
    signal: str
    threshold: float
    clear_threshold: float
    for_seconds: float
    actions: tuple[str, ...]
    step_seconds: float
    cooldown_seconds: float
    owner: str
    of: str | None = None
    unit: float = 1.0
    """The value of the objective ``of``; :func:`parse_rules` sets it."""

    @property
    def limit(self) -> float:
        return self.threshold * self.unit

    @property
    def clear_limit(self) -> float:
        return self.clear_threshold * self.unit

    @property
    def direction(self) -> Direction:
        return SIGNALS[self.signal].direction

    def is_over(self, value: float) -> bool:
        """Whether the value is beyond the threshold."""
        return value > self.limit if self.direction is Direction.HIGH else value < self.limit

    def is_clear(self, value: float | None) -> bool:
        """Whether the value is at or within the threshold at which the harm is over. With nothing to measure it is."""
        if value is None:
            return True
        return value <= self.clear_limit if self.direction is Direction.HIGH else value >= self.clear_limit


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    rules: tuple[Rule, ...]
    objectives: Objectives = Objectives()

    def named(self, name: str) -> Rule:
        """Raises KeyError."""
        return {rule.name: rule for rule in self.rules}[name]


def load_rules(path: str | None) -> Rules:
    """The rules of a file; without one those that the package carries. Raises :class:`RulesError`."""
    if path is None:
        return parse_rules(files(ekiden.data).joinpath("guard", "default.toml").read_text("utf-8"), "the default rules")
    where = f"guard_rules {path}"
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise RulesError(where, [f"it is over {MOST_BYTES} bytes; name a file of rules"])
        return parse_rules(content.decode(), where)
    except OSError as error:
        raise RulesError(where, [f"it cannot be read: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise RulesError(where, [f"byte {error.start} is no UTF-8; save the file as UTF-8"]) from error


def parse_rules(text: str, where: str = "the rules") -> Rules:
    """Raises :class:`RulesError` with every fault that can be found at once."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RulesError(where, [f"it is no valid TOML: {error}"]) from error
    faults = [
        f"it has a table {name!r}, which is none of objectives, rules" for name in document if name not in _TABLES
    ]
    objectives = _objectives(document.get("objectives", {}), faults)
    found = document.get("rules", [])
    if not isinstance(found, list) or not all(isinstance(table, dict) for table in found):
        faults.append("rules must be tables; begin each with [[rules]]")
        found = []
    if not 1 <= len(found) <= MOST_RULES:
        faults.append(f"it has {len(found)} rules; give between 1 and {MOST_RULES}, each under [[rules]]")
    rules = [_rule(table, f"rules[{at}]", objectives, faults) for at, table in enumerate(found[:MOST_RULES], 1)]
    names = [rule.name for rule in rules if rule is not None]
    faults += [
        f"rule {name!r} is there twice; give each its own name" for name in {n for n in names if names.count(n) > 1}
    ]
    if faults:
        raise RulesError(where, faults)
    return Rules(rules=tuple(rule for rule in rules if rule is not None), objectives=objectives)


_TABLES: Final = ("objectives", "rules")


def _objectives(table: Any, faults: list[str]) -> Objectives:
    found = Objectives()
    for name, value in _fields(table, Objectives, "objectives", faults).items():
        ok = 0 < value < (1 if name == "attainment" else float("inf"))
        if ok:
            found = msgspec.structs.replace(found, **{name: float(value)})
        else:
            most = "between 0 and 1" if name == "attainment" else "over 0"
            faults.append(f"objectives.{name} is {value!r}; it must be {most}")
    return found


def _fields(table: Any, kind: type[msgspec.Struct], where: str, faults: list[str]) -> dict[str, Any]:
    """The fields of a table that have the right type; the others are faults."""
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    types.pop("unit", None)
    if not isinstance(table, dict):
        faults.append(f"{where} must be a table")
        return {}
    sound: dict[str, Any] = {}
    for name, value in table.items():
        if name not in types:
            faults.append(f"{where} has no setting {name!r}; it may have {', '.join(types)}")
            continue
        try:
            sound[name] = msgspec.convert(value, types[name])
        except msgspec.ValidationError as error:
            faults.append(f"{where}.{name} is {value!r}: {error}")
    return sound


def _rule(table: Any, where: str, objectives: Objectives, faults: list[str]) -> Rule | None:
    before = len(faults)
    name = table.get("name") if isinstance(table, dict) else None
    where = f"rule {name!r}" if isinstance(name, str) else where
    sound = _fields(table, Rule, where, faults)
    needed = [f.name for f in msgspec.structs.fields(Rule) if f.required]
    faults += [f"{where} has no {name}; give it" for name in needed if name not in table]
    for name, check in _CHECKS.items():
        if name in sound and (message := check(sound[name])):
            faults.append(f"{where}: {name} is {sound[name]!r}; {message}")
    for action in sound.get("actions", ()):
        if action not in ACTIONS:
            faults.append(f"{where}: actions has {action!r}, which is none of {', '.join(ACTIONS)}")
    if len(faults) > before:
        return None
    unit = getattr(objectives, sound["of"]) if sound.get("of") else 1.0
    rule = Rule(**sound, unit=unit)
    if not rule.is_clear(rule.clear_limit) or rule.is_over(rule.clear_limit) or rule.limit == rule.clear_limit:
        side = "under" if rule.direction is Direction.HIGH else "over"
        faults.append(
            f"{where}: clear_threshold is {rule.clear_threshold:g} and threshold {rule.threshold:g}; for {rule.signal} "
            f"it must be {side} the threshold, so that a value between the two changes nothing"
        )
    faults += [
        f"{where}: the action {name} needs a signal that gives {what}; {rule.signal} does not"
        for name in rule.actions
        if (what := ACTIONS[name].needs) and what != "subject" and what not in SIGNALS[rule.signal].numbers
    ]
    return rule if len(faults) == before else None


def _over(least: float, *, strictly: bool = False) -> Any:
    def check(value: float) -> str | None:
        ok = value > least if strictly else value >= least
        return None if ok and value < float("inf") else f"it must be {'over' if strictly else 'at least'} {least:g}"

    return check


def _one_of(names: Any) -> Any:
    return lambda value: None if value is None or value in names else f"it must be one of {', '.join(names)}"


def _named(value: str) -> str | None:
    return None if re.fullmatch(_NAME, value) else "it must be 1 to 64 of a-z, 0-9 and -"


_CHECKS: Final[dict[str, Any]] = {
    "name": _named,
    "signal": _one_of(SIGNALS),
    "of": _one_of(("ttft_seconds", "tpot_seconds", "attainment")),
    "for_seconds": _over(0),
    "step_seconds": _over(0, strictly=True),
    "cooldown_seconds": _over(0, strictly=True),
    "threshold": _over(0),
    "clear_threshold": _over(0),
    "owner": lambda value: None if value.strip() else "name whom it belongs to",
    "actions": lambda value: None if 1 <= len(value) <= 16 else "give between 1 and 16",
}
