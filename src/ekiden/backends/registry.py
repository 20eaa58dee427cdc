"""The backends by name. A new one is a module with the functions of :class:`Backend`, and a line in :data:`BACKENDS`.

A backend's module is imported when it is asked for: most of a start's time goes into importing OpenVINO.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ekiden.config import Config, ConfigError

if TYPE_CHECKING:  # `ekiden serve` imports this module before all that is heavy
    from ekiden.models.load import ModelDescription
    from ekiden.state.runner import ModelRunner


class Backend(Protocol):
    """What a backend's module offers."""

    def devices(self) -> Sequence[str]:
        """The devices of this machine that it can compute on, as ``--device`` takes them."""
        ...

    def load_runner(self, description: "ModelDescription", config: Config) -> "ModelRunner":
        """Raises :class:`~ekiden.models.errors.ModelError`, and :class:`ConfigError` for a setting it cannot meet."""
        ...


def _openvino() -> Backend:
    from ekiden.backends.openvino import loader

    return loader


def _fake() -> Backend:
    from ekiden.backends import fake

    return fake


BACKENDS: Final[dict[str, Callable[[], Backend]]] = {"openvino": _openvino, "fake": _fake}


def check_backend(config: Config) -> None:
    """Raises :class:`ConfigError` for a backend that there is not; imports none."""
    if config.engine.backend not in BACKENDS:
        raise ConfigError(f"backend is {config.engine.backend!r}; it must be one of {', '.join(BACKENDS)}")


def import_backend(config: Config) -> Backend:
    """The module of ``config.engine.backend``. Raises :class:`ConfigError` when it has not the device asked for."""
    check_backend(config)
    backend = BACKENDS[config.engine.backend]()
    device = config.engine.device
    # Every backend has a CPU; asking OpenVINO for all devices takes a tenth of a second.
    if device != "CPU" and device not in (devices := backend.devices()):
        raise ConfigError(f"device is {device!r}; {config.engine.backend} has {', '.join(devices)} here")
    return backend
