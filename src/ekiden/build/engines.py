"""Makes engines from loaded parts or from a configuration alone."""

from collections.abc import Mapping
from dataclasses import replace

from ekiden.build.config_sources import all_settings
from ekiden.build.config_sources import resolve as resolve_settings
from ekiden.build.core import build_core
from ekiden.build.model import load_model
from ekiden.build.recording import recorded_core
from ekiden.config import Config, ConfigError
from ekiden.engine.driver import NO_LIMITS
from ekiden.engine.llm import LLM
from ekiden.engine.parts import BuiltEngine, EngineParts


def build_engine(parts: EngineParts, config: Config, *, record: bool = False) -> BuiltEngine:
    """A core over ``parts``. Raises :class:`~ekiden.build.recording.LedgerError` when it cannot be recorded."""
    if not record:
        return BuiltEngine(core=build_core(parts, config), parts=parts)
    core, ledger = recorded_core(parts, config)
    return BuiltEngine(core=core, parts=parts, ledger=ledger)


def load_engine(config: Config, sources: Mapping[str, str] | None = None) -> BuiltEngine:
    """What the server's engine process runs, from the configuration alone."""
    return build_engine(load_model(config, sources), config, record=config.ledger.ledger)


def build_llm(parts: EngineParts, config: Config, *, record: bool = False, shows_progress: bool = False) -> LLM:
    """An offline engine. Prompts are computed before answers go on: nobody watches, and full batches decode fastest."""
    config = replace(config, limits=NO_LIMITS, tenants={}, scheduler=replace(config.scheduler, prefill_first=True))
    return LLM(build_engine(parts, config, record=record), shows_progress=shows_progress)


def load_llm(model: str, settings: Mapping[str, str | int | float | bool]) -> LLM:
    """The blocking engine behind :func:`ekiden.load`."""
    flags = {name: value if isinstance(value, bool) else str(value) for name, value in settings.items()}
    unknown = flags.keys() - {setting.name for setting in all_settings()}
    if unknown:
        raise ConfigError(f"{', '.join(sorted(unknown))}: no such setting; `ekiden config show` lists them")
    config = resolve_settings({**flags, "model": model}, {}).config
    return build_llm(load_model(config), config, shows_progress=True)
