"""From the settings of a plan to a configuration. Variables of the environment do not count: the plan says it all."""

from collections.abc import Mapping
from typing import Any

from ekiden.build.config_sources import Resolved, resolve
from ekiden.config import Config
from ekiden.evaluation.plan.model import EngineSettings


def config_of(engine: EngineSettings, *changes: Mapping[str, Any]) -> Config:
    """The engine's settings with ``changes`` over them, later ones first; raises :class:`ekiden.config.ConfigError`."""
    return resolved(engine, *changes).config


def resolved(engine: EngineSettings, *changes: Mapping[str, Any]) -> Resolved:
    """:func:`config_of` with where each value came from, for the lineage."""
    values: dict[str, Any] = {"model": engine.model, **engine.settings}
    for change in changes:
        values |= change
    return resolve({name: _as_text(value) for name, value in values.items()}, {})


def _as_text(value: Any) -> str | bool:
    return value if isinstance(value, bool) else str(value)
