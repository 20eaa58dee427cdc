"""The effective configuration: a frozen dataclass for each section, put together in :class:`Config`.

Each field's metadata carries its help text and its bounds. Flag, TOML key and variable follow from the field's name:
``scheduler.max_num_seqs`` is ``--max-num-seqs``, ``max_num_seqs`` under ``[scheduler]`` and ``EKIDEN_MAX_NUM_SEQS``.
A field may name another flag. `build/config_sources.py` reads the values (flag > variable > file > default). What can
be checked without a model is checked when a section is created, and raises :class:`ConfigError`.
"""

import ipaddress
import json
import re
import shlex
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ekiden.errors import UserError
from ekiden.state.controls import Controls, TenantLimits


class ConfigError(UserError, ValueError):
    """A configuration value that cannot work; the message names the setting, the value and what to do."""


def setting(
    default: Any,
    help_text: str,
    *,
    flag: str | None = None,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    over: float | None = None,
    size: bool = False,
    form: tuple[str, str] | None = None,
) -> Any:
    """A dataclass field with its help text and bounds. A value is at least ``least`` and greater than ``over``.

    ``size``: it is written like ``512MiB``. ``form``: a regular expression that it must match, and what that asks for.
    """
    metadata = {
        "help": help_text, "choices": choices, "least": least, "over": over, "flag": flag, "size": size, "form": form,
    }  # fmt: skip
    return field(default=default, metadata=metadata)


def _check(ok: bool, message: str) -> None:
    if not ok:
        raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    def __post_init__(self) -> None:
        """Check every value against its field's choices and bounds; None means "not set"."""
        for each in fields(self):
            name, value, bounds = each.name, getattr(self, each.name), each.metadata
            if value is None:
                continue
            if choices := bounds["choices"]:
                _check(value in choices, f"{name} is {value!r}; it must be one of {', '.join(choices)}")
            if (least := bounds["least"]) is not None:
                _check(value >= least, f"{name} is {value}; it must be at least {least}")
            if (over := bounds["over"]) is not None:
                _check(value > over, f"{name} is {value}; it must be over {over}")
            if bounds["size"]:
                parse_size(name, value)
            if form := bounds["form"]:
                _check(re.fullmatch(form[0], value) is not None, f"{name} is {value!r}; it must be {form[1]}")


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


