"""Reading, hashing and replacing single files. Reading raises :class:`ModelError`; writing raises ``OSError``."""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from ekiden.models.errors import ModelError

MAX_TEXT_BYTES = 1 << 26


def unreadable(path: Path, error: OSError) -> ModelError:
    """The error for a file that the system does not let us read."""
    return ModelError(f"{path}: cannot be read: {error.strerror or error}; check the path and its permissions")


def read_text(path: Path) -> str:
    """The content of a UTF-8 file of at most :data:`MAX_TEXT_BYTES`."""
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise ModelError(f"{path}: larger than {MAX_TEXT_BYTES >> 20} MiB; check the path")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: not a UTF-8 text; check the file") from error


def read_json(path: Path | None) -> dict[str, Any]:
    """The JSON object in a file; an empty one when ``path`` is None."""
    if path is None:
        return {}
    try:
        text = read_text(path)
        value = json.loads(text)
        if "\\ud" in text.lower():  # escapes of half characters, which no text may hold
            value = json.loads(whole_characters(json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON ({str(error)[:100]}); fetch the model again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object; fetch the model again")
    return value


def whole_characters(text: str) -> str:
    """``text`` with the halves of a character (surrogates) joined, and U+FFFD for each half without its other."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file in hexadecimal. Raises ``OSError``."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace_file(path: Path, content: bytes) -> None:
    """Write ``path`` so that a reader sees its old content or the new one, never half of it. Raises ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
