"""SHA-256 digests of files, kept in the model cache by path, size and modification time: hashing a model is slow."""

import contextlib
from pathlib import Path

import msgspec

from ekiden.models.files import replace_file, sha256_of, unreadable

_FILE = "digests.json"


def file_digest(path: Path, cache_dir: Path) -> str:
    """SHA-256 of a file in hexadecimal, remembered in ``cache_dir``.

    Raises:
        ModelError: the file cannot be read.
    """
    known: dict[str, tuple[int, int, str]] = {}
    with contextlib.suppress(OSError, msgspec.DecodeError, ValueError):  # without a readable list, hash again
        known = msgspec.json.decode((cache_dir / _FILE).read_bytes(), type=dict[str, tuple[int, int, str]])
    try:
        status, key = path.stat(), str(path.resolve())
        size, modified, digest = known.get(key, (0, 0, ""))
        if not digest or (size, modified) != (status.st_size, status.st_mtime_ns):
            digest = sha256_of(path)
    except OSError as error:
        raise unreadable(path, error) from error
    entry = (status.st_size, status.st_mtime_ns, digest)
    if known.get(key) != entry:
        # Where the cache cannot be written, or the path is no Unicode, the next start hashes again.
        with contextlib.suppress(OSError, UnicodeEncodeError):
            replace_file(cache_dir / _FILE, msgspec.json.encode(known | {key: entry}))
    return digest
