"""A loaded engine in this process as a subject: each run gets a fresh engine core, warmed up, and arrivals of its own.

A fresh core has an empty queue, an empty KV pool and no prefix cache (its table of blocks is the core's own), and knows
no tenant, so no run learns from another. The warm-up goes through the same core: the first passes of a model are slow,
and the step-time model learns from ordinary steps. It has prompts that no workload has and a tenant of its own, and is
left out of all figures; with a ledger it is recorded, as ``warm-up-<n>``.

All requests are greedy with answers of the offered lengths (:mod:`ekiden.evaluation.load.requests`), so two arms must
give the same tokens.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from ekiden.build.core import build_core
from ekiden.build.recording import recorded_core
from ekiden.config import Config
from ekiden.engine.driver import RealClock, abort_all, arrivals, drive
from ekiden.engine.engine_core import EngineCore, StepResult
from ekiden.engine.parts import EngineParts
from ekiden.evaluation.charts.trace import Recorders, SlotStep, StepRecorder
from ekiden.evaluation.load.lag import EntryWatch, longest_good, void_reason
from ekiden.evaluation.load.meters import Meter
from ekiden.evaluation.load.requests import Collector, requests_of
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.results import ArmRun
from ekiden.evaluation.workloads.offer import Workload
from ekiden.evaluation.workloads.synthetic import synthetic_prompts
from ekiden.ledger.retention import SUFFIX
from ekiden.ledger.store import LedgerWriter
from ekiden.state.request import Request
from ekiden.state.sampling_params import SamplingParams

Prompts = Callable[[Workload], Sequence[Sequence[int]]]
"""The prompt of each offer, in their order, as token ids of the model."""
WARM_UP = "warm-up"
WARM_UP_REQUESTS = 6
WARM_UP_PROMPT, WARM_UP_OUTPUT = 96, 16
_WARM_UP_SEED = 2**31 - 1
_LEAD, _LEAD_PER_REQUEST = 0.05, 5e-5
"""Seconds between making the requests and the first arrival that can be due."""


class EngineSubject:
    """A :class:`ekiden.evaluation.load.subject.Subject`. The parts stay their owner's: ``close`` leaves them alone.

    ``ledger``: record each run where the configuration says, so that `ekiden explain` can tell of its requests.
    ``cut``: end a run when no answer that has not ended can be good any more (:func:`longest_good`), so that an
    overload need not be worked off; those answers count as ``unfinished``. ``concurrency``: a closed loop of so
    many in place of the arrivals.
    """

    def __init__(
        self,
        parts: EngineParts,
        config: Config,
        *,
        objectives: Objectives,
        prompts: Prompts,
        ledger: bool = False,
        cut: bool = False,
        concurrency: int | None = None,
        warm_up: int = WARM_UP_REQUESTS,
    ) -> None:
        self._parts, self._config, self._objectives, self._prompts = parts, config, objectives, prompts
        self._ledger, self._cut, self._concurrency, self._warm_up = ledger, cut, concurrency, warm_up
        self.last_steps: list[SlotStep] = []
        """The steps of the last run, for a slot chart; times are on the engine's clock."""

    def close(self) -> None:
        """Nothing is left open between runs."""

    def serve(self, workload: Workload, *, on_answer: Callable[[], None] = lambda: None) -> ArmRun:
        """See the protocol. Raises :class:`ekiden.build.recording.LedgerError` when the ledger cannot be written."""
        core, writer = self._fresh_core()
        try:
            run = self._serve(core, workload, on_answer)
        finally:
            if writer is not None:
                writer.close()
        if writer is not None:
            run.run_id = writer.path.name.removesuffix(SUFFIX)
        return run

    def _fresh_core(self) -> tuple[EngineCore, LedgerWriter | None]:
        if self._ledger:
            return recorded_core(self._parts, self._config)
        return build_core(self._parts, self._config), None

    def _serve(self, core: EngineCore, workload: Workload, on_answer: Callable[[], None]) -> ArmRun:
        clock, recorder = RealClock(), StepRecorder()
        watch = EntryWatch(clock.now)
        core.recorder = Recorders(recorder, watch, core.recorder)
        prompts = self._prompts(workload)
        warm_up(core, self._parts, self._warm_up)
        recorder.clear()
        with _steady_memory():
            started, meter = time.time(), Meter()
            start = clock.now() + _LEAD + _LEAD_PER_REQUEST * len(workload.offers)
            collector = Collector(workload, prompts, start=start, now=clock.now, on_answer=on_answer)
            source = arrivals(
                core,
                clock,
                self._requests(workload, prompts, start),
                concurrency=self._concurrency,
                until=start + workload.seconds + longest_good(workload, self._objectives) if self._cut else math.inf,
            )
            drive(core, source, clock, watch.around(collector))
            seconds = collector.seconds if collector.all_ended else clock.now() - start
            cpu_seconds, joules = meter.cpu_seconds(), meter.joules()
        if core.has_work:
            abort_all(core, core.request_ids)
        return self._run(
            workload, core, collector, watch, recorder,
            start=start, started=started, seconds=seconds, cpu_seconds=cpu_seconds, joules=joules,
        )  # fmt: skip

    def _requests(self, workload: Workload, prompts: Sequence[Sequence[int]], start: float) -> list[Request]:
        requests = requests_of(workload, prompts, start, end_token=min(self._parts.eos_token_ids, default=None))
        if self._concurrency is None:
            return requests
        return [msgspec.structs.replace(request, arrival_time=start) for request in requests]

    def _run(
        self,
        workload: Workload,
        core: EngineCore,
        collector: Collector,
        watch: EntryWatch,
        recorder: StepRecorder,
        *,
        start: float,
        started: float,
        seconds: float,
        cpu_seconds: float,
        joules: float | None,
    ) -> ArmRun:
        for request_id, moment in watch.sent.items():
            collector.note_sent(request_id, moment)
        results = collector.results()
        if self._concurrency is not None:
            for result in results:
                result.record.intended = watch.intended.get(result.id, start) - start
        lags = [watch.sent[result.id] - watch.intended[result.id] for result in results if result.id in watch.sent]
        self.last_steps, info = recorder.steps, self._parts.runner.info
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
            steps=recorder.totals(
                num_slots=self._config.scheduler.max_num_seqs, num_blocks=info.num_blocks, block_size=info.block_size
            ),
            cpu_seconds=cpu_seconds,
            joules=joules,
            loop="open" if self._concurrency is None else "closed",
            void=None if self._concurrency is not None else void_reason(lags, self._objectives),
        )


def warm_up(
    core: EngineCore,
    parts: EngineParts,
    count: int = WARM_UP_REQUESTS,
    *,
    prompt_tokens: int = WARM_UP_PROMPT,
    output_tokens: int = WARM_UP_OUTPUT,
) -> None:
    """Answer ``count`` requests that all arrive at once, so that there are prefills alone, decodes alone, and both."""
    clock = RealClock()
    room = parts.card.max_model_len
    prompts = synthetic_prompts(
        count, max(1, min(prompt_tokens, room // 2)), seed=_WARM_UP_SEED, vocab_size=parts.card.vocab_size
    )
    requests = [
        Request(
            request_id=f"{WARM_UP}-{index}",
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(
                temperature=0.0, max_tokens=max(1, min(output_tokens + index, room // 4)), ignore_eos=True
            ),
            arrival_time=clock.now(),
            tenant=WARM_UP,
        )
        for index, prompt in enumerate(prompts)
    ]

    def ignore(result: StepResult) -> None:
        """Nobody reads these answers."""

    drive(core, arrivals(core, clock, requests), clock, ignore)


@contextmanager
def _steady_memory() -> Iterator[None]:
    """As the engine's own process does: what is there stays, so that full collections need not visit it."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
