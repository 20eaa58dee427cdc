"""API keys: who is calling, as which tenant, and what for.

Rules:
- a file holds SHA-256 digests only. The keys that ``ekiden keys new`` makes are 256 random bits, which no search finds,
  so a slow hash would add nothing and cost every request; a key of one's own must be as random;
- a given key is compared with every stored digest in constant time, none left out after a match;
- the file is read again on SIGHUP, and when a look at its date, made once a second at most, finds a change. A file that
  cannot be used leaves the keys as they were, and the log says why;
- keys are never logged and never part of an error; digests neither.

    [[keys]]
    name = "alice"
    hash = "sha256:..."             # from `ekiden keys new alice`
    tenant = "research"             # optional: whose limits and share; default: the name
    scopes = ["inference"]          # optional: inference (the default) and admin
"""

import hashlib
import hmac
import logging
import os
import re
import secrets
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from ekiden.config import ConfigError, ServerConfig

PREFIX: Final = "ek-"
"""The prefix of every key, by which secret scanners recognise one."""
LOOK_SECONDS: Final = 1.0

TENANT_NAME: Final = re.compile(r"[A-Za-z0-9._:@-]{1,64}")
TENANT_RULE: Final = "1 to 64 letters, digits and any of . _ : @ -"
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_FIELDS = frozenset({"name", "hash", "tenant", "scopes"})

logger = logging.getLogger(__name__)


class Scope(StrEnum):
    """``INFERENCE`` generates and counts tokens; ``ADMIN`` changes what the server does."""

    INFERENCE = "inference"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Whose key it is. ``tenant`` None leaves it to the tenant header, and then to the key's name."""

    name: str | None
    tenant: str | None = None
    scopes: frozenset[Scope] = frozenset({Scope.INFERENCE})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    digest: bytes
    principal: Principal


class KeyStore:
    """All keys of a server. Raises :class:`ConfigError` when the file cannot be used at the start.

    ``api_key`` is the one key of the settings, without a tenant and for inference only; ``path`` the file of keys.
    """

    def __init__(
        self, *, api_key: str | None = None, path: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fixed = [_Stored(digest=digest(api_key.encode()), principal=Principal(name=None))] if api_key else []
        self._path = None if path is None else Path(path).expanduser()
        self._clock = clock
        self._looked = clock()
        self._seen: tuple[int, int, int] | None = None
        self._from_file: list[_Stored] = []
        if self._path is not None:
            self._seen = _stamp(self._path)
            self._from_file = read_keys(self._path)
            if not self._from_file:
                raise ConfigError(f"api_keys_file {path} holds no keys; make one with: ekiden keys new NAME")

    @classmethod
    def of(cls, server: ServerConfig) -> "KeyStore":
        return cls(api_key=server.api_key, path=server.api_keys_file)

    @property
    def required(self) -> bool:
        """True when callers need a key. It stays true when all keys of the file are taken away."""
        return bool(self._fixed) or self._path is not None

    @property
    def may_hold_admins(self) -> bool:
        return self._path is not None

    @property
    def has_admin(self) -> bool:
        return any(Scope.ADMIN in stored.principal.scopes for stored in self._from_file)

    def find(self, key: bytes) -> Principal | None:
        """Whose key this is; None for a key that is not (or no longer) stored."""
        given = digest(key)
        found = None
        for stored in [*self._fixed, *self._from_file]:
            if hmac.compare_digest(given, stored.digest):
                found = stored.principal
        return found

    def refresh(self) -> None:
        """Check the file's date, at most once a second, and read it again if it has changed."""
        if self._path is None or self._clock() - self._looked < LOOK_SECONDS:
            return
        self._looked = self._clock()
        stamp = _stamp(self._path)
        if stamp != self._seen:
            self.reload()

    def reload(self) -> None:
        """Read the file again now."""
        if self._path is None:
            return
        self._seen = _stamp(self._path)
        try:
            self._from_file = read_keys(self._path)
        except ConfigError as error:
            logger.error("the API keys stay as they were: %s", error)
            return
        logger.info("read %d API keys from %s", len(self._from_file), self._path)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def new_key() -> tuple[str, str]:
    """A new key and the value of its ``hash`` field."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, f"sha256:{digest(key.encode()).hex()}"


def read_keys(path: Path) -> list[_Stored]:
    """The keys of a file; raises :class:`ConfigError` naming the file, the entry and what is allowed."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"api_keys_file {path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        # The parser's message is left out: it quotes the file, and the quote may be a key.
        raise ConfigError(f"api_keys_file {path} is not valid TOML") from None
    entries = table.get("keys", [])
    if set(table) - {"keys"} or not isinstance(entries, list):
        raise ConfigError(f"api_keys_file {path}: it may hold [[keys]] tables only")
    stored = [_read_key(path, index, entry) for index, entry in enumerate(entries, 1)]
    for what, values in (
        ("name", [entry.principal.name for entry in stored]),
        ("hash", [entry.digest for entry in stored]),
    ):
        if len(set(values)) < len(values):
            raise ConfigError(f"api_keys_file {path}: two keys have the same {what}; each needs its own")
    return stored


def _read_key(path: Path, index: int, entry: object) -> _Stored:
    where = f"api_keys_file {path}: key {index}"
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} must be a [[keys]] table")
    if unknown := sorted(set(entry) - _FIELDS):
        raise ConfigError(f"{where} has no setting {unknown[0]!r}; known: {', '.join(sorted(_FIELDS))}")
    name, tenant, scopes = entry.get("name"), entry.get("tenant"), entry.get("scopes", [Scope.INFERENCE])
    if not isinstance(name, str) or not TENANT_NAME.fullmatch(name):
        raise ConfigError(f"{where}: name must be {TENANT_RULE}")
    if tenant is not None and (not isinstance(tenant, str) or not TENANT_NAME.fullmatch(tenant)):
        raise ConfigError(f"{where} ({name}): tenant must be {TENANT_RULE}")
    if not isinstance(scopes, list) or not scopes or not all(scope in list(Scope) for scope in scopes):
        raise ConfigError(f"{where} ({name}): scopes must be a list of {' and '.join(Scope)}")
    # The value is not quoted: it may be the key itself, put there by mistake.
    matched = _HASH.fullmatch(entry["hash"]) if isinstance(entry.get("hash"), str) else None
    if matched is None:
        raise ConfigError(f"{where} ({name}): hash must be 'sha256:' and 64 hex digits; ekiden keys new prints one")
    principal = Principal(name=name, tenant=tenant, scopes=frozenset(Scope(scope) for scope in scopes))
    return _Stored(digest=bytes.fromhex(matched[1]), principal=principal)
