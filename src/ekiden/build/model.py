"""A model found by its name, described, and loaded by the backend that the configuration names."""

import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ekiden.backends.registry import import_backend
from ekiden.build.draft_model import describe_draft_model, load_draft_runner
from ekiden.build.installation import read_installed
from ekiden.build.provenance import make_lineage
from ekiden.config import Config, ConfigError
from ekiden.engine.interface import ModelCard
from ekiden.engine.parts import EngineParts
from ekiden.models.chat_template import RESERVED
from ekiden.models.errors import ModelError
from ekiden.models.fetch import Progress, model_cache_dir
from ekiden.models.load import ModelDescription, describe
from ekiden.models.resolve import ModelFiles, resolve
from ekiden.sampling.structured import GrammarCompiler
from ekiden.state.lineage import Lineage
from ekiden.state.runner import RunnerInfo
from ekiden.state.sampling_params import SamplingParams
from ekiden.version import __version__

logger = logging.getLogger(__name__)


def find_model(config: Config, progress: Progress | None = None) -> ModelFiles:
    """The model's files, fetched where its name says so; ``progress`` is told how that goes. Raises ModelError."""
    return resolve(config.model.model, model_cache_dir(config.model.model_cache), progress=progress)


def describe_model(config: Config, files: ModelFiles) -> ModelDescription:
    """All of a model but its weights. Raises :class:`ModelError`; :class:`ConfigError` for a setting it rules out."""
    settings = config.model
    no_defaults = settings.generation_config == "none"
    description = describe(
        files,
        chat_template_path=_path(settings.chat_template),
        generation_config_path=None if no_defaults else _path(settings.generation_config),
    )
    if taken := sorted(RESERVED.intersection(settings.template_defaults)):
        raise ConfigError(f"default_chat_template_kwargs has {taken[0]!r}, which the server sets itself; leave it out")
    own = description.max_position_embeddings
    if settings.max_model_len is not None and settings.max_model_len > own:
        raise ConfigError(f"max_model_len is {settings.max_model_len}; {files.name} was made for at most {own}")
    if no_defaults:
        description.generation_defaults.clear()
    return description


def default_sampling(description: ModelDescription) -> SamplingParams:
    """The sampling values that the model's makers advise; ours for all others."""
    advised: dict[str, Any] = dict(description.generation_defaults)
    return SamplingParams(**advised)


def load_model(config: Config, sources: Mapping[str, str] | None = None) -> EngineParts:
    """Everything an engine needs, from the configuration alone; ``sources`` tells where its values came from."""
    return load_described(config, describe_model(config, find_model(config)), sources)


def load_described(
    config: Config, description: ModelDescription, sources: Mapping[str, str] | None = None
) -> EngineParts:
    """Load the weights. Raises :class:`ModelError`, and :class:`ConfigError` for what the backend cannot do."""
    for warning in description.warnings:
        logger.warning("%s", warning)
    backend = import_backend(config)
    draft = describe_draft_model(config, description)
    with ThreadPoolExecutor(1) as pool:  # the disk is read while the model is compiled
        reading = pool.submit(read_installed)
        runner = backend.load_runner(description, config)
        draft_runner = None if draft is None else load_draft_runner(backend, draft, config)
        lineage = make_lineage(config, description, runner.info, sources, reading.result(), draft)
    return EngineParts(
        runner=runner,
        card=model_card(config, description, runner.info, lineage),
        tokenizer=description.tokenizer,
        grammars=GrammarCompiler(description.tokenizer, runner.info.vocab_size),
        draft_runner=draft_runner,
    )


def model_card(config: Config, description: ModelDescription, info: RunnerInfo, lineage: Lineage) -> ModelCard:
    """What clients are told of the model."""
    own = min(description.max_position_embeddings, info.max_model_len)
    relaxed = "" if config.engine.determinism == "strict" else f"-{config.engine.determinism}"
    return ModelCard(
        model_id=config.model.served_model_name or description.files.name,
        max_model_len=min(config.model.max_model_len or own, own),
        vocab_size=info.vocab_size,
        block_size=info.block_size,
        num_blocks=info.num_blocks,
        hidden_size=info.hidden_size,
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
