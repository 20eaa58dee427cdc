"""A subject in virtual time: the production engine core on a model that only takes time.

It costs no machine, so it serves where many runs are needed: tuning over a whole grid, the verdicts of plans whose
truth is known (A against A, planted regressions), and the search for how many replicas a rate needs.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from ekiden.backends.fake import FakeRunner
from ekiden.config import Config, controls_of, parse_size
from ekiden.engine.engine_core import EngineCore
from ekiden.engine.simulated import NO_NOISE, EngineSpeed, Noise, SimulatedRunner, simulate
from ekiden.evaluation.charts.trace import SlotStep, StepRecorder
from ekiden.evaluation.load.requests import Collector, requests_of
from ekiden.evaluation.results import ArmRun
from ekiden.evaluation.workloads.offer import Offer, Workload
from ekiden.state.drafting import Drafter
from ekiden.state.runner import ModelRunner, RunnerInfo
from ekiden.state.turn import TurnRecorder

Prompts = Callable[[Workload], Sequence[Sequence[int]]]
Tokens = Literal["zeros", "hashed"]
"""``hashed``: each token is a hash of all before it, as the fake model's, so that answers of two arms can be compared;
``zeros`` is a little faster."""

_BYTES_PER_TOKEN = {"ja": 3.0}
_OTHER_BYTES_PER_TOKEN = 4.0
"""UTF-8 bytes that a token stands for, roughly, where a text's prompt is simulated without a tokenizer."""


class SimulatedSubject:
    """Implements :class:`ekiden.evaluation.load.subject.Subject`.

    ``info`` describes the model and its pool (:func:`pool_for` gives it the pool of another ``kv_cache_size``). Each
    run has noise of its own, drawn from ``seed`` and the number of the run, so that the same subject made again gives
    the same runs. ``prompts`` are made by :func:`simulated_prompts` unless others are given. ``wrap`` may put another
    runner around the simulated one, which is how tests plant faults.
    """

    def __init__(
        self,
        config: Config,
        speed: EngineSpeed,
        *,
        info: RunnerInfo,
        prompts: Prompts | None = None,
        seed: int = 0,
        noise: Noise = NO_NOISE,
        slowdown: float = 1.0,
        tokens: Tokens = "hashed",
        wrap: Callable[[ModelRunner], ModelRunner] = lambda runner: runner,
    ) -> None:
        self._config = config
        self._speed = speed
        self._info = info
        self._prompts = prompts or (lambda workload: simulated_prompts(workload, vocab_size=info.vocab_size))
        self._seed = seed
        self._noise = noise
        self._slowdown = slowdown
        self._tokens = tokens
        self._wrap = wrap
        self._runs = 0
        self.last_steps: list[SlotStep] = []
        """The steps of the last run, for a slot chart, in virtual time."""

    def serve(self, workload: Workload, *, on_answer: Callable[[], None] = lambda: None) -> ArmRun:
        """One run on a fresh core, from virtual time 0. It is never void: in virtual time nothing is sent late."""
        prompts, recorder = self._prompts(workload), StepRecorder()
        model = self._model()
        self._runs += 1
        core = simulated_core(self._config, model, self._wrap(model), recorder=recorder)
        now, slots = model.clock.now, self._config.scheduler.max_num_seqs
        collector = Collector(workload, prompts, start=0.0, now=now, on_answer=on_answer)
        requests = requests_of(workload, prompts, 0.0, end_token=end_token_of(self._info))
        simulate(core, model.clock, requests, collector, gap=self._speed.gap)
        results = collector.results()
        budget = self._config.scheduler.max_num_batched_tokens
        for each in results:
            each.slowest_alone = self._speed.alone_seconds(each.prompt_tokens, each.output_tokens, budget=budget)
        self.last_steps = recorder.steps
        return ArmRun(
            arm="",
            workload=workload.name,
            block=0,
            position=0,
            started=0.0,
            seconds=collector.seconds,
            arrival_seconds=workload.seconds,
            workload_digest=workload.digest,
            results=results,
            steps=recorder.totals(num_slots=slots, num_blocks=self._info.num_blocks, block_size=self._info.block_size),
        )

    def close(self) -> None:
        """It holds nothing."""

    def _model(self) -> SimulatedRunner:
        info, inner = self._info, None
        if self._tokens == "hashed":
            inner = FakeRunner(
                vocab_size=info.vocab_size,
                num_blocks=info.num_blocks,
                block_size=info.block_size,
                num_swap_blocks=info.num_swap_blocks,
                max_model_len=info.max_model_len,
            )
        return SimulatedRunner(
            self._speed,
            info=info,
            inner=inner,
            noise=self._noise,
            seed=(self._seed, self._runs),
            slowdown=self._slowdown,
        )


def simulated_core(
    config: Config,
    model: SimulatedRunner,
    runner: ModelRunner,
    *,
    recorder: TurnRecorder | None = None,
    drafter: Drafter | None = None,
) -> EngineCore:
    """The production engine core on the clock of ``model``. ``runner`` is the model, or what was put around it."""
    return EngineCore(
        runner=runner,
        controls=controls_of(config),
        cache=config.cache,
        clock=model.clock.now,
        eos_token_ids=frozenset({end_token_of(model.info)}),
        seed=config.engine.seed,
        max_model_len=config.model.max_model_len,
        recorder=recorder,
        drafter=drafter,
    )


def end_token_of(info: RunnerInfo) -> int:
    """The end token of a simulated model: its last id, which the token 0 of every simulated answer is not."""
    return info.vocab_size - 1


def pool_for(info: RunnerInfo, config: Config) -> RunnerInfo:
    """``info`` with as many KV blocks as the configuration's sizes give, as a loaded model has them."""
    sizes = (("kv_cache_size", config.cache.kv_cache_size), ("swap_size", config.cache.swap_size))
    blocks, swap = (parse_size(name, text) // info.bytes_per_block for name, text in sizes)
    return replace(info, num_blocks=blocks, num_swap_blocks=swap)


def simulated_prompts(workload: Workload, *, vocab_size: int) -> list[tuple[int, ...]]:
    """Prompts that need no tokenizer: of the stated lengths, and shared where the offers share a prefix group.

    A text's length in tokens is guessed from its bytes.
    """
    return [_prompt(offer, number, vocab_size) for number, offer in enumerate(workload.offers)]


def _prompt(offer: Offer, number: int, vocab_size: int) -> tuple[int, ...]:
    length = offer.prompt_tokens
    if offer.text is not None:
        size = len(offer.text.encode()) + len((offer.system or "").encode())
        length = max(1, round(size / _BYTES_PER_TOKEN.get(offer.language, _OTHER_BYTES_PER_TOKEN)))
    shared: list[int] = []
    if offer.prefix_group:
        shared = _tokens(zlib.crc32(offer.prefix_group.encode()), min(length, offer.prefix_tokens), vocab_size)
    return (*shared, *_tokens(number, length - len(shared), vocab_size))


def _tokens(seed: int, count: int, vocab_size: int) -> list[int]:
    drawn: list[int] = np.random.default_rng(seed).integers(1, vocab_size - 1, count).tolist()
    return drawn
