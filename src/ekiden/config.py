"""The effective configuration: one frozen dataclass a room, composed, never inherited.

Each field's metadata carries its help text; its flag, TOML key and variable follow from its name:
``scheduler.max_num_seqs`` is ``--max-num-seqs``, ``max_num_seqs`` under ``[scheduler]`` and ``EKIDEN_MAX_NUM_SEQS``.
A field may name another flag. Where values come from (flag > variable > file > default) is `cli/config_sources.py`.
Construction checks what can be checked without a model and raises :class:`ConfigError`.
"""

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from ekiden.state.controls import BATCHING, ORDERS, Controls, TenantLimits, budget_fault, fault_in


class ConfigError(ValueError):
    """A configuration value that cannot work; the message names the setting, the value and the way out."""


def setting(default: Any, help_text: str, *, flag: str | None = None, choices: tuple[str, ...] = ()) -> Any:
    """A dataclass field with the metadata that the command line and ``config show`` read."""
    metadata: dict[str, object] = {"help": help_text, "choices": choices}
    if flag is not None:
        metadata["flag"] = flag
    return field(default=default, metadata=metadata)


def _check(ok: bool, message: str) -> None:
    if not ok:
        raise ConfigError(message)


def _check_controls(room: "SchedulerConfig | LimitsConfig") -> None:
    """The bounds of what may be changed at run time too stand with the controls."""
    fault = fault_in(asdict(room))
    _check(fault is None, fault or "")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    _check(value in choices, f"{name} is {value!r}; it must be one of {', '.join(choices)}")


