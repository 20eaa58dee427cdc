"""Addresses and certificates, checked before a model is loaded. Imports no web framework."""

import errno
import socket
import ssl

from ekiden.config import ConfigError
from ekiden.errors import UserError


class BindError(UserError, OSError):
    """The address cannot be bound; the message says why and what to do."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises :class:`BindError`."""
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


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
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
