"""The cache of converted models: each is a graph with its weights in the chosen format, built once.

Rules:
- an entry's folder name is a digest of everything it depends on (weights, configuration, format, converter, OpenVINO),
  so an entry can become unused but never stale;
- an entry is written to a temporary folder, its manifest last, and then renamed, so that an incomplete one is never
  taken for a complete one;
- an entry whose files do not match its manifest is built again;
- if the cache cannot be written, this start goes on with the graph in memory and the next one converts again.

The cache holds the graph *before* the paged transformation, because that transformation's operations cannot be read
back from a file. Applying it takes a fraction of a second.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import openvino as ov

from ekiden.models.digests import file_digest
from ekiden.models.errors import ModelError
from ekiden.models.files import sha256_of

log = logging.getLogger(__name__)

CONVERTER_VERSION = 2
"""Increase it whenever ``graph.py`` builds something else from the same weights."""

_GRAPH, _CONSTANTS, _MANIFEST = "model.xml", "model.bin", "manifest.json"
_PARTIAL = ".partial-"
_ABANDONED_AFTER_SECONDS = 3600.0


def conversion_key(digests: dict[str, str], weights: str) -> str:
    """The name of the entry for a model with these file digests in the weight format ``weights``."""
    parts = {
        "weights": digests["weights"],
        "config": digests["config"],
        "format": weights,
        "converter": CONVERTER_VERSION,
        "openvino": ov.get_version(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def constants_path(cache_dir: Path, key: str) -> Path:
    """The file from which entry ``key`` maps its weights."""
    return cache_dir / "converted" / key / _CONSTANTS


def converted(core: ov.Core, cache_dir: Path, key: str, build: Callable[[], ov.Model]) -> ov.Model:
    """The graph of entry ``key``, read from ``cache_dir``, or built and stored there.

    Its weights are mapped from the cached file, except when the cache cannot be written.
    Raises what ``build`` raises.
    """
    entry = constants_path(cache_dir, key).parent
    found = _read(core, entry, cache_dir)
    if found is not None:
        return found
    model = build()
    try:
        _write(model, entry, cache_dir)
    except (OSError, RuntimeError) as error:
        log.warning("the converted model cannot be kept in %s: %s; the next start converts again", entry, error)
        return model
    return _read(core, entry, cache_dir) or model


def _read(core: ov.Core, entry: Path, cache_dir: Path) -> ov.Model | None:
    if not entry.is_dir():
        return None
    try:
        manifest = json.loads((entry / _MANIFEST).read_bytes())
        for name in (_GRAPH, _CONSTANTS):
            path = entry / name
            # file_digest remembers digests, so a file is read only if its size or time has changed.
            if [path.stat().st_size, file_digest(path, cache_dir)] != manifest["files"][name]:
                raise ValueError(f"{name} is not what was written")
        return core.read_model(entry / _GRAPH)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ModelError) as error:
        log.warning("the converted model in %s is damaged (%s); converting again", entry, error)
        return None


def _write(model: ov.Model, entry: Path, cache_dir: Path) -> None:
    parent = entry.parent
    parent.mkdir(parents=True, exist_ok=True)
    _sweep(parent)
    partial = Path(tempfile.mkdtemp(dir=parent, prefix=_PARTIAL))
    try:
        ov.save_model(model, partial / _GRAPH, compress_to_fp16=False)
        # Reading it back detects a file that a full disk has truncated.
        ov.Core().read_model(partial / _GRAPH)
        files = {name: [(partial / name).stat().st_size, sha256_of(partial / name)] for name in (_GRAPH, _CONSTANTS)}
        with (partial / _MANIFEST).open("w") as file:
            json.dump({"files": files}, file)
            file.flush()
            os.fsync(file.fileno())
        if entry.exists():
            shutil.rmtree(entry)
        partial.rename(entry)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sweep(parent: Path) -> None:
    """Remove the incomplete entries of killed processes."""
    for path in parent.glob(_PARTIAL + "*"):
        with contextlib.suppress(FileNotFoundError):  # another process may be sweeping too
            if time.time() - path.stat().st_mtime > _ABANDONED_AFTER_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
