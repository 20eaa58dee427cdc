"""What a client asked of sampling and stopping, already validated.

Values here are final: defaults are filled in and limits are resolved, so that nothing below intake ever
asks "was this given?". Messages are msgspec structs because they cross the process border (docs/decisions).
"""

from enum import StrEnum

import msgspec


class GrammarKind(StrEnum):
    """The languages in which a grammar may be written."""

    JSON_SCHEMA = "json_schema"
    LENIENT_JSON_SCHEMA = "lenient_json_schema"
    """A JSON schema; keywords that cannot be enforced are ignored."""
    REGEX = "regex"
    LARK = "lark"
    GBNF = "gbnf"
    """A grammar in the notation of llama.cpp (GBNF)."""


class Grammar(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A grammar that the whole text of an answer must match."""

    kind: GrammarKind
    source: str


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How to choose each token and when to stop.

    ``temperature`` 0 is greedy. ``top_p`` in (0, 1], ``min_p`` in [0, 1], ``top_k`` 0 means all.
    ``seed`` None draws one at intake. ``max_tokens`` None means what is left of the context.
    ``stop`` holds strings that end the text and are cut from it.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None
    """How many alternatives to report beside each chosen token; None reports nothing, 0 the chosen token only."""
    prompt_logprobs: int | None = None
    """The same for each token of the prompt but the first. Such a request takes nothing from the prefix cache."""
    grammar: Grammar | None = None
    """Only tokens that can lead to a matching text are chosen, and the answer ends when nothing can follow."""

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def edits_logits(self) -> bool:
        """True when this row's logits must be changed before a token is chosen."""
        return bool(self.logit_bias) or self.penalises

    @property
    def penalises(self) -> bool:
        """True when a token's logit depends on whether it came before."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0


class InvalidSamplingParams(ValueError):
    """A sampling field holds a value that cannot work. ``param`` names the field."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def _require(ok: bool, param: str, value: object, rule: str) -> None:
    if not ok:
        raise InvalidSamplingParams(param, f"{param} is {value!r}; it must be {rule}")


def validate(params: SamplingParams, *, vocab_size: int) -> None:
    """Raise :class:`InvalidSamplingParams` naming the field, the value and what is allowed."""
    _require(0.0 <= params.temperature <= 100.0, "temperature", params.temperature, "between 0 and 100")
    _require(0.0 < params.top_p <= 1.0, "top_p", params.top_p, "over 0 and at most 1")
    _require(params.top_k >= 0, "top_k", params.top_k, "0 (all tokens) or a positive whole number")
    _require(0.0 <= params.min_p <= 1.0, "min_p", params.min_p, "between 0 and 1")
    _require(
        params.seed is None or -(2**63) <= params.seed < 2**63, "seed", params.seed, "a whole number of at most 64 bits"
    )
    _require(params.max_tokens is None or params.max_tokens >= 1, "max_tokens", params.max_tokens, "at least 1")
    _require(params.min_tokens >= 0, "min_tokens", params.min_tokens, "at least 0")
    if params.max_tokens is not None:
        _require(
            params.min_tokens <= params.max_tokens,
            "min_tokens",
            params.min_tokens,
            f"at most max_tokens ({params.max_tokens})",
        )
    _require(all(params.stop), "stop", list(params.stop), "free of empty strings")
    for token in params.stop_token_ids:
        _require(0 <= token < vocab_size, "stop_token_ids", token, f"a token id between 0 and {vocab_size - 1}")
    _require(-2.0 <= params.presence_penalty <= 2.0, "presence_penalty", params.presence_penalty, "between -2 and 2")
    _require(-2.0 <= params.frequency_penalty <= 2.0, "frequency_penalty", params.frequency_penalty, "between -2 and 2")
    _require(
        0.0 < params.repetition_penalty <= 10.0,
        "repetition_penalty",
        params.repetition_penalty,
        "over 0 and at most 10 (1 leaves the logits alone)",
    )
    for token, bias in params.logit_bias.items():
        _require(0 <= token < vocab_size, "logit_bias", token, f"keyed by token ids between 0 and {vocab_size - 1}")
        _require(-100.0 <= bias <= 100.0, "logit_bias", bias, "between -100 and 100")
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(params, name)
        _require(count is None or 0 <= count <= 20, name, count, "between 0 and 20")
