"""The settings of an engine: the model, its KV pool, the scheduler with its limits, and how it computes."""

import json
from dataclasses import dataclass
from typing import Any

from ekiden.config.setting import Section, check, setting

BATCHING = ("continuous", "static", "static-padded", "window", "sequential")
AUTO_WEIGHTS = "auto"
WEIGHTS = (AUTO_WEIGHTS, "int8-rotated", "int8-static", "int8-kernels", "int8", "int4", "fp16", "fp32")
ORDERS = ("fcfs", "priority", "deadline", "fair")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(Section):
    model: str = setting("smollm2-135m", "catalog name, .gguf file, model folder, or org/name on a hub", flag="MODEL")
    served_model_name: str | None = setting(None, "the id clients use; default: the model's own name")
    max_model_len: int | None = setting(None, "context limit in tokens; default: the model's own", least=2)
    weights: str = setting(
        AUTO_WEIGHTS,
        "weight format. int8-rotated: int8 of a model with rotated hidden states, as accurate as fp16; int8-static: "
        "the same with constant ranges, for busy servers on processors where it is faster; int4: groups of four bits, "
        "a GGUF file's own where it has them, for large models and few streams; int8-kernels: int8-rotated in our own "
        "kernels, where the package ekiden-kernels is installed; auto: int8-kernels where they are installed and known "
        "to be faster, else int8-rotated, or int8 where the processor has no integer dot products (VNNI)",
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
        Section.__post_init__(self)
        check(
            self.weights in (AUTO_WEIGHTS, "int8") or self.expand_weights != "always",
            f"expand_weights is always and weights {self.weights}; use --weights int8, as no others can be expanded",
        )
        given = self.default_chat_template_kwargs
        try:
            sound = isinstance(self.template_defaults, dict)
        except (ValueError, RecursionError):
            sound = False
        check(sound, f"default_chat_template_kwargs is {given!r:.100}; it must be a JSON object")

    @property
    def template_defaults(self) -> dict[str, Any]:
        """The variables of the chat template that ``default_chat_template_kwargs`` gives."""
        values: dict[str, Any] = json.loads(self.default_chat_template_kwargs or "{}")
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig(Section):
    kv_cache_size: str = setting("512MiB", "memory of the KV pool, such as 512MiB or 2GiB", size=True)
    swap_size: str = setting("2GiB", "memory to which the KV blocks of preempted sequences may be moved", size=True)
    block_size: int = setting(32, "tokens in a KV block (32 on CPU)", least=1)
    enable_prefix_caching: bool = setting(True, "share the KV blocks of equal prompt beginnings")
    kv_dtype: str = setting("f16", "type of keys and values in the pool", choices=("f16", "f32", "u8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig(Section):
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
class LimitsConfig(Section):
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
class EngineConfig(Section):
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
        Section.__post_init__(self)
        if self.draft_model is None:
            check(
                self.speculation != "draft-model",
                "speculation is draft-model and no draft model is given: --draft-model",
            )
        else:
            check(
                self.speculation in ("auto", "draft-model"),
                f"draft_model is {self.draft_model!r} and speculation {self.speculation}, which does not use it; leave "
                "--draft-model out, or say --speculation auto",
            )
