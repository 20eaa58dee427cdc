"""SHA-256 of model files, computed once: a second start looks the answer up by path, size and modification time."""

import hashlib
import json
import os
import tempfile
from pathlib import Path

from ekiden.models.errors import ModelError

_FILE = "digests.json"


def file_digest(path: Path, cache_dir: Path) -> str:
    """SHA-256 of a file in hexadecimal; remembered in ``cache_dir``.

    Raises:
        ModelError: the file cannot be read.
    """
    try:
        status = path.stat()
        key = str(path.resolve())
        known = _read(cache_dir)
        entry = known.get(key)
        if isinstance(entry, list) and entry[:2] == [status.st_size, status.st_mtime_ns] and len(entry) == 3:
            return str(entry[2])
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}; check the path and its rights") from error
    known[key] = [status.st_size, status.st_mtime_ns, digest]
    _write(cache_dir, known)
    return digest


def text_digest(text: str) -> str:
    """SHA-256 of a text's UTF-8 in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def joined_digest(digests: list[str]) -> str:
    """One digest for several files in a given order; a single file keeps its own."""
    return digests[0] if len(digests) == 1 else text_digest("\n".join(digests))


def _read(cache_dir: Path) -> dict[str, object]:
    try:
        known = json.loads((cache_dir / _FILE).read_bytes())
    except (OSError, ValueError):
        return {}  # nothing remembered, or nothing readable: hashing again is right, only slower
    return known if isinstance(known, dict) else {}


def _write(cache_dir: Path, known: dict[str, object]) -> None:
    """Replace the memory whole; a reader never sees half of it. Two writers at once lose an entry at most."""
    temporary: str | None = None
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=cache_dir, prefix=_FILE)
        with os.fdopen(handle, "w") as file:
            json.dump(known, file)
        os.replace(temporary, cache_dir / _FILE)
    except OSError:
        # A cache that cannot be written (read-only, full) costs the next start a second, and nothing else.
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
