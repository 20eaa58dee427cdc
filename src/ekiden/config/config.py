"""All settings put together, and the controls that an engine starts with."""

from dataclasses import asdict, dataclass, field, fields

from ekiden.config.engine import CacheConfig, EngineConfig, LimitsConfig, ModelConfig, SchedulerConfig
from ekiden.config.server import GuardConfig, LedgerConfig, ServerConfig
from ekiden.config.setting import check
from ekiden.state.controls import Controls, TenantLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    ledger: LedgerConfig = field(default_factory=LedgerConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    tenants: dict[str, TenantLimits] = field(default_factory=dict)
    """What ``limits.tenants_file`` holds; whoever resolves the settings reads it."""

    def __post_init__(self) -> None:
        # A step must hold a decode of every sequence and a prefill chunk that does not leave one token over.
        least = self.scheduler.max_num_seqs + 2 * self.cache.block_size
        check(
            self.scheduler.max_num_batched_tokens >= least,
            f"max_num_batched_tokens is {self.scheduler.max_num_batched_tokens}; with max_num_seqs "
            f"{self.scheduler.max_num_seqs} and block_size {self.cache.block_size} it must be at least {least}",
        )
        check(
            self.guard.guard == "off" or self.ledger.ledger,
            f"guard is {self.guard.guard} and ledger is false; the guard reads the ledger: leave out --no-ledger, or "
            "say --guard off",
        )


_LIMITS = [name for name in LimitsConfig.__dataclass_fields__ if name in Controls.__struct_fields__]


def controls_of(config: Config) -> Controls:
    """The controls that an engine starts with."""
    limits = {name: getattr(config.limits, name) for name in _LIMITS}
    return Controls(**asdict(config.scheduler), **limits, tenants=config.tenants)


def meanings_of_controls() -> dict[str, str]:
    """What each control that is a setting does, in the words of its flag's help."""
    settings = [each for section in (SchedulerConfig, LimitsConfig) for each in fields(section)]
    return {each.name: each.metadata["help"] for each in settings if each.name in Controls.__struct_fields__}


def check_controls(controls: Controls, block_size: int) -> None:
    """Raise :class:`ConfigError` for controls that an engine could not have started with."""
    scheduler = {name: getattr(controls, name) for name in SchedulerConfig.__dataclass_fields__}
    Config(
        scheduler=SchedulerConfig(**scheduler),
        limits=LimitsConfig(**{name: getattr(controls, name) for name in _LIMITS}),
        cache=CacheConfig(block_size=block_size),
    )
