"""Stage 1, intake: a request becomes a waiting sequence, or is refused with its reason.

This stage owns the admission limits and fills the waiting queue. A request that could never run is refused at once, so
no accepted request can block the queue for ever. One whose deadline cannot be met is refused too
(:mod:`ekiden.guardrails.abstention`).

A request that an earlier engine had accepted comes with the tokens that it was given (:class:`Carried`). It becomes the
sequence that it was, all of whose keys and values are to be computed again, as after a preemption that dropped them
(docs/decisions/0002). Limits on newcomers are not for it, as it has passed them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf

from ekiden.guardrails.abstention import Abstention
from ekiden.guardrails.limits import TokenBucket
from ekiden.guardrails.signals import Progress, Signals
from ekiden.kv_cache.kv_cache_manager import KVCacheManager
from ekiden.sampling.grammar_limits import GrammarError
from ekiden.state.containment import contained
from ekiden.state.controls import ControlsInForce
from ekiden.state.population import Population
from ekiden.state.request import Carried, Refusal, RefusalReason, Request, check_prompt
from ekiden.state.sampling_params import Grammar, InvalidSamplingParams, validate
from ekiden.state.sequence import Sequence, Stage, Status, StopText, TokenRules

StopTextFactory = Callable[[Request], StopText | None]
RulesFactory = Callable[[Grammar], TokenRules]
"""Raises :class:`GrammarError` for a grammar that cannot be used."""


def _go_on(sequence: Sequence, carried: Carried) -> Refusal | None:
    """Bring a new sequence to where an earlier engine left it, or say why that cannot be.

    Whatever depends on the tokens alone is fed with them: they ended nothing then, so they end nothing now.
    """
    for token in carried.token_ids:
        sequence.token_ids.append(token)
        if sequence.stop_text is not None:
            sequence.stop_text(token)
        if sequence.rules is not None and sequence.rules.advance(token):
            why = sequence.rules.error or "nothing may follow them"
            message = f"the grammar cannot be used: it does not fit the tokens of an engine that ended: {why}"
            return Refusal(reason=RefusalReason.INVALID, message=message, param="grammar")
    sequence.first_token_time = carried.first_token_time
    return None


@dataclass(slots=True, kw_only=True, eq=False)
class Intake:
    controls: ControlsInForce
    population: Population
    kv: KVCacheManager
    signals: Signals
    abstention: Abstention
    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    seed: int
    make_stop_text: StopTextFactory
    make_rules: RulesFactory | None = None
    gives_states: bool = False
    """Whether the model's hidden states can be had."""
    buckets: dict[str, TokenBucket] = field(default_factory=dict)
    """The token bucket of each tenant that has a rate."""

    def accept(self, request: Request, now: float) -> Sequence | Refusal:
        """Put the request in the waiting queue, or return the refusal. A refused request changes nothing."""
        refusal = self._impossible(request)
        if request.carried is None:
            refusal = refusal or self._no_room(request, now)
        if refusal is not None:
            return refusal
        sequence = self._sequence_of(request, now)
        if request.carried is None:
            refusal = self.abstention.judge(sequence, now) or self._over_tenant_limit(request, now)
            if refusal is not None:
                return refusal
        refusal = self._prepare(sequence)
        if refusal is not None:
            return refusal
        self.population.by_id[request.request_id] = sequence
        self.population.enqueue(sequence)
        self.population.watch_deadline(sequence)
        self.abstention.accepted(sequence, now)
        return sequence

    def _sequence_of(self, request: Request, now: float) -> Sequence:
        """What the request becomes, not yet in the engine and without what its texts and grammar need."""
        sampling = request.sampling
        num_prompt = len(request.prompt_token_ids)
        # Without max_tokens an answer may fill the context, or the whole KV pool if that is smaller.
        room = min(self.max_model_len, self.kv.max_tokens)
        total = room if sampling.max_tokens is None else num_prompt + sampling.max_tokens
        if request.reading is not None:
            total = num_prompt
        stops = frozenset(sampling.stop_token_ids)
        return Sequence(
            request=request,
            seed=sampling.seed if sampling.seed is not None else self._draw_seed(request.request_id),
            token_ids=list(request.prompt_token_ids),
            num_prompt_tokens=num_prompt,
            max_total_tokens=min(total, room),
            stop_token_ids=stops if sampling.ignore_eos else stops | self.eos_token_ids,
            expected_output=None if request.reading else self.signals.output_lengths.expect(request.tenant),
            expected_wait=self._expected_wait(now),
        )

    def _prepare(self, sequence: Sequence) -> Refusal | None:
        """Make its stop strings and its grammar, and bring it to where an earlier engine left it."""
        request, sampling = sequence.request, sequence.request.sampling
        with contained(sequence, Stage.INTAKE, "preparing its stop strings and its grammar"):
            if sampling.stop:
                sequence.stop_text = self.make_stop_text(request)
            if sampling.grammar is not None:
                rules = self._rules_of(sampling.grammar)
                if isinstance(rules, Refusal):
                    return rules
                sequence.rules = rules
            if request.carried is not None and (refusal := _go_on(sequence, request.carried)):
                return refusal
        if sequence.fault is not None:
            return Refusal(reason=RefusalReason.INTERNAL_ERROR, message=sequence.fault.cause)
        return None

    def _rules_of(self, grammar: Grammar) -> TokenRules | Refusal:
        """The grammar's matcher. `engine/preparing.py` has compiled the grammar, except for an offline batch."""
        message = "this model writes no text, so no grammar can apply to it; leave the grammar out"
        if self.make_rules is not None:
            try:
                return self.make_rules(grammar)
            except GrammarError as error:
                message = f"the grammar cannot be used: {error}"
        return Refusal(reason=RefusalReason.INVALID, message=message, param="grammar")

    def _draw_seed(self, request_id: str) -> int:
        """A seed from the engine's seed and the request's id, which does not depend on the order of arrival."""
        text = f"{self.seed}:{request_id}".encode()
        return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 1

    def resume(self, sequence: Sequence) -> None:
        """Let a paused sequence go on: it waits again, or as a preempted one once it has been admitted."""
        population = self.population
        del population.paused[sequence.request_id]
        if sequence.admission:
            sequence.move_to(Status.PREEMPTED)
            population.preempted.append(sequence)
        else:
            sequence.move_to(Status.WAITING)
            population.enqueue(sequence)

    def _impossible(self, request: Request) -> Refusal | None:
        """The refusal of a request that could never run."""
        sampling, prompt = request.sampling, request.prompt_token_ids
        num_prompt = len(prompt)
        if request.request_id in self.population.by_id:
            message = f"a request with the id {request.request_id!r} is still in the engine"
            return Refusal(reason=RefusalReason.DUPLICATE_ID, message=message)
        answered, context = request.reading is None, self.max_model_len
        refusal = check_prompt(prompt, vocab_size=self.vocab_size, max_model_len=context, answered=answered)
        if refusal := refusal or self._unreadable(request):
            return refusal
        try:
            validate(sampling, vocab_size=self.vocab_size, eos_token_ids=self.eos_token_ids)
        except InvalidSamplingParams as error:
            return Refusal(reason=RefusalReason.INVALID, message=str(error), param=error.param)
        wanted = num_prompt
        if answered:
            wanted += 1 if sampling.max_tokens is None else sampling.max_tokens
        if wanted > self.max_model_len:
            return Refusal(
                reason=RefusalReason.CONTEXT_LENGTH_EXCEEDED,
                message=f"the context holds {self.max_model_len} tokens; the prompt has {num_prompt} and "
                f"{wanted - num_prompt} more were asked for. Shorten the prompt or lower max_tokens",
                param="max_tokens",
            )
        if wanted > self.kv.max_tokens:
            return Refusal(
                reason=RefusalReason.EXCEEDS_KV_CACHE,
                message=f"the request may need {wanted} tokens of KV cache and the whole pool holds "
                f"{self.kv.max_tokens}. Shorten the prompt, lower max_tokens, or start with a larger --kv-cache-size",
                param="max_tokens" if num_prompt < self.kv.max_tokens else "prompt",
            )
        return None

    def _unreadable(self, request: Request) -> Refusal | None:
        """The refusal of a reading that asks for what cannot be had."""
        reading, num_prompt = request.reading, len(request.prompt_token_ids)
        if reading is None:
            return None
        if reading.pooling is not None and not self.gives_states:
            message = "the hidden states of this model cannot be had, so nothing can be pooled; serve another export"
            return Refusal(reason=RefusalReason.INVALID, message=message, param="pooling")
        if reading.scored_from is not None and not 1 <= reading.scored_from < num_prompt:
            allowed = f"between 1 and {num_prompt - 1}" if num_prompt > 1 else "left out, for a prompt of one token"
            message = f"scored_from is {reading.scored_from}; it must be {allowed}"
            return Refusal(reason=RefusalReason.INVALID, message=message, param="scored_from")
        return None

    def _no_room(self, request: Request, now: float) -> Refusal | None:
        """The refusal of a request that comes at a bad moment and may be accepted later."""
        limits, waiting = self.controls.now, self.population.queue_size
        if limits.draining:
            message = "no new requests are taken now; try another server, or later"
            return Refusal(reason=RefusalReason.DRAINING, message=message)
        most = limits.max_queue_seconds
        wait = None if most is None else self._expected_wait(now)
        if waiting.requests >= limits.max_num_queued_reqs:
            reason = RefusalReason.QUEUE_FULL_REQUESTS
            message = f"{waiting.requests} requests are waiting and the limit is {limits.max_num_queued_reqs}"
        elif waiting.tokens + len(request.prompt_token_ids) > limits.max_num_queued_tokens:
            reason = RefusalReason.QUEUE_FULL_TOKENS
            message = f"{waiting.tokens} prompt tokens are waiting and the limit is {limits.max_num_queued_tokens}"
        elif most is not None and wait is not None and wait > most:
            reason = RefusalReason.QUEUE_TOO_SLOW
            message = f"the wait in the queue would be about {wait:.1f} s and the limit is {most:g} s"
        else:
            return None
        excess = 1 if most is None or wait is None else wait - most
        return Refusal(reason=reason, message=f"{message}; try later", retry_after=max(1.0, excess))

    def _expected_wait(self, now: float) -> float | None:
        """Seconds that a new request would wait; None while nothing is known.

        The first requests join because slots are empty, not because others end, so they say nothing about how fast the
        queue drains. Until each slot has been used twice, the rate at which running answers end is an upper bound.
        """
        population, drain_rate = self.population, self.signals.drain_rate
        at_most = None
        if drain_rate.joined < 2 * population.max_num_seqs and population.queued:
            progress = Progress()
            for sequence in population.running:
                expected = sequence.max_total_tokens - sequence.num_prompt_tokens
                usual = self.signals.output_lengths.expect(sequence.request.tenant)
                progress.add(
                    made=sequence.num_output_tokens,
                    expected=expected if usual is None else min(expected, max(1, usual[1])),
                    seconds=now - (sequence.admitted_time or now),
                )
            at_most = progress.ends_per_second(len(population.running))
        return drain_rate.seconds_for(len(population.queued), at_most)

    def _over_tenant_limit(self, request: Request, now: float) -> Refusal | None:
        """The refusal for a limit of this tenant. It must be the last check, since it takes tokens from the bucket."""
        tenant, waiting = request.tenant, self.population.queue_size_of(request.tenant)
        limits = self.controls.now.limits_of(tenant)
        num_prompt = len(request.prompt_token_ids)
        most_requests, most_tokens = limits.max_num_queued_reqs or inf, limits.max_num_queued_tokens or inf
        over_requests = waiting.requests >= most_requests
        if over_requests or waiting.tokens + num_prompt > most_tokens:
            limit = f"{most_requests:g} requests" if over_requests else f"{most_tokens:g} tokens"
            return Refusal(
                reason=RefusalReason.TENANT_QUEUE_FULL,
                message=f"tenant {tenant!r} has {waiting.requests} requests with {waiting.tokens} prompt tokens "
                f"waiting and its limit is {limit}; try later",
                retry_after=max(1.0, self.signals.drain_rate.seconds_for(waiting.requests) or 1.0),
            )
        rate = limits.tokens_per_second
        if rate is None:
            return None
        burst = limits.burst_tokens or 10 * rate
        bucket = self.buckets.setdefault(tenant, TokenBucket(burst))
        wait = bucket.take(num_prompt + (request.sampling.max_tokens or 0), now, rate=rate, capacity=burst)
        message = f"tenant {tenant!r} may ask for {rate:g} tokens a second on average; try again in {wait:.1f} s"
        return Refusal(reason=RefusalReason.TENANT_RATE, message=message, retry_after=wait) if wait > 0.0 else None