BATCHING = ("continuous", "static", "static-padded", "window", "sequential")
AUTO_WEIGHTS = "auto"
WEIGHTS = (AUTO_WEIGHTS, "int8-rotated", "int8-static", "int8", "int4", "fp16", "fp32")
ORDERS = ("fcfs", "priority", "deadline", "fair")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(_Section):
    model: str = setting("smollm2-135m", "catalog name, .gguf file, model folder, or org/name on a hub", flag="MODEL")
    served_model_name: str | None = setting(None, "the id clients use; default: the model's own name")
    max_model_len: int | None = setting(None, "context limit in tokens; default: the model's own", least=2)
    weights: str = setting(
        AUTO_WEIGHTS,
        "weight format. int8-rotated: int8 of a model with rotated hidden states, as accurate as fp16; int8-static: "
        "the same with constant ranges, for busy servers on processors where it is faster; int4: groups of four bits, "
        "a GGUF file's own where it has them, for large models and few streams; auto: int8-rotated, or int8 where the "
        "processor has no integer dot products (VNNI)",
        choices=WEIGHTS,
    )
    expand_weights: str = setting(
        "auto",
        "hold int8 weights as float32: prompts compute faster where the processor has no integer dot products (VNNI), "
        "at four times the memory; auto: on such processors, when the weights take at most an eighth of the memory",
        choices=("auto", "always", "never"),
    )
    chat_template: str | None = setting(None, "file with a Jinja chat template, in place of the model's own")
    default_chat_template_kwargs: str | None = setting(
        None, "JSON object of variables for the chat template, under those of a request's chat_template_kwargs"
    )
    reasoning_parser: str = setting(
        "auto",
        "how the model marks its reasoning: think is <think>, as with Qwen3 and DeepSeek-R1; mistral is [THINK]; auto "
        "finds it in the chat template and the vocabulary",
        choices=("auto", "none", "think", "qwen3", "deepseek_r1", "mistral"),
    )
    generation_config: str | None = setting(
        None, "JSON file of default sampling values; 'none' ignores the model's own"
    )
    model_cache: str | None = setting(None, "folder of fetched and converted models; default: ~/.cache/ekiden")

    def __post_init__(self) -> None:
        _Section.__post_init__(self)
        _check(
            self.weights in (AUTO_WEIGHTS, "int8") or self.expand_weights != "always",
            f"expand_weights is always and weights {self.weights}; use --weights int8, as no others can be expanded",
        )
        given = self.default_chat_template_kwargs
        try:
            sound = isinstance(self.template_defaults, dict)
        except (ValueError, RecursionError):
            sound = False
        _check(sound, f"default_chat_template_kwargs is {given!r:.100}; it must be a JSON object")

    @property
    def template_defaults(self) -> dict[str, Any]:
        """The variables of the chat template that ``default_chat_template_kwargs`` gives."""
        values: dict[str, Any] = json.loads(self.default_chat_template_kwargs or "{}")
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig(_Section):
    kv_cache_size: str = setting("512MiB", "memory of the KV pool, such as 512MiB or 2GiB", size=True)
    swap_size: str = setting("2GiB", "memory to which the KV blocks of preempted sequences may be moved", size=True)
    block_size: int = setting(32, "tokens in a KV block (32 on CPU)", least=1)
    enable_prefix_caching: bool = setting(True, "share the KV blocks of equal prompt beginnings")
    kv_dtype: str = setting("f16", "type of keys and values in the pool", choices=("f16", "f32", "u8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig(_Section):
    max_num_seqs: int = setting(64, "sequences that run at once", least=1)
    max_num_batched_tokens: int = setting(512, "tokens in one step: all decodes plus prefill chunks")
    batching: str = setting("continuous", "when waiting requests may join", choices=BATCHING)
    scheduling_policy: str = setting("fcfs", "order in which waiting requests join", choices=ORDERS)
    batch_window_ms: float = setting(50.0, "how long --batching window waits for a full batch", least=0)
    target_itl_ms: float | None = setting(
        250.0, "prefill chunks shrink to keep the predicted step under this while others decode; 0: no limit", least=0
    )
    prefill_first: bool = setting(
        False, "finish prompts before answers go on: most tokens a second for offline batches, but streams stall"
    )
    max_concurrent_prefills: int = setting(8, "prompts that may be part-way through their prefill at once", over=0)
    max_overtakes: int = setting(16, "how often smaller requests may pass one that waits for KV blocks", least=0)
    ageing_seconds: float = setting(30.0, "waiting time that outweighs one level of priority", over=0)
    default_deadline_seconds: float = setting(
        60.0, "under `deadline`: when a request without a deadline counts as due", over=0
    )
    fair_prompt_weight: float = setting(1.0, "under `fair`: what a computed prompt token costs its tenant", over=0)
    fair_cached_weight: float = setting(
        0.1, "under `fair`: what a prompt token found in the prefix cache costs", least=0
    )
    fair_output_weight: float = setting(2.0, "under `fair`: what an output token costs", over=0)
    num_speculative_tokens: int = setting(
        16, "most tokens guessed ahead for an answer in one step; fewer where they would not pay; 0: none", least=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig(_Section):
    max_num_queued_reqs: int = setting(4096, "waiting requests before new ones are refused with 503", least=1)
    max_num_queued_tokens: int = setting(
        4_000_000, "prompt tokens waiting before new requests are refused with 503", least=1
    )
    max_queue_seconds: float | None = setting(
        None, "refuse with 503 when the predicted wait in the queue exceeds this; default: no limit"
    )
    abstain: bool = setting(
        True, "refuse at once a request whose deadline cannot be met, by the p10 of the predicted time of its end"
    )
    tenants_file: str | None = setting(None, "TOML file with weights and limits of tenants")
    request_timeout: float | None = setting(None, "seconds after which a request is ended; default: none")
    max_body_mib: float = setting(8.0, "largest HTTP body in MiB")
    body_timeout: float = setting(30.0, "seconds within which a request's body must have arrived", over=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(_Section):
    seed: int = setting(0, "seed from which requests without one draw theirs")
    determinism: str = setting(
        "strict", "strict: same request, same tokens, whatever runs beside it", choices=("strict", "relaxed")
    )
    speculation: str = setting(
        "auto",
        "guess the next tokens and check them in one step, which changes no token: ngram looks for what followed the "
        "same tokens earlier in prompt and answer; draft-model asks --draft-model; auto is both, and what a grammar "
        "leaves no choice about",
        choices=("auto", "none", "ngram", "draft-model"),
    )
    draft_model: str | None = setting(
        None, "a smaller model with the same tokenizer that guesses the next tokens: named as MODEL is"
    )
    draft_kv_cache_size: str = setting("256MiB", "memory of the draft model's own KV pool", size=True)
    threads: int | None = setting(None, "threads of the model; default: all cores this process may use")
    backend: str = setting("openvino", "what computes: openvino, or fake (no weights: tokens are hashes, for tests)")
    device: str = setting("CPU", "where the backend computes, as it names its devices; only the CPU is tested")

    def __post_init__(self) -> None:
        _Section.__post_init__(self)
        if self.draft_model is None:
            _check(
                self.speculation != "draft-model",
                "speculation is draft-model and no draft model is given: --draft-model",
            )
        else:
            _check(
                self.speculation in ("auto", "draft-model"),
                f"draft_model is {self.draft_model!r} and speculation {self.speculation}, which does not use it; leave "
                "--draft-model out, or say --speculation auto",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(_Section):
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
        _Section.__post_init__(self)
        _check(0 <= self.port <= 65535, f"port is {self.port}; it must be between 0 and 65535")
        path = unix_path(self.host)
        _check(
            path is None or (path.startswith("/") and len(path.encode()) <= MAX_SOCKET_PATH),
            f"host is {self.host!r}; write unix: and an absolute path of at most {MAX_SOCKET_PATH} bytes",
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

    @property
    def address(self) -> str | None:
        """What names the server over its restarts; None where its port is chosen at each start."""
        return f"{self.host}:{self.port}" if self.port else None

    @property
    def cors_origin_list(self) -> tuple[str, ...]:
        return tuple(origin.strip() for origin in (self.cors_origins or "").split(",") if origin.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig(_Section):
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
class GuardConfig(_Section):
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
        _Section.__post_init__(self)
        for name in ("guard_rules", "guard_webhook", "guard_command"):
            given = getattr(self, name)
            _check(
                given is None or self.guard != "off",
                f"{name} is given and guard is off; add --guard act (or watch), or leave {name} out",
            )
        try:
            empty = self.guard_command is not None and not self.command
        except ValueError as error:
            raise ConfigError(
                f"guard_command is {self.guard_command!r}: {error}; write a program and arguments"
            ) from None
        _check(not empty, "guard_command is empty; write a program and its arguments")

    @property
    def command(self) -> list[str]:
        """The program of ``guard_command`` and its arguments; empty where none is given."""
        return shlex.split(self.guard_command or "")


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
        _check(
            self.scheduler.max_num_batched_tokens >= least,
            f"max_num_batched_tokens is {self.scheduler.max_num_batched_tokens}; with max_num_seqs "
            f"{self.scheduler.max_num_seqs} and block_size {self.cache.block_size} it must be at least {least}",
        )
        _check(
            self.guard.guard == "off" or self.ledger.ledger,
            f"guard is {self.guard.guard} and ledger is false; the guard reads the ledger: leave out --no-ledger, or "
            "say --guard off",
        )


_LIMITS = [name for name in LimitsConfig.__dataclass_fields__ if name in Controls.__struct_fields__]


def controls_of(config: Config) -> Controls:
    """The controls that an engine starts with."""
    limits = {name: getattr(config.limits, name) for name in _LIMITS}
    return Controls(**asdict(config.scheduler), **limits, tenants=config.tenants)


def check_controls(controls: Controls, block_size: int) -> None:
    """Raise :class:`ConfigError` for controls that an engine could not have started with."""
    scheduler = {name: getattr(controls, name) for name in SchedulerConfig.__dataclass_fields__}
    Config(
        scheduler=SchedulerConfig(**scheduler),
        limits=LimitsConfig(**{name: getattr(controls, name) for name in _LIMITS}),
        cache=CacheConfig(block_size=block_size),
    )


_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def parse_size(name: str, text: str) -> int:
    """The bytes that ``512MiB``, ``2GiB`` or ``1000000`` means; raises :class:`ConfigError` naming the setting."""
    found = re.fullmatch(r"\s*(\d+\.?\d*(?:e\d+)?|\.\d+)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNITS:
        raise ConfigError(f"{name} is {text!r}; write a size such as 512MiB or 2GiB")
    return int(float(found[1]) * _UNITS[found[2]])
