"""Learns how fast a loaded model is on this machine, from a short run made for it."""

import random
import time

from ekiden.build.core import build_core
from ekiden.config import Config
from ekiden.engine.driver import run_batch
from ekiden.engine.parts import EngineParts
from ekiden.engine.simulated import EngineSpeed, fitted_speed
from ekiden.engine.step_time import usual
from ekiden.errors import UserError
from ekiden.evaluation.workloads.synthetic import synthetic_prompts
from ekiden.state.policy import StepLoad
from ekiden.state.request import Request
from ekiden.state.sampling_params import SamplingParams
from ekiden.state.turn import Turn

_LENGTHS = (16, 48, 96, 200, 400, 800)
_OUTPUTS = (6, 12, 24)
_WAVE_TOKENS = 1600
"""About how many prompt tokens a wave has in all, so that large waves do not take minutes on a slow machine."""
_FEWEST_STEPS = 20


class SpeedRecorder:
    """Keeps what a fit needs of each turn (:class:`ekiden.state.turn.TurnRecorder`)."""

    def __init__(self) -> None:
        self._loads: list[StepLoad] = []
        self._seconds: list[float] = []
        self._longer: list[bool] = []
        self._gaps: list[float] = []
        self._busy_until: float | None = None

    def clear(self) -> None:
        """Forget all steps, as after a warm-up."""
        self._loads, self._seconds, self._longer, self._gaps, self._busy_until = [], [], [], [], None

    def record(self, turn: Turn) -> None:
        before, self._busy_until = self._busy_until, turn.end if turn.num_running else None
        if turn.formed is None or turn.output is None or turn.formed.plan.empty or turn.output.attempts != 1:
            return
        self._loads.append(turn.formed.load)
        self._seconds.append(turn.end - turn.start)
        self._longer.append(turn.output.new_sizes > 0)
        if before is not None:
            self._gaps.append(turn.start - before)

    @property
    def steps(self) -> int:
        return len(self._loads)

    def speed(self) -> EngineSpeed:
        """Raises :class:`UserError` when there are too few steps to fit anything."""
        if self.steps < _FEWEST_STEPS:
            raise UserError(f"{self.steps} steps were measured; a step-time model needs {_FEWEST_STEPS} or more")
        kept = usual(self._loads, self._longer)
        return fitted_speed([self._loads[i] for i in kept], [self._seconds[i] for i in kept], self._gaps)


def calibrate(parts: EngineParts, config: Config, *, seed: int = 0, rounds: int = 1) -> EngineSpeed:
    """The step costs of the loaded model, with the median relative error of single steps.

    Requests come in waves of 1, 2, 4, ... up to half as many again as there are slots, with prompts and answers of
    different lengths, so that small and large batches, chunks alone and chunks beside decodes are all seen. The first
    wave of all is a warm-up and left out. It needs the engine alone, for half a minute on a small model.
    """
    recorder, source = SpeedRecorder(), random.Random(seed)
    core = build_core(parts, config, recorder=recorder)
    longest = min(parts.card.max_model_len, core.kv.max_tokens) - max(_OUTPUTS)
    lengths = [length for length in _LENGTHS if length < longest] or [max(1, longest // 2)]
    slots = config.scheduler.max_num_seqs
    sizes = [2**power for power in range(slots.bit_length()) if 2**power < slots] + [slots, slots + slots // 2]
    number = 0
    for size in [2, *sizes * rounds]:
        requests, short = [], [length for length in lengths if length * size <= _WAVE_TOKENS] or lengths[:1]
        for _ in range(size):
            number += 1
            (prompt,) = synthetic_prompts(1, source.choice(short), seed=number, vocab_size=parts.card.vocab_size)
            requests.append(_request(number, prompt, source.choice(_OUTPUTS)))
        run_batch(core, requests)
        if number == 2:
            recorder.clear()
    return recorder.speed()


def _request(number: int, prompt: list[int], output: int) -> Request:
    return Request(
        request_id=f"calibrate-{number}",
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True),
        arrival_time=time.monotonic(),
    )
