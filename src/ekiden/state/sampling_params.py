"""How the tokens of an answer are chosen, and when it stops.

The doors fill in the defaults, so no later code needs to know which fields a client gave. The values cross the border
between the processes, so they are msgspec structs.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

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


class Thinking(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The marks between which a model may write its reasoning before an answer; at most once, and at the beginning.

    ``begun``: the prompt holds the opening mark already, so what is generated begins with reasoning.
    """

    opening: str
    closing: str
    begun: bool = False


class Grammar(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A grammar that the whole text of an answer must match. ``thinking``: reasoning may come before it."""

    kind: GrammarKind
    source: str
    thinking: Thinking | None = None


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How to choose each token and when to stop.

    ``temperature`` 0 is greedy. ``top_p`` in (0, 1], ``min_p`` in [0, 1], ``top_k`` 0 means all.
    ``seed`` None draws one at intake. ``max_tokens`` None means what is left of the context, and 0 that
    only the prompt is computed.
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
    reasoning_marks: Thinking | None = None
    """Reasoning may come first. It is no part of the answer's text: no stop string is looked for in it."""

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def edits_logits(self) -> bool:
        """True when the logits must be changed before a token is chosen."""
        return bool(self.logit_bias) or self.penalises

    @property
    def penalises(self) -> bool:
        """True when a token's logit depends on whether it came before."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0


MAX_STOPS: Final = 64
MAX_STOP_LENGTH: Final = 1024
"""Most characters of one stop string."""
MAX_STOP_CHARACTERS: Final = 4096
"""Most characters of all together: what is looked for after every token costs in proportion to it."""
MAX_ENTRIES: Final = 1024
"""Most entries of ``logit_bias`` and of ``stop_token_ids``."""


class Bound(NamedTuple):
    """The values a field may have, ``least`` and ``most`` included (``above``: ``least`` is not). None: no bound."""

    least: float | None
    most: float | None
    words: str
    above: bool = False

    def allows(self, value: float) -> bool:
        if self.least is not None and (value <= self.least if self.above else value < self.least):
            return False
        return self.most is None or value <= self.most


MOST_32: Final = 2**31 - 1
MOST_64: Final = 2**63 - 1
"""The highest signed integers of 32 and 64 bits; no message between the processes holds a higher one."""
BOUNDS: Final[Mapping[str, Bound]] = {
    "temperature": Bound(0, 100, "between 0 and 100"),
    "top_p": Bound(0, 1, "over 0 and at most 1", above=True),
    "top_k": Bound(0, MOST_32, f"0 (all tokens) or a whole number up to {MOST_32}"),
    "min_p": Bound(0, 1, "between 0 and 1"),
    "seed": Bound(-MOST_64 - 1, MOST_64, "a whole number of at most 64 bits"),
    "max_tokens": Bound(0, MOST_64, f"between 0 and {MOST_64}"),
    "min_tokens": Bound(0, MOST_64, f"between 0 and {MOST_64}"),
    "presence_penalty": Bound(-2, 2, "between -2 and 2"),
    "frequency_penalty": Bound(-2, 2, "between -2 and 2"),
    "repetition_penalty": Bound(0.01, 10, "between 0.01 and 10 (1 leaves the logits alone)"),
    "logprobs": Bound(0, 20, "between 0 and 20"),
    "prompt_logprobs": Bound(0, 20, "between 0 and 20"),
}
"""The bounds of each number: what float32 arithmetic bears with the logits of any model, and what an integer of a
message between processes can hold. The doors describe and check their fields with this table too."""
BIAS: Final = Bound(-100, 100, "between -100 and 100")


class InvalidSamplingParams(ValueError):
    """A sampling field holds a value that cannot work. The message is ``param``, ``at`` (where in it) and ``text``."""

    def __init__(self, param: str, text: str, at: str = "") -> None:
        super().__init__(f"{param}{at} {text}")
        self.param = param
        self.at = at
        self.text = text


def _require(ok: bool, param: str, value: object, rule: str, at: str = "") -> None:
    if not ok:
        raise InvalidSamplingParams(param, f"is {value!r}; it must be {rule}", at)


def check_stops(stops: Sequence[str]) -> None:
    """Raise :class:`InvalidSamplingParams` for stop strings that cannot be used."""
    if len(stops) > MAX_STOPS:
        raise InvalidSamplingParams("stop", f"has {len(stops)} entries; at most {MAX_STOPS} are allowed")
    for index, stop in enumerate(stops):
        _require(bool(stop), "stop", stop, "a string that is not empty", f"[{index}]")
        if len(stop) > MAX_STOP_LENGTH:
            text = f"has {len(stop)} characters; at most {MAX_STOP_LENGTH} are allowed"
            raise InvalidSamplingParams("stop", text, f"[{index}]")
    if (size := sum(map(len, stops))) > MAX_STOP_CHARACTERS:
        text = f"has strings of {size} characters together; at most {MAX_STOP_CHARACTERS} are allowed"
        raise InvalidSamplingParams("stop", text)


def validate(params: SamplingParams, *, vocab_size: int, eos_token_ids: frozenset[int] = frozenset()) -> None:
    """Raise :class:`InvalidSamplingParams` naming the field, the value and what is allowed.

    ``vocab_size`` is the number of ids that the model can choose from; ``eos_token_ids`` are forbidden, as stop tokens
    are, before ``min_tokens``.
    """
    for name, bound in BOUNDS.items():
        value = getattr(params, name)
        _require(value is None or bound.allows(value), name, value, bound.words)
    if params.max_tokens is not None:
        allowed = f"at most max_tokens ({params.max_tokens})"
        _require(params.min_tokens <= params.max_tokens, "min_tokens", params.min_tokens, allowed)
    check_stops(params.stop)
    for name in ("stop_token_ids", "logit_bias"):
        entries = getattr(params, name)
        if len(entries) > MAX_ENTRIES:
            raise InvalidSamplingParams(name, f"has {len(entries)} entries; at most {MAX_ENTRIES} are allowed")
    for token in params.stop_token_ids:
        _require(0 <= token < vocab_size, "stop_token_ids", token, f"a token id between 0 and {vocab_size - 1}")
    if params.min_tokens > 0 and len(eos_token_ids.union(params.stop_token_ids)) >= vocab_size:
        text = "names every token that could come, and none of them may come before min_tokens"
        raise InvalidSamplingParams("stop_token_ids", text)
    for token, bias in params.logit_bias.items():
        _require(0 <= token < vocab_size, "logit_bias", token, f"keyed by token ids between 0 and {vocab_size - 1}")
        _require(BIAS.allows(bias), "logit_bias", bias, BIAS.words, f"[{token}]")
