"""The cache of converted models: each is a graph with its weights in the chosen format, built once.

Rules:
- an entry's folder name is a digest of everything it depends on (weights, configuration, format, converter, OpenVINO),
  so an entry can become unused but never stale;
- an entry is written to a temporary folder, its manifest last, and then renamed, so that an incomplete one is never
  taken for a complete one;
- an entry whose files do not match its manifest is built again;
- if the cache cannot be written, this start goes on with the graph in memory and the next one converts again;
- a process holds a shared lock on the entries that it reads, until it ends;
- when an entry is written, entries of other converters (another version of ours or of OpenVINO) are removed beyond
  :data:`OUTDATED_BYTES`, the longest unused first. One that some process holds stays.

The cache holds the graph *before* the paged transformation, because that transformation's operations cannot be read
back from a file. Applying it takes a fraction of a second.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import openvino as ov

from ekiden.models.digests import file_digest
from ekiden.models.errors import ModelError
from ekiden.models.files import sha256_of

log = logging.getLogger(__name__)

CONVERTER_VERSION = 5
"""Increase it whenever ``graph.py`` builds something else from the same weights."""

OUTDATED_BYTES: Final = 2 * 2**30
"""How much of the cache may hold what only other converters would read: enough for a step back to an older version."""

GRAPH, CONSTANTS = "model.xml", "model.bin"
_MANIFEST = "manifest.json"
_PARTIAL = ".partial-"
_ABANDONED_AFTER_SECONDS = 3600.0

_held: dict[Path, int] = {}
"""The entries that this process reads, each with the file descriptor that holds its lock."""


def conversion_entry(cache_dir: Path, digests: dict[str, str], weights: str) -> Path:
    """The folder of the model with these file digests in the weight format ``weights``; its name is the entry's key."""
    parts = {"weights": digests["weights"], "config": digests["config"], "format": weights, **_present_converter()}
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
    return cache_dir / "converted" / key


def _present_converter() -> dict[str, str | int]:
    return {"converter": CONVERTER_VERSION, "openvino": ov.get_version()}


def converted(core: ov.Core, entry: Path, build: Callable[[], ov.Model]) -> ov.Model:
    """The graph of ``entry``, read from the cache, or built and stored there.

    Its weights are mapped from the cached file, except when the cache cannot be written.
    Raises what ``build`` raises.
    """
    found = _read(core, entry)
    if found is not None:
        return found
    model = build()
    try:
        _write(core, model, entry)
    except (OSError, RuntimeError) as error:
        log.warning("the converted model cannot be kept in %s: %s; the next start converts again", entry, error)
        return model
    return _read(core, entry) or model


def _read(core: ov.Core, entry: Path) -> ov.Model | None:
    if not entry.is_dir():
        return None
    cache_dir = entry.parents[1]
    try:
        _hold(entry)
        manifest = json.loads((entry / _MANIFEST).read_bytes())
        for name in (GRAPH, CONSTANTS):
            path = entry / name
            # file_digest remembers digests, so a file is read only if its size or time has changed.
            if [path.stat().st_size, file_digest(path, cache_dir)] != manifest["files"][name]:
                raise ValueError(f"{name} is not what was written")
        return core.read_model(entry / GRAPH)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ModelError) as error:
        if entry in _held:
            os.close(_held.pop(entry))
        log.warning("the converted model in %s is damaged (%s); converting again", entry, error)
        return None


def _hold(entry: Path) -> None:
    """Lock the entry against removal, and note that it was used now."""
    if entry not in _held:
        descriptor = os.open(entry, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        _held[entry] = descriptor
    with contextlib.suppress(OSError):  # somebody else's cache, which we may only read
        os.utime(entry)


def _write(core: ov.Core, model: ov.Model, entry: Path) -> None:
    parent = entry.parent
    parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(parent)
    _remove_outdated(parent)
    partial = Path(tempfile.mkdtemp(dir=parent, prefix=_PARTIAL))
    try:
        ov.save_model(model, partial / GRAPH, compress_to_fp16=False)
        # Reading it back detects a file that a full disk has truncated.
        core.read_model(partial / GRAPH)
        files = {name: [(partial / name).stat().st_size, sha256_of(partial / name)] for name in (GRAPH, CONSTANTS)}
        with (partial / _MANIFEST).open("w") as file:
            json.dump({"files": files, "made_by": _present_converter()}, file)
            file.flush()
            os.fsync(file.fileno())
        if entry.exists():
            shutil.rmtree(entry)
        partial.rename(entry)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    """Remove the incomplete entries of killed processes."""
    for path in parent.glob(_PARTIAL + "*"):
        with contextlib.suppress(FileNotFoundError):  # another process may be removing it too
            if time.time() - path.stat().st_mtime > _ABANDONED_AFTER_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def _remove_outdated(parent: Path) -> None:
    """Remove entries of other converters, the longest unused first, until they take :data:`OUTDATED_BYTES` at most."""
    outdated: list[tuple[float, int, Path]] = []
    for entry in parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process may be removing it too
            if not entry.name.startswith(_PARTIAL) and _maker(entry) != _present_converter():
                size = sum(path.stat().st_size for path in entry.iterdir())
                outdated.append((entry.stat().st_mtime, size, entry))
    excess = sum(size for _, size, _ in outdated) - OUTDATED_BYTES
    for _, size, entry in sorted(outdated):
        if excess > 0 and _remove_unused(entry):
            excess -= size
            log.info("removed %s (%.0f MB), which another version converted", entry, size / 1e6)


def _maker(entry: Path) -> object:
    """The converter that made the entry; None where that was not noted yet, or cannot be read."""
    try:
        return json.loads((entry / _MANIFEST).read_bytes()).get("made_by")
    except (OSError, ValueError, AttributeError):
        return None


def _remove_unused(entry: Path) -> bool:
    """Remove the entry unless a process holds it."""
    descriptor = os.open(entry, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Renamed first: nobody shall find half an entry.
        removed = entry.with_name(f"{_PARTIAL}{entry.name}")
        entry.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)
    except OSError:
        return False  # in use, or not ours to remove
    finally:
        os.close(descriptor)
    return True
