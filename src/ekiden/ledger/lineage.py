"""What made a run: versions, digests, settings and machine, as plain values in sections, and one digest over them.

Rules:
- whatever can change a token or a decision is in a section, and so in the digest; where a value came from, names,
  addresses and folders are not (``sources``, ``apart``);
- no secret is ever in it;
- what cannot be found out is None, and never a reason not to serve.
"""

import hashlib
import importlib.metadata
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from ekiden import __version__

Value = str | int | float | bool | None
Section = dict[str, Value]

_PACKAGE = Path(__file__).resolve().parents[1]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_GIT_SECONDS = 5.0


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """``code``, ``dependencies``, ``model``, ``settings``, ``backend`` and ``machine`` are what the digest covers."""

    code: Section = {}
    dependencies: Section = {}
    model: Section = {}
    settings: Section = {}
    backend: Section = {}
    machine: Section = {}
    sources: dict[str, str] = {}
    """Where each setting came from: a flag, a variable, a file, or ``default``."""
    apart: Section = {}
    """Names, addresses and folders."""

    @property
    def digest(self) -> str:
        """SHA-256 in hexadecimal."""
        return hashlib.sha256(json.dumps(self.sections(), sort_keys=True).encode()).hexdigest()

    def sections(self) -> dict[str, Section]:
        return {name: getattr(self, name) for name in SECTIONS}

    def as_object(self) -> dict[str, object]:
        """As JSON shows it."""
        return {"digest": self.digest, **self.sections(), "sources": self.sources, "apart": self.apart}


SECTIONS = tuple(name for name in Lineage.__struct_fields__ if name not in ("sources", "apart"))


class Change(NamedTuple):
    """``before`` or ``after`` is ``ABSENT`` where only one of the two has the value."""

    section: str
    name: str
    before: Value
    after: Value


ABSENT = "(absent)"


def lineage_of(value: object) -> Lineage:
    """Read back what :meth:`Lineage.as_object` wrote. Raises ``ValueError`` for anything else, altered digests too."""
    if not isinstance(value, dict) or "digest" not in value:
        raise ValueError("it holds no lineage")
    try:
        lineage = msgspec.convert({name: each for name, each in value.items() if name != "digest"}, Lineage)
    except msgspec.ValidationError as error:
        raise ValueError(f"its lineage cannot be read: {error}") from error
    if lineage.digest != value["digest"]:
        raise ValueError(f"its lineage was altered: the digest is {lineage.digest[:8]}, not {value['digest']!s:.8}")
    return lineage


def changes(before: Lineage, after: Lineage) -> list[Change]:
    """What differs, section by section; names and folders last, though they decide nothing."""
    found: list[Change] = []
    for section in (*SECTIONS, "apart"):
        old, new = getattr(before, section), getattr(after, section)
        if section == "apart" and not (old and new):
            continue  # a server tells them to administrators only
        for name in sorted(old.keys() | new.keys()):
            was, now = old.get(name, ABSENT), new.get(name, ABSENT)
            if was != now:
                found.append(Change(section, name, was, now))
    return found


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
    """The versions of all that Ekiden stands on here, and the digest of the lock file beside a checkout."""
    section: Section = dict(sorted(_installed("ekiden", {}).items()))
    checkout = _checkout()
    lock = None if checkout is None else checkout / "requirements.lock"
    section["lock"] = hashlib.sha256(lock.read_bytes()).hexdigest() if lock is not None and lock.is_file() else None
    return section


def settings_digest(values: Mapping[str, object]) -> str | None:
    """A digest for settings that are a file of their own; None for an empty one."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest() if values else None


def _installed(name: str, found: dict[str, str]) -> dict[str, str]:
    """Every distribution reached from ``name`` by what is required without an extra."""
    for required in _required(name):
        if required not in found:
            try:
                found[required] = importlib.metadata.version(required)
            except importlib.metadata.PackageNotFoundError:
                continue  # required on other systems only
            _installed(required, found)
    return found


def _required(name: str) -> Iterator[str]:
    try:
        lines = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return  # run from a source tree that was never installed
    for line in lines:
        match = _NAME.match(line)
        if match and "extra ==" not in line:
            yield match[0].lower().replace("_", "-").replace(".", "-")


def _checkout() -> Path | None:
    """The checkout that our source lies in; None for an installed package."""
    root = _PACKAGE.parents[1]
    return root if _PACKAGE.parent.name == "src" and (root / ".git").exists() else None


def _git(checkout: Path, *words: str) -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    try:
        told = subprocess.run(  # noqa: S603 - fixed words
            [git, "-C", str(checkout), *words], capture_output=True, text=True, timeout=_GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip()
