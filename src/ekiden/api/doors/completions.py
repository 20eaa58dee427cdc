"""``POST /v1/completions``: continues one prompt or a batch of them."""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final

from pydantic import PlainValidator, WithJsonSchema

from ekiden.api.call import Call, Texts
from ekiden.api.doors.chunks import ChunkedWriter
from ekiden.api.doors.door import Door, Job
from ekiden.api.errors import invalid, shown
from ekiden.api.fields import GENERATION_FATES, Choices, GenerationFields, check_streaming, sampling_of
from ekiden.api.generation import Child
from ekiden.api.schema_base import Fate, Within, refused, rule
from ekiden.api.sse import encode
from ekiden.api.structured import format_asked
from ekiden.api.text_output import CompletionLogprobs, Piece, TokenEntry, WholeAnswer, finish_fields, prompt_logprobs
from ekiden.state.request import TokenLogprobs
from ekiden.state.sampling_params import Bound, SamplingParams

MAX_REQUESTS: Final = 2048
"""Most answers of one call: prompts times ``n``."""


def _check_each(entries: list[Any], kind: type, words: str, at: str = "") -> None:
    wrong = next((index for index, entry in enumerate(entries) if type(entry) is not kind), None)
    if wrong is not None:
        raise rule(f"is {shown(entries[wrong])}; it must be {words}", f"{at}[{wrong}]")


def _read_prompt(value: Any) -> Texts:
    if isinstance(value, str):
        return Texts(texts=[value])
    if not isinstance(value, list):
        raise rule(f"is {shown(value)}; it must be a string, a list of strings, token ids, or a list of token-id lists")
    if not value:
        raise rule("is empty; it must hold at least one token or text")
    if isinstance(value[0], str):
        _check_each(value, str, "a string")
        return Texts(texts=value, single=False)
    if not isinstance(value[0], list):
        _check_each(value, int, "a token id")
        return Texts(token_lists=[value])
    _check_each(value, list, "a list of token ids")
    for index, tokens in enumerate(value):
        if not tokens:
            raise rule("is empty; it must hold at least one token", f"[{index}]")
        _check_each(tokens, int, "a token id", f"[{index}]")
    return Texts(token_lists=value, single=False)


_TOKENS_SCHEMA: Final = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT_SCHEMA: Final = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        _TOKENS_SCHEMA,
        {"type": "array", "items": _TOKENS_SCHEMA, "minItems": 1},
    ]
}


class CompletionRequest(GenerationFields):
    fates: ClassVar[dict[str, Fate]] = {
        **GENERATION_FATES,
        "suffix": refused("the model cannot fill in between a prompt and a suffix"),
    }

    prompt: Annotated[Texts, PlainValidator(_read_prompt), WithJsonSchema(_PROMPT_SCHEMA)]
    max_tokens: Annotated[int, Within(Bound(0, None, "at least 0"))] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Within(Bound(0, 5, "between 0 and 5"))] | None = None
    best_of: Choices | None = None


def completion_call(fields: CompletionRequest, defaults: SamplingParams) -> Call:
    include_usage = check_streaming(fields)
    echo, n, best_of = bool(fields.echo), fields.n or 1, fields.best_of
    prompt_only = fields.max_tokens == 0
    if prompt_only and not echo:
        raise invalid("max_tokens", "max_tokens is 0; it must be at least 1, or come with echo: true.")
    if best_of is not None and best_of < n:
        raise invalid("best_of", f"best_of is {best_of}; it must be at least n, which is {n}.")
    picks = best_of is not None and best_of > n
    if picks and fields.stream:
        raise invalid("best_of", f"best_of is {best_of}; what is streamed cannot be chosen from, so it must equal n.")
    # Both ``prompt_logprobs`` and ``echo`` with ``logprobs`` need the log-probabilities of the prompt.
    asked = [count for count in (fields.prompt_logprobs, fields.logprobs if echo else None) if count is not None]
    prompt = replace(fields.prompt, decoded=echo)
    each, num_prompts = best_of or n, len(prompt.texts or prompt.token_lists)
    if num_prompts * each > MAX_REQUESTS:
        param = "best_of" if best_of is not None else "n" if n > 1 else "prompt"
        total = f"{num_prompts} prompts with {each} each are {num_prompts * each} answers"
        raise invalid(param, f"{total}; at most {MAX_REQUESTS} are allowed.")
    return Call(
        model=fields.model,
        prompt=prompt,
        sampling=sampling_of(
            fields,
            defaults,
            max_tokens=1 if prompt_only else fields.max_tokens,
            logprobs=0 if picks and fields.logprobs is None else fields.logprobs,
            prompt_logprobs=max(asked, default=None),
        ),
        answer_format=format_asked(fields),
        n=each,
        priority=fields.priority or 0,
        stream=bool(fields.stream),
        include_usage=include_usage,
        prompt_only=prompt_only,
    )


