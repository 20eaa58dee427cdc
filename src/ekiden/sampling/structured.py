"""Grammars: which tokens may come next in an answer, computed by ``llguidance``.

Theory of operation. A grammar is compiled once (:class:`GrammarCompiler`, cached by its text). Each sequence has a
matcher of its own (:class:`GrammarMatcher`), which sees only the tokens appended to that sequence, so that batches,
preemption and replays cannot change it. A token takes tens of microseconds.

Compiling recurses over the grammar, so it runs on a separate thread with a large stack, never on the caller's.
"""

import json
import re
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Any, Final

import llguidance
import msgspec
from llguidance import gbnf_to_lark

from ekiden.models.tokenizer import Tokenizer
from ekiden.sampling.exact_numbers import exact_numbers
from ekiden.sampling.grammar_limits import MAX_GBNF, MAX_REGEX, GrammarError, check_lark, check_schema, check_source
from ekiden.sampling.schema_faults import locate
from ekiden.sampling.thought import after_thinking, opening_tokens
from ekiden.state.sampling_params import Grammar, GrammarKind

CACHE_SIZE: Final = 128
"""Compiled grammars that are kept."""
STACK_BYTES: Final = 128 * 2**20

JSON_FORM: Final = {"whitespace_flexible": False, "key_separator": ": ?", "item_separator": ", ?"}
"""JSON on one line, with at most one space after a colon or a comma: small models may repeat white space endlessly."""

# Where only one text can follow, the model may still choose how to split it into tokens. The library would otherwise
# tokenize that text within the step, which takes time in proportion to its length.
MOST_FORCED: Final = 1024
_HEADER: Final = '%llguidance {"no_forcing": true}\n'

_PLACE: Final = re.compile(r"at (\d+)\((\d+)\): ")
_COPY: Final = re.compile(r"\n +\d+ \|")

_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")

_LIMITS: Final = llguidance.LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=100_000,
    step_max_items=50_000,
    max_lexer_states=20_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""For one grammar: at worst about 25 ms to build its lexer, and 10 ms and a few megabytes for a step."""


class GrammarCompiler:
    """Compiles and caches grammars for one vocabulary; safe to use from several threads.

    ``vocab_size`` is the width of the logits, which may be larger than the tokenizer's.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._library_tokenizer = cache(lambda: _library_tokenizer(tokenizer, vocab_size))
        self._lock = threading.Lock()
        self._thread = cache(_deep_thread)
        self._submit = lru_cache(CACHE_SIZE)(lambda grammar: self._thread().submit(self._compile, grammar))

    def submit(self, grammar: Grammar) -> "Future[llguidance.LLMatcher | GrammarError]":
        """Compile on the helper thread. A grammar's error is a result, not an exception, because results are cached."""
        with self._lock:  # so that a grammar is compiled once, on one thread
            return self._submit(grammar)

    def compile(self, grammar: Grammar) -> "GrammarMatcher":
        """Wait for :meth:`submit` and make the matcher of a sequence. Raises :class:`GrammarError`."""
        result = self.submit(grammar).result()
        if isinstance(result, GrammarError):
            raise GrammarError(str(result), result.where)  # a new one, since the cached one would collect tracebacks
        return GrammarMatcher(result)

    def _compile(self, grammar: Grammar) -> llguidance.LLMatcher | GrammarError:
        try:
            tokenizer = self._library_tokenizer()
            source = library_grammar(grammar)
            if grammar.thinking is not None:
                source = after_thinking(source, grammar.thinking, self._tokenizer, _HEADER)
            matcher = llguidance.LLMatcher(tokenizer, source, log_level=0, limits=_LIMITS)
        except GrammarError as error:
            return error.with_traceback(None)
        if matcher.is_error():
            return self._explained(grammar, _words(matcher.get_error(), grammar.kind))
        trial = matcher.deep_copy()
        trial.compute_bitmask()
        if trial.is_error() or (trial.is_stopped() and not trial.is_accepting()):
            return GrammarError("no text can match it")
        return matcher

    def _explained(self, grammar: Grammar, words: str) -> GrammarError:
        """The error of a grammar that the library refuses; for a schema with the place in it."""
        if grammar.kind not in (GrammarKind.JSON_SCHEMA, GrammarKind.LENIENT_JSON_SCHEMA):
            return GrammarError(words)
        lenient = grammar.kind is GrammarKind.LENIENT_JSON_SCHEMA

        def fault(part: Any) -> str | None:
            if isinstance(part, bool):
                return None
            if not isinstance(part, dict):
                return "a schema must be an object, true or false"
            try:
                source = f"{_HEADER}start: {json_rule(part, lenient=lenient)}"
            except GrammarError as error:
                return str(error)
            matcher = llguidance.LLMatcher(self._library_tokenizer(), source, log_level=0, limits=_LIMITS)
            return _words(matcher.get_error(), grammar.kind) if matcher.is_error() else None

        where, found = locate(json.loads(grammar.source), fault)
        return GrammarError(words if found is None else found, where)


