"""The effective configuration: a frozen dataclass for each section, put together in :class:`Config`.

- `setting.py`: what a setting is, and how it is checked.
- `engine.py`: the settings of model, KV cache, scheduler, limits and engine; `server.py`: of server, ledger and guard.
- `config.py`: all of them together, and the controls that follow from them.

`build/config_sources.py` reads the values (flag > variable > file > default). What can be checked without a model is
checked when a section is created, and raises :class:`ConfigError`.
"""

from ekiden.config.config import Config, check_controls, controls_of, meanings_of_controls
from ekiden.config.engine import (
    AUTO_WEIGHTS,
    BATCHING,
    ORDERS,
    WEIGHTS,
    CacheConfig,
    EngineConfig,
    LimitsConfig,
    ModelConfig,
    SchedulerConfig,
)
from ekiden.config.server import UNIX, GuardConfig, LedgerConfig, ServerConfig, is_loopback, unix_path
from ekiden.config.setting import ConfigError, parse_size

__all__ = [
    "AUTO_WEIGHTS",
    "BATCHING",
    "ORDERS",
    "UNIX",
    "WEIGHTS",
    "CacheConfig",
    "Config",
    "ConfigError",
    "EngineConfig",
    "GuardConfig",
    "LedgerConfig",
    "LimitsConfig",
    "ModelConfig",
    "SchedulerConfig",
    "ServerConfig",
    "check_controls",
    "controls_of",
    "is_loopback",
    "meanings_of_controls",
    "parse_size",
    "unix_path",
]