def _best(answers: list[WholeAnswer], best_of: int, n: int) -> list[WholeAnswer]:
    """For each prompt the ``n`` most likely of its ``best_of`` answers, most likely first; ties keep their order.

    How likely is the sum over all its tokens, the one that ended it included.
    """
    chosen: list[WholeAnswer] = []
    for start in range(0, len(answers), best_of):
        group = answers[start : start + best_of]
        chosen += sorted(group, key=lambda answer: -answer.cumulative_logprob)[:n]
    return chosen


class CompletionWriter(ChunkedWriter):
    """The choices as one object, or as the chunks of a stream."""

    def __init__(self, fields: CompletionRequest, job: Job) -> None:
        kinds = {"kind": "text_completion", "chunk": "text_completion"}
        super().__init__(job, prefix="cmpl", **kinds, key='"text"', close="")
        self._n, self._best_of = fields.n or 1, fields.best_of or fields.n or 1
        self._echo, self._return_ids = bool(fields.echo), bool(fields.return_token_ids)
        self._num_top, self._num_prompt_top = fields.logprobs, fields.prompt_logprobs
        self._logprobs = [CompletionLogprobs(job.token_text) for _ in job.children]
        self._of_prompt: dict[int, dict[str, Any] | None] = {}

    def _prompt(self, child: Child, known: tuple[TokenLogprobs, ...] | None) -> dict[str, Any] | None:
        """The ``logprobs`` of an echoed prompt, if they were asked for."""
        if not self._echo or self._num_top is None or known is None:
            return None
        tokens, text = child.prompt.token_ids, child.prompt.text
        return self._logprobs[child.index].build_prompt(tokens, text, known, self._num_top)

    def _answer(self, child: Child, entries: list[TokenEntry]) -> dict[str, Any] | None:
        """The ``logprobs`` of a piece of an answer, if they were asked for."""
        return None if self._num_top is None else self._logprobs[child.index].build(entries)

    def whole(self, answers: list[WholeAnswer], usage: dict[str, Any]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        children = self.job.children
        if self._best_of > self._n:
            answers = _best(answers, self._best_of, self._n)
            children = [child for child in children if child.index % self._best_of < self._n]
        for index, (child, answer) in enumerate(zip(children, answers, strict=True)):
            of_prompt, logprobs = self._prompt(child, answer.prompt_logprobs), self._answer(child, answer.logprobs)
            if of_prompt is not None and logprobs is not None:
                logprobs = {key: of_prompt[key] + logprobs[key] for key in logprobs}
            choice = {
                "index": index,
                "text": (child.prompt.text if self._echo else "") + answer.text,
                "logprobs": logprobs,
                **finish_fields(answer.finish),
            }
            if self._return_ids:
                choice["token_ids"] = answer.token_ids
                choice["prompt_token_ids"] = child.prompt.token_ids
            if self._num_prompt_top is not None and answer.prompt_logprobs is not None:
                choice["prompt_logprobs"] = prompt_logprobs(
                    self.job.token_text, child.prompt.token_ids, answer.prompt_logprobs, self._num_prompt_top
                )
            choices.append(choice)
        return self.head | {"choices": choices, "usage": usage}

    def opening(self, child: Child) -> bytes:
        if not self._echo and not self._return_ids:
            return b""
        text = child.prompt.text if self._echo else ""
        logprobs = self._of_prompt.pop(child.index, None)
        choice: dict[str, Any] = {"index": child.index, "text": text, "logprobs": logprobs, "finish_reason": None}
        if self._return_ids:
            choice["prompt_token_ids"] = child.prompt.token_ids
        return self.frame.choice(choice)

    def piece(self, child: Child, piece: Piece) -> bytes:
        if piece.prompt_logprobs is not None:
            # They come with the first piece, and the opening chunk is written after it.
            self._of_prompt[child.index] = self._prompt(child, piece.prompt_logprobs)
        if piece.finish is None and not piece.logprobs and not self._return_ids:
            if not piece.text:
                return b""
            return self.grown(child.index, encode(piece.text))
        choice: dict[str, Any] = {
            "index": child.index,
            "text": piece.text,
            "logprobs": self._answer(child, piece.logprobs) if piece.logprobs else None,
            **finish_fields(piece.finish),
        }
        if self._return_ids:
            choice["token_ids"] = piece.token_ids
        return self.frame.choice(choice)


DOOR: Final = Door(
    fields=CompletionRequest, call=completion_call, writer=CompletionWriter, extended_finish_reasons=True
)