WEIGHTS = ("int8", "fp16", "fp32")
EXPANSION = ("auto", "always", "never")
KV_DTYPES = ("f16", "f32", "u8")
DETERMINISM = ("strict", "relaxed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    model: str = setting("smollm2-135m", "catalog name, .gguf file, model folder, or org/name on a hub", flag="MODEL")
    served_model_name: str | None = setting(None, "the id clients use; default: the model's own name")
    max_model_len: int | None = setting(None, "context limit in tokens; default: the model's own")
    weights: str = setting("int8", "weight format", choices=WEIGHTS)
    expand_weights: str = setting(
        "auto",
        "hold int8 weights as float32: prompts compute faster where the processor has no integer dot products (VNNI), "
        "at four times the memory; auto: there, when they take at most an eighth of it",
        choices=EXPANSION,
    )
    chat_template: str | None = setting(None, "file with a Jinja chat template, in place of the model's own")
    generation_config: str | None = setting(
        None, "JSON file of default sampling values; 'none' ignores the model's own"
    )
    model_cache: str | None = setting(None, "folder of fetched and converted models; default: ~/.cache/ekiden")

    def __post_init__(self) -> None:
        _check_choice("weights", self.weights, WEIGHTS)
        _check_choice("expand_weights", self.expand_weights, EXPANSION)
        _check(
            self.weights == "int8" or self.expand_weights != "always",
            f"expand_weights is always and weights {self.weights}; only int8 weights can be expanded",
        )
        _check(
            self.max_model_len is None or self.max_model_len >= 2,
            f"max_model_len is {self.max_model_len}; it must be at least 2",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    kv_cache_size: str = setting("512MiB", "memory of the KV pool, such as 512MiB or 2GiB")
    swap_size: str = setting("2GiB", "memory to which the KV blocks of preempted sequences may be moved")
    block_size: int = setting(32, "tokens in a KV block (32 on CPU)")
    enable_prefix_caching: bool = setting(True, "share the KV blocks of equal prompt beginnings")
    kv_dtype: str = setting("f16", "type of keys and values in the pool", choices=KV_DTYPES)

    def __post_init__(self) -> None:
        _check_choice("kv_dtype", self.kv_dtype, KV_DTYPES)
        _check(self.block_size >= 1, f"block_size is {self.block_size}; it must be at least 1")
        parse_size("kv_cache_size", self.kv_cache_size)
        parse_size("swap_size", self.swap_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    max_num_seqs: int = setting(64, "sequences that run at once")
    max_num_batched_tokens: int = setting(512, "tokens in one step: all decodes plus prefill chunks")
    batching: str = setting("continuous", "when waiting requests may join", choices=BATCHING)
    scheduling_policy: str = setting("fcfs", "order in which waiting requests join", choices=ORDERS)
    batch_window_ms: float = setting(50.0, "how long --batching window waits for a full batch")
    target_itl_ms: float | None = setting(
        250.0, "prefill chunks shrink to keep the predicted step under this while others decode; 0 turns it off"
    )
    prefill_first: bool = setting(
        False, "finish prompts before answers go on: most tokens a second for offline batches, but streams stall"
    )
    max_concurrent_prefills: int = setting(8, "prompts that may be part-way through their prefill at once")
    max_overtakes: int = setting(16, "how often smaller requests may pass one that waits for KV blocks")
    ageing_seconds: float = setting(30.0, "waiting time that outweighs one level of priority")
    default_deadline_seconds: float = setting(60.0, "under `deadline`: when a request without a deadline counts as due")
    fair_prompt_weight: float = setting(1.0, "under `fair`: what a computed prompt token costs its tenant")
    fair_cached_weight: float = setting(0.1, "under `fair`: what a prompt token found in the prefix cache costs")
    fair_output_weight: float = setting(2.0, "under `fair`: what an output token costs")

    def __post_init__(self) -> None:
        _check_controls(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    max_num_queued_reqs: int = setting(4096, "waiting requests before new ones are refused with 503")
    max_num_queued_tokens: int = setting(4_000_000, "prompt tokens waiting before new requests are refused with 503")
    max_queue_seconds: float | None = setting(
        None, "refuse with 503 when the predicted wait in the queue exceeds this; default: no limit"
    )
    tenants_file: str | None = setting(None, "TOML file with weights and limits of tenants")
    request_timeout: float | None = setting(None, "seconds after which a request is ended; default: none")
    max_body_mib: float = setting(8.0, "largest HTTP body in MiB")
    body_timeout: float = setting(30.0, "seconds within which a request's body must have arrived")

    def __post_init__(self) -> None:
        _check_controls(self)
        _check(self.body_timeout > 0, f"body_timeout is {self.body_timeout}; it must be over 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    seed: int = setting(0, "seed from which requests without one draw theirs")
    determinism: str = setting(
        "strict", "strict: same request, same tokens, whatever its neighbours", choices=DETERMINISM
    )
    threads: int | None = setting(None, "threads of the model; default: all cores this process may use")

    def __post_init__(self) -> None:
        _check_choice("determinism", self.determinism, DETERMINISM)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    host: str = setting("127.0.0.1", "address to bind")
    port: int = setting(8000, "port to bind; 0 picks a free one")
    api_key: str | None = setting(None, "key that clients must send as a bearer token")
    api_keys_file: str | None = setting(
        None, "TOML file of hashed keys with tenants and scopes, read again when it changes; see `ekiden keys new`"
    )
    tenant_header: str | None = setting(
        None, "header that names a request's tenant where its key does not, such as x-ekiden-tenant; default: none"
    )
    cors_origins: str | None = setting(
        None, "origins whose web pages may call the server, separated by commas; default: none"
    )
    ssl_certfile: str | None = setting(None, "PEM file with the certificate chain; serves https")
    ssl_keyfile: str | None = setting(None, "PEM file with the certificate's key; default: it is in ssl_certfile")
    stream_keep_alive: float = setting(15.0, "seconds without a token after which a stream gets a comment line")
    shutdown_timeout: float = setting(30.0, "seconds that running requests get to finish at shutdown")
    log_level: str = setting("info", "debug, info, warning or error", choices=("debug", "info", "warning", "error"))

    def __post_init__(self) -> None:
        _check(0 <= self.port <= 65535, f"port is {self.port}; it must be between 0 and 65535")
        _check(
            self.tenant_header is None or re.fullmatch(r"[A-Za-z0-9-]{1,64}", self.tenant_header) is not None,
            f"tenant_header is {self.tenant_header!r}; it must be a header's name, such as x-ekiden-tenant",
        )
        for origin in self.cors_origin_list:
            _check(
                re.fullmatch(r"\*|https?://[^/\s]+", origin) is not None,
                f"cors_origins holds {origin!r}; write origins such as https://example.org, or * for all",
            )
        _check(
            self.ssl_keyfile is None or self.ssl_certfile is not None,
            f"ssl_keyfile is {self.ssl_keyfile!r} and ssl_certfile is not given; https needs the certificate",
        )
        _check(self.stream_keep_alive > 0, f"stream_keep_alive is {self.stream_keep_alive}; it must be over 0")

    @property
    def cors_origin_list(self) -> tuple[str, ...]:
        return tuple(origin.strip() for origin in (self.cors_origins or "").split(",") if origin.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig:
    ledger: bool = setting(True, "record every scheduling decision of the server for explain and replay")
    ledger_dir: str | None = setting(
        None, "folder of the recorded runs; default: $XDG_STATE_HOME/ekiden/ledger, else ~/.local/state/ekiden/ledger"
    )
    ledger_max_age_days: float = setting(14.0, "recorded runs and turns older than this are deleted")
    ledger_max_size: str = setting("4GiB", "disk space for all recorded runs; the oldest are deleted first")
    ledger_keep_prompts: bool = setting(
        False, "also store prompts and outputs, as token ids, so that a replay can run the model"
    )
    otlp_endpoint: str | None = setting(
        None, "send an OpenTelemetry span for each request to this OTLP/HTTP endpoint, such as http://localhost:4318"
    )

    def __post_init__(self) -> None:
        _check(self.ledger_max_age_days > 0, f"ledger_max_age_days is {self.ledger_max_age_days}; it must be over 0")
        parse_size("ledger_max_size", self.ledger_max_size)
        _check(
            self.otlp_endpoint is None or re.fullmatch(r"https?://[^/\s]+(/\S*)?", self.otlp_endpoint) is not None,
            f"otlp_endpoint is {self.otlp_endpoint!r}; it must be a URL such as http://localhost:4318",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    ledger: LedgerConfig = field(default_factory=LedgerConfig)

    tenants: dict[str, TenantLimits] = field(default_factory=dict)
    """What ``limits.tenants_file`` holds; whoever resolves the settings reads it."""

    def __post_init__(self) -> None:
        fault = budget_fault(self.scheduler.max_num_batched_tokens, self.scheduler.max_num_seqs, self.cache.block_size)
        _check(fault is None, fault or "")


def controls_of(config: Config) -> Controls:
    """The controls that an engine starts with."""
    limits = config.limits
    return Controls(
        **asdict(config.scheduler),
        max_num_queued_reqs=limits.max_num_queued_reqs,
        max_num_queued_tokens=limits.max_num_queued_tokens,
        max_queue_seconds=limits.max_queue_seconds,
        tenants=config.tenants,
    )


_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def parse_size(name: str, text: str) -> int:
    """Bytes from ``512MiB``, ``2GiB``, ``1000000``; raises :class:`ConfigError` naming the setting."""
    digits = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = text.strip()[len(digits) :].strip().lower()
    try:
        number = float(digits)
    except ValueError:
        number = -1.0
    _check(
        number >= 0 and unit in _UNITS and number < float("inf"),
        f"{name} is {text!r}; write a size such as 512MiB or 2GiB",
    )
    return int(number * _UNITS[unit])
