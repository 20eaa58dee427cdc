"""Stage 4, retirement: it appends the new tokens; sequences that a stop rule ends give back their memory.

This stage owns every end of a sequence. Each request gets exactly one terminal event, here or as a refusal at intake.
A row may bring several tokens; those after the one that ends the sequence are dropped.
A sequence for which the engine's own work failed ends without a token of the step, whatever its row gave.
Stop rules in order of precedence: a grammar that failed, end-of-sequence and stop tokens, stop strings, the end of the
grammar (whatever ``min_tokens`` says, for nothing can follow it), then length.
"""

import logging
from dataclasses import dataclass

from ekiden.guardrails.signals import Signals
from ekiden.kv_cache.kv_cache_manager import KVCacheManager
from ekiden.policies.padding import PaddingRows
from ekiden.policies.speculation import Speculation
from ekiden.sampling.pooling import mean_state
from ekiden.state.containment import contained
from ekiden.state.plan import BlockCopy, StepOutput
from ekiden.state.population import Population
from ekiden.state.request import Finish, FinishReason, Pooling, Reading, RequestUpdate
from ekiden.state.sequence import Fault, Sequence, Stage, Status
from ekiden.state.turn import FormationOutcome

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class Retirement:
    population: Population
    kv: KVCacheManager
    eos_token_ids: frozenset[int]
    padding: PaddingRows
    signals: Signals
    speculation: Speculation | None = None

    def apply(self, formed: FormationOutcome, output: StepOutput, now: float) -> list[RequestUpdate]:
        """Append the step's tokens and retire the sequences that ended. Each row that got a token has an update.

        A sequence of which only the prompt is wanted ends without a token.
        """
        self.kv.plan_executed()
        updates: list[RequestUpdate] = []
        charge = self.population.waiting.charge
        for sequence, row, result in zip(formed.sequences, formed.plan.rows, output.rows, strict=True):
            if sequence.padding:
                continue
            if result.error is not None or sequence.fault is not None:
                sequence.fault = sequence.fault or Fault(Stage.ADVANCE, result.error or "")
                updates.append(self._end_failed(sequence, now))
                continue
            if row.prefill:
                self.kv.note_computed(sequence, row.start, row.end)
                sequence.prompt_logprobs += result.prompt_logprobs
                sequence.num_computed_tokens = row.end
                sequence.state_sum = result.state_sum
                reading = sequence.request.reading
                if reading is not None and not sequence.is_prefilling:
                    updates.append(self._read(sequence, reading, now))
                    continue
            else:
                sequence.num_computed_tokens += 1
            tokens = result.tokens
            if not tokens:
                continue
            kept = self._append(sequence, tokens)
            if kept is None:
                updates.append(self._end_failed(sequence, now))
                continue
            first = sequence.first_token_time is None
            if first and kept:
                sequence.first_token_time = now
            charge(sequence, output=len(kept))
            if row.num_drafts:
                # The drafts that were right are tokens now, with their keys and values; the others are forgotten.
                sequence.num_computed_tokens += len(kept) - 1
                self.kv.trim(sequence, sequence.num_computed_tokens)
                assert self.speculation is not None
                self.speculation.learn(sequence, row.num_drafts, len(kept) - 1)
            finish = None
            if sequence.finish_reason is not None:
                finish = self._retire(sequence, now, None if sequence.rules is None else sequence.rules.error)
            logprobs = None if result.logprobs is None else result.logprobs[: len(kept)]
            asked = first and sequence.request.sampling.prompt_logprobs is not None
            prompt = tuple(sequence.prompt_logprobs) if asked else None
            updates.append(RequestUpdate(sequence.request.request_id, kept, finish, None, logprobs, prompt))
        updates += [self._end_failed(sequence, now) for sequence in formed.failed]
        self.padding.end_with_batch()
        return updates

    def _read(self, sequence: Sequence, reading: Reading, now: float) -> RequestUpdate:
        """End a prompt that was only read, now that it is computed."""
        sequence.finish_reason = FinishReason.STOP
        if reading.pooling is not None:
            count = sequence.num_prompt_tokens if reading.pooling is Pooling.MEAN else 1
            sequence.pooled = mean_state(sequence.state_sum, count)
        likely = tuple(sequence.prompt_logprobs) if reading.scored_from is not None else None
        finish = self._retire(sequence, now, None)
        return RequestUpdate(sequence.request.request_id, (), finish, None, None, likely, sequence.pooled)

    def _end_failed(self, sequence: Sequence, now: float) -> RequestUpdate:
        cause = None if sequence.fault is None else sequence.fault.cause
        logger.error("request %s ends with an error: %s", sequence.request_id, cause)
        return self.end(sequence, FinishReason.ERROR, now, cause)

    def _append(self, sequence: Sequence, tokens: tuple[int, ...]) -> tuple[int, ...] | None:
        """Append tokens up to the one that ends the sequence; returns those that were kept; None after a fault."""
        if sequence.max_total_tokens == sequence.num_prompt_tokens:  # only its prompt was asked for
            sequence.finish_reason = FinishReason.LENGTH
            return ()
        before = len(sequence.token_ids)
        for count, token in enumerate(tokens, 1):
            sequence.token_ids.append(token)
            end = self._end(sequence, token)
            if sequence.fault is not None:
                del sequence.token_ids[before:]
                return None
            if end:
                sequence.finish_reason, sequence.stop_reason = end
                return tokens[:count]
        return tokens

    def _end(self, sequence: Sequence, token: int) -> tuple[FinishReason, str | int | None] | None:
        """Why the sequence ends with its newest token, and with which stop token or stop string; None if it goes on."""
        matched, complete = None, False
        if sequence.stop_text is not None or sequence.rules is not None:
            with contained(sequence, Stage.RETIREMENT, "reading its newest token"):
                matched = sequence.stop_text(token) if sequence.stop_text is not None else None
                complete = sequence.rules is not None and sequence.rules.advance(token)
        if sequence.rules is not None and sequence.rules.error is not None:
            return FinishReason.ERROR, None
        if sequence.num_output_tokens >= sequence.request.sampling.min_tokens:
            if token in sequence.stop_token_ids:
                # A natural end needs no explanation; a stop token that the client chose is named.
                return FinishReason.STOP, None if token in self.eos_token_ids else token
            if matched is not None:
                return FinishReason.STOP, matched
        if complete:
            return FinishReason.STOP, None
        return (FinishReason.LENGTH, None) if len(sequence.token_ids) >= sequence.max_total_tokens else None

    def end(self, sequence: Sequence, reason: FinishReason, now: float, message: str | None = None) -> RequestUpdate:
        """End a live sequence that its tokens did not end: it was aborted, its deadline passed, or its step failed."""
        sequence.finish_reason = reason
        finish = self._retire(sequence, now, message)
        self.padding.end_with_batch()
        return RequestUpdate(sequence.request.request_id, (), finish)

    def pause(self, sequence: Sequence) -> list[BlockCopy]:
        """Take a live sequence out of the running until it is resumed; returns swap-out pairs for the next plan.

        It gives back its slot and its blocks, so that a client that reads slowly costs the others nothing.
        """
        population = self.population
        population.remove(sequence)
        pairs = self.kv.swap_out(sequence) if sequence.status is Status.RUNNING else []
        population.free_slot(sequence)
        sequence.move_to(Status.PAUSED)
        population.paused[sequence.request_id] = sequence
        self.padding.end_with_batch()
        return pairs

    def _retire(self, sequence: Sequence, now: float, message: str | None) -> Finish:
        population, was = self.population, sequence.status
        num_blocks = len(sequence.block_table)
        population.remove(sequence)
        del population.by_id[sequence.request_id]
        sequence.move_to(Status.FINISHED)
        if self.speculation is not None:
            self.speculation.forget(sequence)
        answered = sequence.request.reading is None
        kept = answered and was is Status.RUNNING and sequence.fault is None
        if not (kept and self.padding.take(sequence)):
            self._give_back(sequence)
        assert sequence.finish_reason is not None
        whole = sequence.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        if whole and sequence.num_output_tokens:
            self.signals.output_lengths.observe(sequence.request.tenant, sequence.num_output_tokens)
        return Finish(
            reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_output_tokens=sequence.num_output_tokens,
            num_cached_tokens=sequence.num_cached_tokens,
            arrival_time=sequence.request.arrival_time,
            admitted_time=sequence.admitted_time,
            first_token_time=sequence.first_token_time,
            finish_time=now,
            num_preemptions=sequence.num_preemptions,
            message=message,
            num_blocks=num_blocks,
            tenant=sequence.request.tenant,
            estimate=sequence.estimate if sequence.finish_reason is FinishReason.ABSTAINED else None,
        )

    def _give_back(self, sequence: Sequence) -> None:
        self.kv.release(sequence)
        self.population.free_slot(sequence)
