"""Addresses and certificates, checked before a model is loaded. Imports no web framework.

A socket's file (``unix:/path``) can be opened by our own user alone, so it is as closed as a loopback address. One that
a server left behind that was killed is replaced; it is deleted when its listener is closed.
"""

import contextlib
import errno
import os
import socket
import ssl
import stat
from pathlib import Path

from ekiden.config import UNIX, ConfigError, unix_path
from ekiden.errors import UserError


class BindError(UserError, OSError):
    """The address cannot be bound; the message says why and what to do."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises :class:`BindError`."""
    if (path := unix_path(host)) is not None:
        return _bind_file(Path(path))
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise BindError(f"host {host!r} is no address of this machine: {error.strerror}; use --host") from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            reason = f"port {port} on {host} is in use; stop what listens there, or choose another with --port"
        elif error.errno == errno.EACCES:
            reason = f"port {port} needs more rights than this user has; choose one over 1023 with --port"
        else:
            reason = f"{host}:{port} cannot be bound: {error.strerror}; choose others with --host and --port"
        raise BindError(reason) from None
    listener.setblocking(False)
    return listener


class _FileListener(socket.socket):
    """Deletes its file when it is closed, unless that is another's by now."""

    file: tuple[Path, int] | None = None

    def close(self) -> None:
        super().close()
        if self.file is not None:
            path, inode = self.file
            self.file = None
            with contextlib.suppress(OSError):
                if path.lstat().st_ino == inode:
                    path.unlink()


def _bind_file(path: Path) -> socket.socket:
    listener = _FileListener(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        _remove_left_behind(path)
        listener.bind(str(path))
        listener.file = path, path.lstat().st_ino
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise BindError(f"{UNIX}{path} cannot be bound: {error.strerror}; choose another path with --host") from None
    finally:
        os.umask(mask)
    listener.setblocking(False)
    return listener


def _remove_left_behind(path: Path) -> None:
    """Delete the file of a socket on which nobody listens any more. Raises OSError where something else is there."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise FileExistsError(errno.EEXIST, "there is a file of that name, which is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(1.0)
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except (TimeoutError, BlockingIOError):
            pass  # it listens, and has more callers than it can take
    raise OSError(errno.EADDRINUSE, "another server listens there")


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    if listener.family == socket.AF_UNIX:
        return f"{UNIX}{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"https://{place}" if tls else f"http://{place}"


def check_tls(certfile: str, keyfile: str | None) -> None:
    """Raise :class:`ConfigError` when https cannot be served with these PEM files of a certificate chain and its key;
    ``keyfile`` None: the key lies in ``certfile``."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile, _no_password)
    except (OSError, ValueError) as error:
        names = certfile if keyfile is None else f"{certfile}, ssl_keyfile {keyfile}"
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(f"ssl_certfile {names}: {reason}; give PEM files of a certificate and its key") from None


def _no_password() -> str:
    raise ValueError("the key is encrypted")
