"""Plans as files that people read: a profile of the package filled in, or any plan written out."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

import msgspec

import ekiden.data
from ekiden.errors import UserError
from ekiden.evaluation.plan.model import Plan
from ekiden.evidence.extras import needed

PROFILES: Final = ("quick", "full")
_COMMENTS: Final = {
    "decision": "What is to be decided, by whom, and what hangs on it.",
    "engine": "What all arms share: model, kernels and memory.",
    "objectives": "When an answer is good: whole, and in time (seconds).",
    "arms": "Ways to serve: one candidate, baselines that are tuned on dev, and others that are measured only.",
    "workloads": "Normal, hard, and misleading ones, which show a gain only if the comparison is wrong.",
    "metrics": "`result` is candidate / baseline (for shares and counts that may be 0: candidate - baseline).",
    "confirm": "The one run that counts, on data that nobody has tuned on.",
    "falsifies": "The results that would overturn the claim.",
    "predictions": "What is expected, said beforehand.",
    "stop": "When a run is given up.",
}


def profile(name: str) -> str:
    """The text of one of the package's plans. It lacks its owner."""
    if name not in PROFILES:
        raise UserError(f"profile is {name!r}; it must be one of {', '.join(PROFILES)}")
    return files(ekiden.data).joinpath("plans", f"{name}.toml").read_text(encoding="utf-8")


def filled(
    template: str, values: Mapping[str, Mapping[str, Any]], *, workloads: Mapping[str, Mapping[str, Any]] = {}
) -> str:
    """A plan's text with some fields set, comments kept; ``values`` is by section and field, ``workloads`` by the
    workload's name and field."""
    document = needed("tomlkit", "evaluate").parse(template)
    for section, fields in values.items():
        for name, value in fields.items():
            document[section][name] = value
    for table in document["workloads"] if workloads else ():
        for name, value in workloads.get(table["name"], {}).items():
            table[name] = value
    text: str = document.as_string()
    return text


def render(plan: Plan) -> str:
    """Any plan as TOML with a comment for each section; it reads back equal."""
    tomlkit = needed("tomlkit", "evaluate")
    document = tomlkit.document()
    document.add(
        tomlkit.comment("The plan of an evaluation: all that decides its verdict, fixed before its result is known.")
    )
    sections = _without_none(msgspec.to_builtins(plan))
    plain = {name: value for name, value in sections.items() if name not in _COMMENTS}
    for name, value in plain.items():  # these stand before all tables, as TOML wants it
        document.add(name, value)
    for name, comment in _COMMENTS.items():
        if (value := sections.get(name)) not in (None, [], {}):
            document.add(tomlkit.nl())
            document.add(tomlkit.comment(comment))
            document.add(name, tomlkit.item(value))
    text: str = document.as_string()
    return text


def _without_none(value: Any) -> Any:
    """TOML has no null: what is absent is left out."""
    if isinstance(value, dict):
        return {name: _without_none(item) for name, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value
