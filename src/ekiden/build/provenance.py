"""Puts together what made a run (:mod:`ekiden.state.lineage`) from the configuration and the loaded model."""

import os
import platform
from collections.abc import Mapping
from pathlib import PurePath

from ekiden.build.config_sources import all_settings
from ekiden.build.installation import Installed, read_installed, settings_digest
from ekiden.config import Config
from ekiden.models.load import ModelDescription
from ekiden.state.lineage import Lineage, Section
from ekiden.state.runner import RunnerInfo

_DECIDING_ROOMS = ("model", "cache", "scheduler", "limits", "engine")
_APART = frozenset(
    # The content of these files is in other sections, and the backend's section has the threads in use.
    {
        "model",
        "draft_model",
        "served_model_name",
        "model_cache",
        "chat_template",
        "generation_config",
        "tenants_file",
        "threads",
    }
)


def make_lineage(
    config: Config,
    description: ModelDescription,
    info: RunnerInfo,
    sources: Mapping[str, str] | None = None,
    installed: Installed | None = None,
    draft: ModelDescription | None = None,
) -> Lineage:
    """``sources``: where each setting came from, by its key. ``installed`` is read here where it is not given.
    ``draft`` is the draft model."""
    settings, apart = _settings(config)
    tenants = {name: str(limits) for name, limits in config.tenants.items()}
    code, dependencies = installed or read_installed()
    return Lineage(
        code=code,
        dependencies=dependencies,
        model={
            "name": description.files.name,
            "kind": str(description.files.kind),
            **description.digests,
            **{f"default_{name}": value for name, value in description.generation_defaults.items()},
            "max_model_len": info.max_model_len,
            "vocab_size": info.vocab_size,
            **({} if draft is None else {f"draft_{name}": value for name, value in draft.digests.items()}),
        },
        settings={**settings, "limits.tenants": settings_digest(tenants)},
        backend={
            "backend": info.backend,
            **info.details,
            "block_size": info.block_size,
            "num_blocks": info.num_blocks,
            "num_swap_blocks": info.num_swap_blocks,
        },
        machine={
            "machine": platform.machine(),
            "system": platform.system(),
            "python": platform.python_version(),
            "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        },
        # Clients of the server may read this, so of a file only its name is given.
        sources={key: PurePath(source).name for key, source in (sources or {}).items()},
        apart=apart,
    )


def _settings(config: Config) -> tuple[Section, Section]:
    """The settings that may change a token or a decision, and the others."""
    deciding: Section = {}
    apart: Section = {}
    for setting in all_settings():
        where = deciding if setting.room in _DECIDING_ROOMS and setting.name not in _APART else apart
        where[setting.key] = setting.shown(setting.of(config))
    return deciding, apart
