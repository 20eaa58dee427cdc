"""SHA-256 digests of files, kept in the model cache by path, size and modification time: hashing a model is slow."""

import contextlib
import hashlib
import json
from pathlib import Path

from ekiden.models.errors import ModelError
from ekiden.models.files import read_json, replace_file, sha256_of, unreadable

_FILE = "digests.json"


def file_digest(path: Path, cache_dir: Path) -> str:
    """SHA-256 of a file in hexadecimal, remembered in ``cache_dir``.

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
        digest = sha256_of(path)
    except OSError as error:
        raise unreadable(path, error) from error
    known[key] = [status.st_size, status.st_mtime_ns, digest]
    with contextlib.suppress(OSError):  # where the cache cannot be written, the next start hashes again
        replace_file(cache_dir / _FILE, json.dumps(known).encode())
    return digest


def text_digest(text: str) -> str:
    """SHA-256 of a text's UTF-8 in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def joined_digest(digests: list[str]) -> str:
    """One digest for several files in a given order. A single file keeps its own."""
    return digests[0] if len(digests) == 1 else text_digest("\n".join(digests))


def _read(cache_dir: Path) -> dict[str, object]:
    try:
        return read_json(cache_dir / _FILE)
    except ModelError:
        return {}  # nothing is remembered, or nothing readable: files are hashed again
