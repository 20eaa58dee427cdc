"""Makes engines from loaded parts or from a configuration alone."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ekiden.build.config_sources import all_settings
from ekiden.build.config_sources import resolve as resolve_settings
from ekiden.build.core import build_core
from ekiden.build.model import describe_model, find_model, load_described, load_model
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


def build_llm(parts: EngineParts, config: Config, *, record: bool = False) -> LLM:
    """An offline engine. Prompts are computed before answers go on: nobody watches, and full batches decode fastest."""
    config = _offline(config)
    return LLM(build_engine(parts, config, record=record))


def _offline(config: Config) -> Config:
    return replace(config, limits=NO_LIMITS, tenants={}, scheduler=replace(config.scheduler, prefill_first=True))


def load_llm(model: str, settings: Mapping[str, str | int | float | bool]) -> LLM:
    """The blocking engine behind :func:`ekiden.load`. A terminal shows what is fetched, and how far each call is."""
    from ekiden.build.progress import byte_progress, progress  # here, because a server's engine has no use for it

    flags = {name: value if isinstance(value, bool) else str(value) for name, value in settings.items()}
    unknown = flags.keys() - {setting.name for setting in all_settings()}
    if unknown:
        raise ConfigError(f"{', '.join(sorted(unknown))}: no such setting; `ekiden config show` lists them")
    config = resolve_settings({**flags, "model": model}, {}).config
    with byte_progress(plain_lines=0) as report:
        files = find_model(config, report)
    parts = load_described(config, describe_model(config, files))
    bar = partial(progress, "generate", unit="prompts", plain_lines=0)
    return LLM(build_engine(parts, _offline(config)), progress=bar)
