"""``POST /v1/completions``: continues one prompt or a batch of them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final

from ekiden.api.aligned import TokenEntry
from ekiden.api.call import Call, Texts
from ekiden.api.doors.chunks import ChunkedWriter
from ekiden.api.doors.door import Door, Job
from ekiden.api.doors.texts import TEXTS_SCHEMA, read_texts
from ekiden.api.errors import invalid
from ekiden.api.fields import Choices, GenerationFields, check_streaming, generation_sampling
from ekiden.api.generation import Child
from ekiden.api.schema_base import ReadBy, Within
from ekiden.api.shape import Fate, refused
from ekiden.api.structured import format_asked
from ekiden.api.text_output import CompletionLogprobs, Piece, finish_fields, prompt_logprobs
from ekiden.state.request import TokenLogprobs
from ekiden.state.sampling_params import BOUNDS, Bound, SamplingParams

MAX_REQUESTS: Final = 2048
"""Most answers of one call: prompts times ``n``."""


class CompletionRequest(GenerationFields):
    fates: ClassVar[Mapping[str, Fate]] = {
        "suffix": refused("the model cannot fill in between a prompt and a suffix", fine=("",)),
    }

    prompt: Annotated[Texts, ReadBy(read_texts, TEXTS_SCHEMA)]
    max_tokens: Annotated[int, Within(BOUNDS["max_tokens"])] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Within(Bound(0, 5, "between 0 and 5"))] | None = None
    best_of: Choices | None = None
    add_special_tokens: bool | None = None


def completion_call(fields: CompletionRequest, defaults: SamplingParams) -> Call:
    include_usage = check_streaming(fields)
    echo, n, best_of = bool(fields.echo), fields.n or 1, fields.best_of
    if fields.max_tokens == 0 and not echo:
        raise invalid("max_tokens", "max_tokens is 0; it must be at least 1, or come with echo: true.")
    if best_of is not None and best_of < n:
        raise invalid("best_of", f"best_of is {best_of}; it must be at least n, which is {n}.")
    picks = best_of is not None and best_of > n
    if picks and fields.stream:
        raise invalid("best_of", f"best_of is {best_of}; what is streamed cannot be chosen from, so it must equal n.")
    # Both ``prompt_logprobs`` and ``echo`` with ``logprobs`` need the log-probabilities of the prompt.
    asked = [count for count in (fields.prompt_logprobs, fields.logprobs if echo else None) if count is not None]
    prompt = replace(fields.prompt, decoded=echo, add_special=fields.add_special_tokens is not False)
    each, num_prompts = best_of or n, len(prompt.texts or prompt.token_lists)
    if num_prompts * each > MAX_REQUESTS:
        param = "best_of" if best_of is not None else "n" if n > 1 else "prompt"
        total = f"{num_prompts} prompts with {each} each are {num_prompts * each} answers"
        raise invalid(param, f"{total}; at most {MAX_REQUESTS} are allowed.")
    return Call(
        model=fields.model,
        prompt=prompt,
        sampling=generation_sampling(
            fields,
            defaults,
            fields.max_tokens,
            logprobs=0 if picks and fields.logprobs is None else fields.logprobs,
            prompt_logprobs=max(asked, default=None),
        ),
        answer_format=format_asked(fields),
        n=each,
        priority=fields.priority or 0,
        stream=bool(fields.stream),
        include_usage=include_usage,
        shows_special_tokens=fields.skip_special_tokens is False,
    )


def _best(answers: list[Piece], best_of: int, n: int) -> list[Piece]:
    """For each prompt the ``n`` most likely of its ``best_of`` answers, most likely first; ties keep their order.

    How likely is the sum over all its tokens, the one that ended it included.
    """
    chosen: list[Piece] = []
    for start in range(0, len(answers), best_of):
        group = answers[start : start + best_of]
        chosen += sorted(group, key=lambda answer: -answer.cumulative_logprob)[:n]
    return chosen


class CompletionWriter(ChunkedWriter):
    """The choices as one object, or as the chunks of a stream."""

    def __init__(self, fields: CompletionRequest, job: Job) -> None:
        kinds = {"kind": "text_completion", "chunk": "text_completion"}
        super().__init__(fields, job, prefix="cmpl", **kinds, key='"text"', close="")
        self._n, self._best_of = fields.n or 1, fields.best_of or fields.n or 1
        self._echo, self._num_top, self._num_prompt_top = bool(fields.echo), fields.logprobs, fields.prompt_logprobs
        self._logprobs = [CompletionLogprobs(job.tokenizer, fields.logprobs or 0, each.shown) for each in job.children]

    def _of_prompt(self, child: Child, known: tuple[TokenLogprobs, ...] | None) -> dict[str, Any] | None:
        """The ``logprobs`` of an echoed prompt, if they were asked for."""
        if not self._echo or self._num_top is None or known is None:
            return None
        return self._logprobs[child.index].build_prompt(child.prompt.token_ids, child.prompt.text, known)

    def _of_answer(self, child: Child, entries: list[TokenEntry] | None) -> dict[str, Any] | None:
        """The ``logprobs`` of a piece of an answer, if they were asked for."""
        return None if self._num_top is None else self._logprobs[child.index].build(entries or [])

    def whole(self, answers: list[Piece], usage: dict[str, Any]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        children = self.job.children
        if self._best_of > self._n:
            answers = _best(answers, self._best_of, self._n)
            children = [child for child in children if child.index % self._best_of < self._n]
        for index, (child, answer) in enumerate(zip(children, answers, strict=True)):
            of_prompt, logprobs = (
                self._of_prompt(child, answer.prompt_logprobs),
                self._of_answer(child, answer.logprobs),
            )
            if of_prompt is not None and logprobs is not None:
                logprobs = {key: of_prompt[key] + logprobs[key] for key in logprobs}
            body = {"text": (child.prompt.text if self._echo else "") + answer.text, "logprobs": logprobs}
            ids = {"token_ids": answer.token_ids, "prompt_token_ids": child.prompt.token_ids}
            choice = self.choice(index, body, finish_fields(answer.finish), **ids)
            if self._num_prompt_top is not None and answer.prompt_logprobs is not None:
                choice["prompt_logprobs"] = prompt_logprobs(
                    self.job.tokenizer, child.prompt.token_ids, answer.prompt_logprobs, self._num_prompt_top
                )
            choices.append(choice)
        return self.head | {"choices": choices, "usage": usage}

    def opening(self, child: Child, first: Piece) -> bytes:
        if not self._echo and not self.return_ids:
            return b""
        text, logprobs = child.prompt.text if self._echo else "", self._of_prompt(child, first.prompt_logprobs)
        body, ids = {"text": text, "logprobs": logprobs}, child.prompt.token_ids
        return self.chunk(self.choice(child.index, body, finish_fields(None), prompt_token_ids=ids))

    def piece(self, child: Child, piece: Piece) -> bytes:
        self.count(child, piece)
        if self.is_text(piece):
            return self.grown(child.index, piece.text)
        logprobs = self._of_answer(child, piece.logprobs) if piece.logprobs else None
        body = {"text": piece.text, "logprobs": logprobs}
        return self.chunk(self.choice(child.index, body, finish_fields(piece.finish), token_ids=piece.token_ids))


DOOR: Final = Door(
    fields=CompletionRequest, call=completion_call, writer=CompletionWriter, extended_finish_reasons=True
)
