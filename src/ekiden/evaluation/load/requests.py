"""From a workload's offers to an engine's requests, and from the engine's updates to results.

Both are the same for a real engine and for a simulated one, so that no difference between them can come from here.

An answer has exactly the offer's length, whatever limit the client states. Where both are equal, the limit ends it.
Where the stated limit is higher, or there is none, the scheduler is to see that one: the model's end token is then
forbidden (``min_tokens``) until one token is missing, and the only choice (a bias) for the last one.
"""

from collections.abc import Callable, Sequence

from ekiden.engine.engine_core import StepResult
from ekiden.errors import UserError
from ekiden.evaluation.results import Answered
from ekiden.evaluation.workloads.offer import Offer, Workload
from ekiden.measure.figures import RequestRecord
from ekiden.state.request import FinishReason, RefusalReason, Request, RequestUpdate
from ekiden.state.sampling_params import BIAS, SamplingParams

_WHOLE = (FinishReason.STOP, FinishReason.LENGTH)
_FAILURES = {
    FinishReason.ABORT: "aborted",
    FinishReason.DEADLINE: "deadline",
    FinishReason.ABSTAINED: f"refused_{RefusalReason.DEADLINE_TOO_BUSY.value}",  # as over HTTP
    FinishReason.ERROR: "error",
}
UNFINISHED = "unfinished"
WRONG_LENGTH = "wrong_length"


def exact_sampling(offer: Offer, *, end_token: int | None) -> SamplingParams:
    """Greedy sampling that gives exactly ``offer.output_tokens`` tokens under the limit that the client states.

    ``end_token`` is one of the model's end tokens; without one, a stated limit other than the length raises
    :class:`UserError`.
    """
    length, stated = offer.output_tokens, offer.max_tokens
    if length < 1 or (stated is not None and stated < length):
        raise UserError(
            f"request {offer.id}: output_tokens is {length} and max_tokens {stated}; an answer has at least one token "
            "and at most max_tokens"
        )
    if stated == length:
        return SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
    if end_token is None:
        raise UserError(
            f"request {offer.id}: output_tokens is {length} and max_tokens {stated}; this model has no end token, so "
            "an answer ends at max_tokens only: make them equal"
        )
    assert BIAS.most is not None
    return SamplingParams(
        temperature=0.0, max_tokens=stated, min_tokens=length - 1, logit_bias={end_token: float(BIAS.most)}
    )


def request_of(
    offer: Offer, prompt: Sequence[int], start: float, *, end_token: int | None = None, prefix: str = ""
) -> Request:
    """The request of an offer. ``start`` is the run's beginning on the engine's clock: arrivals and deadlines count
    from the *intended* time. Its id is the offer's, after ``prefix``."""
    arrival = start + offer.at
    return Request(
        request_id=prefix + offer.id,
        prompt_token_ids=tuple(prompt),
        sampling=exact_sampling(offer, end_token=end_token),
        arrival_time=arrival,
        tenant=offer.tenant,
        priority=offer.priority,
        deadline=None if offer.deadline is None else arrival + offer.deadline,
    )


def requests_of(
    workload: Workload, prompts: Sequence[Sequence[int]], start: float, *, end_token: int | None = None
) -> list[Request]:
    """:func:`request_of` for each offer and its prompt, in their order."""
    pairs = zip(workload.offers, prompts, strict=True)
    return [request_of(offer, prompt, start, end_token=end_token) for offer, prompt in pairs]


class Collector:
    """A sink for :func:`ekiden.engine.driver.drive`: notes when each token came and how each request ended.

    ``now`` is the engine's clock, ``start`` the run's beginning on it; the records count from ``start``. Requests that
    are no offer of the workload (a warm-up's) are passed over.
    """

    def __init__(
        self,
        workload: Workload,
        prompts: Sequence[Sequence[int]],
        *,
        start: float,
        now: Callable[[], float],
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._workload = workload
        self._start = start
        self._now = now
        self._on_answer = on_answer
        self._tokens: dict[str, list[int]] = {offer.id: [] for offer in workload.offers}
        self._records = {
            offer.id: RequestRecord(intended=offer.at, sent=offer.at, prompt_tokens=len(prompt), failure=UNFINISHED)
            for offer, prompt in zip(workload.offers, prompts, strict=True)
        }
        self._lengths = {offer.id: offer.output_tokens for offer in workload.offers}
        self.ended = 0

    def __call__(self, result: StepResult) -> None:
        if not result.updates:
            return
        now = self._now() - self._start
        for update in result.updates:
            if update.request_id in self._records:
                self._note(update, now)

    def note_sent(self, request_id: str, moment: float) -> None:
        """When the request was really handed over, on the engine's clock. Without it, that was as intended."""
        if request_id in self._records:
            self._records[request_id].sent = moment - self._start

    def _note(self, update: RequestUpdate, now: float) -> None:
        record, tokens = self._records[update.request_id], self._tokens[update.request_id]
        tokens.extend(update.token_ids)
        record.event_times += [now] * len(update.token_ids)
        record.output_tokens = len(tokens)
        if update.terminal:
            record.end = now
            record.failure = failure_of(update, len(tokens), self._lengths[update.request_id])
            self.ended += 1
            self._on_answer()

    @property
    def all_ended(self) -> bool:
        return self.ended == len(self._records)

    @property
    def seconds(self) -> float:
        """From the start to the end of the last answer that ended."""
        return max((record.end for record in self._records.values()), default=0.0)

    def record(self, request_id: str) -> RequestRecord:
        """What has been seen of a request so far."""
        return self._records[request_id]

    def results(self) -> list[Answered]:
        """One for each offer, in their order; what has not ended counts as ``unfinished``."""
        return [
            answered(offer, self._records[offer.id], token_ids=tuple(self._tokens[offer.id]))
            for offer in self._workload.offers
        ]


def failure_of(update: RequestUpdate, num_tokens: int, wanted: int) -> str | None:
    """The kind of failure of a terminal update; None for a whole answer of the wanted length."""
    if update.refusal is not None:
        return f"refused_{update.refusal.reason.value}"
    assert update.finish is not None
    if update.finish.reason not in _WHOLE:
        return _FAILURES[update.finish.reason]
    return None if num_tokens == wanted else WRONG_LENGTH


def answered(
    offer: Offer,
    record: RequestRecord,
    *,
    token_ids: tuple[int, ...] | None = None,
    text_digest: str | None = None,
    slowest_alone: float | None = None,
) -> Answered:
    """The result of an offer, with the offer's own fields repeated."""
    return Answered(
        id=offer.id,
        record=record,
        token_ids=token_ids,
        text_digest=text_digest,
        slowest_alone=slowest_alone,
        tenant=offer.tenant,
        language=offer.language,
        pair=offer.pair,
        priority=offer.priority,
        prompt_tokens=record.prompt_tokens,
        output_tokens=offer.output_tokens,
    )