class GrammarMatcher:
    """The grammar matcher of one sequence; implements :class:`ekiden.state.sequence.TokenRules`."""

    __slots__ = ("_beginning", "_complete", "_forces", "_matcher", "error")

    def __init__(self, beginning: llguidance.LLMatcher) -> None:
        self._beginning = beginning
        self._matcher: llguidance.LLMatcher | None = None  # copied when the sequence first runs, since many may wait
        self._complete = False
        self._forces = True
        self.error: str | None = None

    def forced(self, limit: int) -> tuple[int, ...]:
        """See the protocol: the text that can continue in only one way, as the tokenizer would split it.

        The library takes time in proportion to that text. A grammar that forces more than :data:`MOST_FORCED` bytes at
        once is not asked again.
        """
        if self._complete or not self._forces:
            return ()
        matcher = self._walk()
        self._forces = len(matcher.compute_ff_bytes()) <= MOST_FORCED
        return tuple(matcher.compute_ff_tokens()[:limit]) if self._forces else ()

    def masks(self, drafts: Sequence[int] = ()) -> tuple[bytes, ...]:
        """See the protocol. When the grammar becomes too complex to follow, only end tokens are allowed."""
        matcher = self._walk()
        masks = [matcher.compute_bitmask()]
        if matcher.is_error():
            self.error = f"the grammar could not be followed further: {_first_lines(matcher.get_error())}"
            return tuple(masks)
        taken = 0
        for draft in drafts:
            known = draft < 8 * len(masks[-1])  # a head may have more rows than the tokenizer has tokens
            if not (known and masks[-1][draft // 8] >> draft % 8 & 1) or not matcher.consume_token(draft):
                break
            taken += 1
            if matcher.is_stopped():
                break
            masks.append(matcher.compute_bitmask())
        if taken:
            matcher.rollback(taken)
        return tuple(masks)

    def advance(self, token: int) -> bool:
        if not self._complete:
            matcher = self._walk()
            if self.error is None and not matcher.consume_token(token):
                self.error = f"token {token} does not fit the grammar: {_first_lines(matcher.get_error())}"
            self._complete = self.error is not None or matcher.is_stopped()
        return self._complete

    def _walk(self) -> llguidance.LLMatcher:
        if self._matcher is None:
            self._matcher = self._beginning.deep_copy()
        return self._matcher


def library_grammar(grammar: Grammar) -> str:
    """The grammar in the library's own language. Raises :class:`GrammarError` if it exceeds the limits."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA | GrammarKind.LENIENT_JSON_SCHEMA:
            check_source(grammar.source)
            try:
                schema = json.loads(grammar.source)
            except (ValueError, RecursionError) as error:
                raise GrammarError(f"it is not valid JSON: {str(error)[:100]}") from None
            check_schema(schema)
            return f"{_HEADER}start: {json_rule(schema, lenient=grammar.kind is GrammarKind.LENIENT_JSON_SCHEMA)}"
        case GrammarKind.REGEX:
            check_source(grammar.source, MAX_REGEX)
            # \d means 0 to 9: few authors mean the digits of all scripts, and models use those when allowed.
            return f"{_HEADER}start: /{llguidance.regex_to_lark(grammar.source, use_ascii='d')}/"
        case GrammarKind.LARK:
            check_lark(grammar.source)
            return _HEADER + grammar.source
        case GrammarKind.GBNF:
            check_source(grammar.source, MAX_GBNF)
            converted = _lark_of_gbnf(grammar.source)
            check_lark(converted)
            return _HEADER + converted


def json_rule(schema: dict[str, Any], *, lenient: bool) -> str:
    """The right-hand side of a Lark rule for JSON that matches ``schema``, whose limits have been checked.

    Raises :class:`GrammarError` for a number in it that cannot be kept.
    """
    schema = exact_numbers(schema, lenient=lenient)
    leniency = {"lenient": True, "coerce_one_of": True} if lenient else {}
    return "%json " + _ENCODER.encode({**schema, "x-guidance": {**JSON_FORM, **leniency}}).decode()


def choice(texts: list[str]) -> Grammar:
    """A grammar that matches exactly one of ``texts``."""
    source = "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    return Grammar(kind=GrammarKind.LARK, source=source)


def _lark_of_gbnf(source: str) -> str:
    try:
        return str(gbnf_to_lark.gbnf_to_lark(source))
    except RecursionError:
        raise GrammarError("it is nested too deeply") from None
    except Exception as error:  # the package raises Exception itself
        raise GrammarError(_first_lines(str(error))) from error


def _words(message: str, kind: GrammarKind) -> str:
    """What the library says of a grammar, on one line. Its places are those of the grammar that it was given: they mean
    something to a client only where that is the client's own text, after the header."""
    text = _first_lines(message)
    if (found := _PLACE.match(text)) is None:
        return text
    told = text[found.end() :].removeprefix("failed to compile JSON schema: ")
    return f"line {int(found[1]) - 1}, column {found[2]}: {told}" if kind is GrammarKind.LARK else told


def _first_lines(message: str) -> str:
    """A message of the library on one line, without the copy of the grammar that follows it."""
    text = _COPY.split(message)[0].split("<non-verbose/>")[0]
    return " ".join(text.split())[:300].rstrip(" .")


class _Vocabulary:
    """The tokenizer in the form that the library expects: ``tokens`` are bytes, and special tokens never match text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = min(tokenizer.eos_token_ids, default=0)
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids | opening_tokens(tokenizer))
        self._encode = tokenizer.encode

    def __call__(self, text: str | bytes) -> list[int]:
        decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._encode(decoded, add_special_tokens=False)


def _library_tokenizer(tokenizer: Tokenizer, vocab_size: int) -> llguidance.LLTokenizer:
    ends = sorted(tokenizer.eos_token_ids)
    if not ends:
        raise GrammarError("this model names no end token, and an answer that follows a grammar must be able to end")
    vocabulary = llguidance.TokenizerWrapper(_Vocabulary(tokenizer))
    return llguidance.LLTokenizer(vocabulary, n_vocab=vocab_size, eos_token=ends)


_stack_size_lock = threading.Lock()


def _deep_thread() -> ThreadPoolExecutor:
    """A pool of one thread with a large stack. It starts now, as the stack size is set for the whole process."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="ekiden-grammar")
    with _stack_size_lock:
        before = threading.stack_size(STACK_BYTES)
        try:
            pool.submit(lambda: None).result()
        finally:
            threading.stack_size(before)
    return pool
