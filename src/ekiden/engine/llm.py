"""The blocking engine: it takes a list of prompts, batches them continuously, and returns a list of completions."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Final

import msgspec

from ekiden.engine.driver import Answer, abort_all, run_batch
from ekiden.engine.parts import BuiltEngine
from ekiden.models.text import IncrementalText
from ekiden.state.request import Finish, Refusal, Request
from ekiden.state.sampling_params import SamplingParams

Prompt = str | Sequence[int]

DEFAULT_MAX_TOKENS: Final = 128
"""Most tokens of an answer for which nobody gave a limit: seconds on a processor, and some paragraphs."""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one prompt: its tokens and text and how it finished, or why it was refused."""

    index: int
    token_ids: tuple[int, ...] = ()
    text: str | None = None
    finish: Finish | None = None
    refusal: Refusal | None = None


_DEFAULT_SAMPLING = SamplingParams()

Progress = Callable[[int], AbstractContextManager[Callable[[], object]]]


def _silent(total: int) -> AbstractContextManager[Callable[[], object]]:
    return nullcontext(lambda: None)


class LLM:
    """An offline engine. May be used any number of times; each call runs its batch to the end.

    ``built`` comes from :mod:`ekiden.build` (:func:`ekiden.load` does it all); its runner is open until :meth:`close`.
    ``progress`` is given the number of prompts of a call, and what it gives is called once for each completion.
    """

    def __init__(self, built: BuiltEngine, *, progress: Progress = _silent) -> None:
        self._progress = progress
        self.core = built.core
        self._built = built
        self._tokenizer = built.parts.tokenizer
        self._ids = count()

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] = _DEFAULT_SAMPLING,
        *,
        max_tokens: int | None = DEFAULT_MAX_TOKENS,
        on_finish: Callable[[Completion], None] = lambda completion: None,
    ) -> list[Completion]:
        """Completions in the order of the prompts.

        Text prompts are encoded as they are (no chat template). ``sampling`` is one for all or one each. ``max_tokens``
        is the limit where it names none; None lets such answers go on to the end of the context.
        ``on_finish`` is called as each completion is ready, in the order in which they end: enough for a progress bar.
        Raises ValueError when the two lists differ in length, for a limit below 1, and for text prompts without a
        tokenizer.
        """
        each = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else list(sampling)
        if len(each) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts were given with {len(each)} sampling parameters")
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}; it must be at least 1, or None for the rest of the context")
        limited = msgspec.structs.replace
        each = [one if one.max_tokens is not None else limited(one, max_tokens=max_tokens) for one in each]
        requests = [self._request(prompt, params) for prompt, params in zip(prompts, each, strict=True)]
        index_of = {request.request_id: index for index, request in enumerate(requests)}
        done: dict[int, Completion] = {}

        try:
            with self._progress(len(requests)) as advance:

                def ended(answer: Answer) -> None:
                    index = index_of[answer.request.request_id]
                    done[index] = self._completion(index, answer)
                    advance()
                    on_finish(done[index])

                run_batch(self.core, requests, on_finish=ended)
        except BaseException:
            abort_all(self.core, index_of)  # interrupted: the next call starts with an empty engine
            raise
        return [done[index] for index in range(len(requests))]

    def close(self) -> None:
        self._built.close_ledger()
        self._built.parts.runner.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _request(self, prompt: Prompt, sampling: SamplingParams) -> Request:
        if isinstance(prompt, str):
            if self._tokenizer is None:
                raise ValueError("this model has no tokenizer; give prompts as lists of token ids")
            prompt = self._tokenizer.encode(prompt, add_special_tokens=True)
        return Request(
            request_id=f"offline-{next(self._ids)}",
            prompt_token_ids=tuple(prompt),
            sampling=sampling,
            arrival_time=time.monotonic(),
        )

    def _completion(self, index: int, answer: Answer) -> Completion:
        text, tokens = None, tuple(answer.token_ids)
        if self._tokenizer is not None:
            sampling = answer.request.sampling
            pieces = IncrementalText(
                self._tokenizer, sampling.stop, sampling.include_stop_str_in_output, min_tokens=sampling.min_tokens
            )
            text = "".join([*(pieces.feed(token).text for token in tokens), pieces.finish()])
        return Completion(index=index, token_ids=tokens, text=text, finish=answer.finish, refusal=answer.refusal)
