"""A server at an address as a subject: ours or any other that speaks the OpenAI completions API.

The client asks for answers of exactly the offered length (:func:`ekiden.evaluation.load.requests.exact_sampling`). So
the server must know, in ``/v1/completions``:

- streaming with ``stream_options.include_usage``, ``temperature`` 0, and prompts as token ids (or as text, where the
  caller's ``prompts`` gives texts);
- ``ignore_eos``, where the stated limit is the length;
- ``min_tokens`` and ``logit_bias``, and a missing ``max_tokens`` as "no limit", where it is not.

An answer of another length is ``wrong_length``, as far as the server tells its usage. Without these fields a server can
still be measured on workloads whose limits are the lengths, if its answers do not end by themselves.

A priority other than 0 goes into ``priority``, a deadline into ``x-request-deadline-ms`` (it counts from the server's
receipt) and the tenant into a header that our server takes with ``--tenant-header``; others neglect them.

A server cannot be made empty from here: what its prefix cache holds of an earlier run of the same workload stays. Give
each run a workload of its own block, or start the server anew, or without such a cache. The warm-up's prompts are in no
workload.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import uvloop

from ekiden.evaluation.load.lag import longest_good, void_reason
from ekiden.evaluation.load.loops import LoadRun, closed_loop, completion_request, open_loop
from ekiden.evaluation.load.requests import WRONG_LENGTH, answered, exact_sampling
from ekiden.evaluation.load.streamed_answer import read_answer
from ekiden.evaluation.load.target import Target
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.results import Answered, ArmRun
from ekiden.evaluation.workloads.offer import Offer, Workload
from ekiden.evaluation.workloads.synthetic import synthetic_prompts
from ekiden.measure.figures import RequestRecord

T = TypeVar("T")
ServerPrompts = Callable[[Workload], Sequence[Sequence[int] | str]]
"""The prompt of each offer, in their order: token ids of the server's model, or texts."""
TENANT_HEADER = "x-ekiden-tenant"
DEADLINE_HEADER = "x-request-deadline-ms"
WARM_UP_REQUESTS = 4
WARM_UP_PROMPT, WARM_UP_OUTPUT = 96, 16
_WARM_UP_SEED = 2**31 - 1
_REFUSED = frozenset({"http_400", "http_403", "http_408", "http_413", "http_429", "http_503"})


class ServerSubject:
    """A :class:`ekiden.evaluation.load.subject.Subject`. The server is its owner's: ``close`` leaves it running.

    ``end_token``: an end token of the server's model, for limits other than the lengths. ``token_ids``: ask for
    them in the answers, with ``return_token_ids``; texts are compared by their digests in any case. ``timeout``:
    seconds for one request, or less with ``cut``: as long as an answer can still be good. ``concurrency``: a closed
    loop of so many in place of the arrivals.
    """

    def __init__(
        self,
        target: Target,
        model: str,
        *,
        objectives: Objectives,
        prompts: ServerPrompts,
        end_token: int | None = None,
        token_ids: bool = False,
        tenant_header: str | None = TENANT_HEADER,
        timeout: float = 300.0,
        concurrency: int | None = None,
        cut: bool = False,
        warm_up: int = WARM_UP_REQUESTS,
    ) -> None:
        self._target, self._model, self._objectives, self._prompts = target, model, objectives, prompts
        self._end_token, self._token_ids, self._tenant_header = end_token, token_ids, tenant_header
        self._timeout, self._concurrency, self._cut, self._warm_up = timeout, concurrency, cut, warm_up

    def close(self) -> None:
        """No connection is open between runs."""

    def serve(self, workload: Workload, *, on_answer: Callable[[], None] = lambda: None) -> ArmRun:
        """See the protocol. Where nobody listens, every request is a failure of kind ``connect``."""
        requests = self._requests(workload)
        if self._warm_up:
            _run(closed_loop(self._target, self._warm_up_requests(), concurrency=self._warm_up, timeout=self._timeout))
        started = time.time()
        timeout = self._timeout
        if self._cut:
            timeout = min(timeout, longest_good(workload, self._objectives))
        options: dict[str, Any] = {"timeout": timeout, "keep_bodies": True, "on_answer": on_answer}
        if self._concurrency is not None:
            run = _run(closed_loop(self._target, requests, concurrency=self._concurrency, **options))
        else:
            run = _run(open_loop(self._target, requests, [offer.at for offer in workload.offers], **options))
        seconds = run.duration
        results = self._results(workload, run)
        lags = [result.record.sent - result.record.intended for result in results]
        return ArmRun(
            arm="",
            workload=workload.name,
            block=0,
            position=0,
            started=started,
            seconds=seconds,
            arrival_seconds=workload.seconds if self._concurrency is None else seconds,
            workload_digest=workload.digest,
            results=results,
            loop="open" if self._concurrency is None else "closed",
            void=None if self._concurrency is not None else void_reason(lags, self._objectives),
        )

    def _requests(self, workload: Workload) -> list[bytes]:
        pairs = zip(workload.offers, self._prompts(workload), strict=True)
        return [self._request(offer, prompt) for offer, prompt in pairs]

    def _request(self, offer: Offer, prompt: Sequence[int] | str) -> bytes:
        params = exact_sampling(offer, end_token=self._end_token)
        headers = {}
        if offer.deadline is not None:
            headers[DEADLINE_HEADER] = str(max(1, round(1000 * offer.deadline)))
        if self._tenant_header is not None and offer.tenant != "default":
            headers[self._tenant_header] = offer.tenant
        return completion_request(
            self._target,
            self._model,
            prompt,
            headers=headers,
            max_tokens=params.max_tokens,
            ignore_eos=params.ignore_eos or None,
            min_tokens=params.min_tokens or None,
            logit_bias={str(token): bias for token, bias in params.logit_bias.items()} or None,
            priority=offer.priority or None,
            return_token_ids=self._token_ids or None,
        )

    def _warm_up_requests(self) -> list[bytes]:
        prompts = synthetic_prompts(self._warm_up, WARM_UP_PROMPT, seed=_WARM_UP_SEED)
        offer = Offer(id="", at=0.0, output_tokens=WARM_UP_OUTPUT, max_tokens=WARM_UP_OUTPUT)
        return [self._request(offer, prompt) for prompt in prompts]

    def _results(self, workload: Workload, run: LoadRun) -> list[Answered]:
        return [
            _answered(offer, record, body or (), run.start)
            for offer, record, body in zip(workload.offers, run.records, run.bodies, strict=True)
        ]


def _answered(offer: Offer, record: RequestRecord, body: Sequence[bytes], start: float) -> Answered:
    told = read_answer(body)
    record.intended, record.sent, record.end = (t - start for t in (record.intended, record.sent, record.end))
    record.event_times = [moment - start for moment in record.event_times]
    record.prompt_tokens = record.prompt_tokens or offer.prompt_tokens
    if record.failure is None and told.counted not in (None, offer.output_tokens):
        record.failure = WRONG_LENGTH
    elif record.failure is not None:
        record.failure = _kind(record.failure, told.error_code)
    whole = record.failure is None
    return answered(offer, record, token_ids=told.token_ids, text_digest=told.text_digest if whole else None)


def _kind(failure: str, code: str | None) -> str:
    """A failure's kind, with the server's own reason where it gave one: as an engine in process would name it."""
    if code == "deadline":
        return "deadline"
    return f"refused_{code}" if code is not None and failure in _REFUSED else failure


def _run(loop: Coroutine[Any, Any, T]) -> T:
    """Run a load to its end; Ctrl-C ends it with no connection left open. The event loop is the one that costs least,
    because the load shares its cores with the server."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(loop)
