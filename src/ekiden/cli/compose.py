"""The composition root: the only place that picks a backend.

:func:`load_model` is importable by name, because the engine's own process is told to call it.
"""

import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ekiden import __version__
from ekiden.cli.config_sources import all_settings
from ekiden.cli.config_sources import resolve as resolve_settings
from ekiden.cli.provenance import Installed, make_lineage, read_installed
from ekiden.cli.terminal import byte_progress
from ekiden.config import CacheConfig, Config, ConfigError, LimitsConfig, SchedulerConfig
from ekiden.engine.build import EngineParts
from ekiden.engine.engine_core import EngineCore, StepObserver
from ekiden.engine.interface import ModelCard
from ekiden.models.errors import ModelError
from ekiden.models.fetch import model_cache_dir
from ekiden.models.load import ModelDescription, describe
from ekiden.models.resolve import ModelFiles, resolve
from ekiden.state.runner import RunnerInfo
from ekiden.state.sampling_params import SamplingParams

if TYPE_CHECKING:
    from ekiden.backends.openvino.genai_peer import GenAIPeer
    from ekiden.engine.llm import LLM

logger = logging.getLogger(__name__)

NO_GENERATION_CONFIG = "none"
STRICT = "strict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A model found on disk and read, without its weights."""

    files: ModelFiles
    description: ModelDescription


def describe_model(config: Config) -> Described:
    """Find the model, fetching it where its name says so, and read all but its weights. Raises :class:`ModelError`."""
    return describe_files(config, find_model(config))


def find_model(config: Config) -> ModelFiles:
    """The model's files, fetched where its name says so. Raises :class:`ModelError`."""
    with byte_progress() as report:
        return resolve(config.model.model, model_cache_dir(config.model.model_cache), progress=report)


def describe_files(config: Config, files: ModelFiles) -> Described:
    """All of a model but its weights. Raises :class:`ModelError`; :class:`ConfigError` for a setting it rules out."""
    settings = config.model
    plain = settings.generation_config in (None, NO_GENERATION_CONFIG)
    description = describe(
        files,
        chat_template_path=_path(settings.chat_template),
        generation_config_path=None if plain else _path(settings.generation_config),
    )
    own = description.max_position_embeddings
    if settings.max_model_len is not None and settings.max_model_len > own:
        raise ConfigError(f"max_model_len is {settings.max_model_len}; {description.name} was made for at most {own}")
    if settings.generation_config == NO_GENERATION_CONFIG:
        description.generation_defaults.clear()
    return Described(files=files, description=description)


def default_sampling(description: ModelDescription) -> SamplingParams:
    """The sampling values that the model's makers advise, over ours."""
    advised: dict[str, Any] = dict(description.generation_defaults)
    return SamplingParams(**advised)


def load_model(config: Config, sources: Mapping[str, str] | None = None) -> EngineParts:
    """Everything an engine needs, from the configuration alone; ``sources`` tells where its values came from."""
    return load_described(config, describe_model(config), sources)


def load_described(config: Config, model: Described, sources: Mapping[str, str] | None = None) -> EngineParts:
    """Load the weights. Raises :class:`ModelError`."""
    from ekiden.backends.openvino.loader import load_runner
    from ekiden.sampling.structured import GrammarCompiler

    description = model.description
    for warning in description.warnings:
        logger.warning("%s", warning)
    with ThreadPoolExecutor(1) as pool:  # the disk is read while the model is compiled
        reading = pool.submit(read_installed)
        runner = load_runner(description, model.files, config)
        installed = reading.result()
    return EngineParts(
        runner=runner,
        card=model_card(config, description, runner.info, sources, installed),
        tokenizer=description.tokenizer,
        grammars=GrammarCompiler(description.tokenizer, runner.info.vocab_size),
    )


def model_card(
    config: Config,
    description: ModelDescription,
    info: RunnerInfo,
    sources: Mapping[str, str] | None = None,
    installed: Installed | None = None,
) -> ModelCard:
    """What the doors tell of the model."""
    own = min(description.max_position_embeddings, info.max_model_len)
    lineage = make_lineage(config, description, info, sources, installed)
    relaxed = "" if config.engine.determinism == STRICT else f"-{config.engine.determinism}"
    return ModelCard(
        model_id=config.model.served_model_name or description.name,
        max_model_len=min(config.model.max_model_len or own, own),
        vocab_size=info.vocab_size,
        block_size=info.block_size,
        num_blocks=info.num_blocks,
        created=int(time.time()),
        fingerprint=f"ekiden-{__version__}-{lineage.digest[:8]}{relaxed}",
        lineage=lineage,
        details={"backend": info.backend, **info.details},
    )


def _path(name: str | None) -> Path | None:
    if name is None:
        return None
    path = Path(name).expanduser()
    if not path.is_file():
        raise ModelError(f"{path}: no such file; check the path")
    return path


def fake_core(
    scheduler: SchedulerConfig, cache: CacheConfig, limits: LimitsConfig, observer: StepObserver
) -> EngineCore:
    """An engine over the model without weights, for the bench of the scheduler."""
    from ekiden.backends.fake import FakeRunner

    blocks = scheduler.max_num_seqs * 64
    return EngineCore(
        runner=FakeRunner(num_blocks=blocks, block_size=cache.block_size),
        scheduler=scheduler,
        cache=cache,
        limits=limits,
        clock=time.monotonic,
        observer=observer,
    )


def genai_peer(config: Config, model: Described, *, tuned: bool) -> "GenAIPeer":
    """OpenVINO GenAI on the same weights, as it comes or set as ours is. Raises :class:`ModelError` without it."""
    from ekiden.backends.openvino.genai_peer import GenAIPeer

    return GenAIPeer(model.description, model.files, config, tuned=tuned)


def load_llm(model: str, settings: Mapping[str, str | int | float | bool]) -> "LLM":
    """The blocking engine behind :func:`ekiden.load`."""
    from ekiden.engine.llm import LLM

    flags = {name: value if isinstance(value, bool) else str(value) for name, value in settings.items()}
    unknown = flags.keys() - {setting.name for setting in all_settings()}
    if unknown:
        raise ConfigError(f"{', '.join(sorted(unknown))}: no such setting; `ekiden config show` lists them")
    config = resolve_settings({**flags, "model": model}, {}).config
    return LLM(load_model(config), config)
