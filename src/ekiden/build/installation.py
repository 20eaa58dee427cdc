"""The parts of a lineage that are read from the installation: our code and the packages that it needs."""

import hashlib
import importlib.metadata
import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ekiden.state.lineage import Section
from ekiden.version import __version__

_PACKAGE = Path(__file__).resolve().parents[1]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_GIT_SECONDS = 5.0
Installed = tuple[Section, Section]
"""The code section and the dependency section."""


def read_installed() -> Installed:
    """Read both from the disk, which takes a tenth of a second."""
    return code_section(), dependency_section()


def code_section() -> Section:
    """Our version, a digest over the installed source, and the commit where the source is a git checkout."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(_PACKAGE)}\0".encode() + path.read_bytes())
    checkout = _checkout()
    changed = None if checkout is None else _git(checkout, "status", "--porcelain")
    return {
        "version": __version__,
        "source": digest.hexdigest(),
        "commit": None if checkout is None else _git(checkout, "rev-parse", "HEAD"),
        "dirty": None if changed is None else changed != "",
    }


def dependency_section() -> Section:
    """The versions of all packages that Ekiden needs, and the digest of the lock file of a checkout."""
    checkout = _checkout()
    lock = None if checkout is None else checkout / "requirements.lock"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest() if lock is not None and lock.is_file() else None
    return {**dict(sorted(_required_versions().items())), "lock": digest}


def settings_digest(values: Mapping[str, object]) -> str | None:
    """A digest of settings that have a file of their own; None when there are none."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest() if values else None


def _required_versions() -> dict[str, str]:
    """The versions of all distributions that ours requires, directly or not; extras are left out."""
    found: dict[str, str] = {}
    waiting = ["ekiden"]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # required on other systems only; or our own source tree, which was never installed
        found[name] = distribution.version
        required = (line for line in distribution.requires or () if "extra ==" not in line)
        waiting += [re.sub(r"[_.]", "-", match[0].lower()) for match in map(_NAME.match, required) if match]
    found.pop("ekiden", None)
    return found


def _checkout() -> Path | None:
    """The git checkout that holds our source; None for an installed package."""
    root = _PACKAGE.parents[1]
    return root if _PACKAGE.parent.name == "src" and (root / ".git").exists() else None


def _git(checkout: Path, *words: str) -> str | None:
    command = ["git", "-C", str(checkout), *words]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True)  # noqa: S603 - fixed words
    except (OSError, subprocess.SubprocessError):  # there may be no git
        return None
    return told.stdout.strip()
