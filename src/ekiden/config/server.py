"""The settings of a server around an engine: its address, the ledger that it keeps, and the guard."""

import ipaddress
import re
import shlex
from dataclasses import dataclass

from ekiden.config.setting import ConfigError, Section, check, setting

UNIX = "unix:"
MAX_SOCKET_PATH = 107
"""Bytes that a socket's address has room for."""


def unix_path(address: str) -> str | None:
    """The file of ``unix:/path`` or ``unix:///path``; None for another kind of address."""
    if not address.startswith(UNIX):
        return None
    path = address.removeprefix(UNIX)
    return path.removeprefix("//") if path.startswith("///") else path


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(Section):
    host: str = setting("127.0.0.1", "address to bind, or unix:/path of a socket's file that only this user can open")
    port: int = setting(8000, "port to bind; 0 picks a free one")
    api_key: str | None = setting(None, "key that clients must send as a bearer token")
    api_keys_file: str | None = setting(
        None, "TOML file of hashed keys with tenants and scopes, read again when it changes; see `ekiden keys new`"
    )
    tenant_header: str | None = setting(
        None,
        "header that names a request's tenant where its key does not, such as x-ekiden-tenant; default: none",
        form=(r"[A-Za-z0-9-]{1,64}", "a header's name, such as x-ekiden-tenant"),
    )
    cors_origins: str | None = setting(
        None, "origins whose web pages may call the server, separated by commas; default: none"
    )
    ssl_certfile: str | None = setting(None, "PEM file with the certificate chain; serves https")
    ssl_keyfile: str | None = setting(None, "PEM file with the certificate's key; default: it is in ssl_certfile")
    unknown_fields: str = setting(
        "ignore",
        "a field of a request that the server does not know: ignore it and name it in x-ekiden-ignored-fields, "
        "or refuse the request with 400",
        choices=("ignore", "refuse"),
    )
    stream_keep_alive: float = setting(
        15.0, "seconds of silence after which a stream gets a comment line, or a ping", over=0
    )
    shutdown_timeout: float = setting(30.0, "seconds that running requests get to finish at shutdown")
    evaluations_dir: str = setting("evaluation-out", "folder of evaluations whose reports the page lists")
    release_dir: str | None = setting(
        None, "folder of releases that the page lists; default: where `ekiden release` keeps them"
    )
    promotions: bool = setting(True, "put in force at the start what releases have promoted on this server")
    log_level: str = setting("info", "debug, info, warning or error", choices=("debug", "info", "warning", "error"))

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        check(0 <= self.port <= 65535, f"port is {self.port}; it must be between 0 and 65535")
        path = unix_path(self.host)
        check(
            path is None or (path.startswith("/") and len(path.encode()) <= MAX_SOCKET_PATH),
            f"host is {self.host!r}; write unix: and an absolute path of at most {MAX_SOCKET_PATH} bytes",
        )
        for origin in self.cors_origin_list:
            check(
                re.fullmatch(r"\*|https?://[^/\s]+", origin) is not None,
                f"cors_origins holds {origin!r}; write origins such as https://example.org, or * for all",
            )
        check(
            self.ssl_keyfile is None or self.ssl_certfile is not None,
            f"ssl_keyfile is {self.ssl_keyfile!r} and ssl_certfile is not given; https needs the certificate",
        )

    @property
    def address(self) -> str | None:
        """What names the server over its restarts; None where its port is chosen at each start."""
        return f"{self.host}:{self.port}" if self.port else None

    @property
    def cors_origin_list(self) -> tuple[str, ...]:
        return tuple(origin.strip() for origin in (self.cors_origins or "").split(",") if origin.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig(Section):
    ledger: bool = setting(True, "record every scheduling decision of the server for explain and replay")
    ledger_dir: str | None = setting(
        None, "folder of the recorded runs; default: $XDG_STATE_HOME/ekiden/ledger, else ~/.local/state/ekiden/ledger"
    )
    ledger_max_age_days: float = setting(14.0, "recorded runs and turns older than this are deleted", over=0)
    ledger_max_size: str = setting("4GiB", "disk space for all recorded runs; the oldest are deleted first", size=True)
    ledger_keep_prompts: bool = setting(
        False, "also store prompts and outputs, as token ids, so that a replay can run the model"
    )
    otlp_endpoint: str | None = setting(
        None,
        "send an OpenTelemetry span for each request to this OTLP/HTTP endpoint, such as http://localhost:4318",
        form=(r"https?://[^/\s]+(/\S*)?", "a URL such as http://localhost:4318"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig(Section):
    guard: str = setting(
        "off",
        "watch for harm by rules: act changes the engine's controls before it is done, watch only records and pages "
        "what it would have done",
        choices=("off", "watch", "act"),
    )
    guard_rules: str | None = setting(
        None, "TOML file of the guard's rules, read again on SIGHUP; default: those that Ekiden carries"
    )
    guard_state: str | None = setting(
        None, "file that keeps what the guard has decided over a restart; default: in the folder of the recorded runs"
    )
    guard_webhook: str | None = setting(
        None,
        "URL to which a page is sent as JSON by POST",
        form=(r"https?://[^/\s]+(/\S*)?", "a URL such as https://example.org/pages"),
    )
    guard_webhook_key: str | None = setting(None, "bearer token sent with it")
    guard_command: str | None = setting(
        None, "program that a page is given to as JSON on its standard input; split as a shell would, run without one"
    )
    two_person: bool = setting(False, "what a person must agree to needs two: keys of different names must approve it")

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        for name in ("guard_rules", "guard_webhook", "guard_command"):
            given = getattr(self, name)
            check(
                given is None or self.guard != "off",
                f"{name} is given and guard is off; add --guard act (or watch), or leave {name} out",
            )
        try:
            empty = self.guard_command is not None and not self.command
        except ValueError as error:
            raise ConfigError(
                f"guard_command is {self.guard_command!r}: {error}; write a program and arguments"
            ) from None
        check(not empty, "guard_command is empty; write a program and its arguments")

    @property
    def command(self) -> list[str]:
        """The program of ``guard_command`` and its arguments; empty where none is given."""
        return shlex.split(self.guard_command or "")
