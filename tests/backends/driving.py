"""Drives a runner directly: sequences, plans of (sequence, tokens) pairs, and their logits."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ekiden.backends.openvino import kernels, machine
from ekiden.backends.openvino.loader import load_runner
from ekiden.backends.openvino.runner import OpenVINORunner
from ekiden.config import CacheConfig, Config, EngineConfig, ModelConfig, SchedulerConfig
from ekiden.models.load import describe
from ekiden.models.resolve import ModelFiles, files_in_folder
from ekiden.sampling.sampler import Sampler
from ekiden.state.plan import BatchPlan, Row, RowResult, StepOutput
from ekiden.state.request import Request
from ekiden.state.sampling_params import SamplingParams
from ekiden.state.sequence import Sequence

LENGTH = 200
"""Tokens of a long prompt, and the blocks that each of several gets."""
BLOCKS = 8

ROTATED_FORMATS = (
    "int8-rotated",
    *(() if machine.lacks_integer_dot_products() else ("int8-static",)),
    *(("int8-kernels",) if kernels.installed() else ()),
)
"""The integer formats of rotated models that this machine can compute."""

Logits = dict[int, npt.NDArray[np.float32]]


class Observed(Sampler):
    """A sampler that keeps copies of the logits it is shown, by the slot of their row."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Logits = {}

    def sample(self, logits: npt.NDArray[np.float32], rows: list[Row]) -> list[RowResult]:
        self.seen |= {row.slot: line.copy() for row, line in zip(rows, logits, strict=True)}
        return super().sample(logits, rows)


def placed(tokens: list[int], place: int, **sampling: Any) -> Sequence:
    """One of several long prompts in a pool."""
    return sequence(tokens, range(place * BLOCKS, (place + 1) * BLOCKS), **sampling)


def sequence(token_ids: list[int], blocks: Iterable[int], computed: int = 0, **sampling: Any) -> Sequence:
    params = SamplingParams(**{"temperature": 0.0, **sampling})
    return Sequence(
        request=Request(request_id="r", prompt_token_ids=tuple(token_ids), sampling=params, arrival_time=0.0),
        seed=0,
        token_ids=list(token_ids),
        num_prompt_tokens=len(token_ids),
        max_total_tokens=8192,
        stop_token_ids=frozenset(),
        block_table=tuple(blocks),
        num_computed_tokens=computed,
    )


def plan_of(rows: list[tuple[Sequence, int]], **swaps: Any) -> BatchPlan:
    """A plan in which each sequence computes its next tokens; the rows' slots are their places."""
    for slot, (each, _) in enumerate(rows):
        each.slot = slot
    return BatchPlan([each.row(count) for each, count in rows], **swaps)


def execute(runner: OpenVINORunner, rows: list[tuple[Sequence, int]], **swaps: Any) -> tuple[StepOutput, Logits]:
    """Compute the rows and advance each sequence; returns the output, and copies of the logits by row."""
    sampler = runner._sampler = Observed()
    output = runner.execute(plan_of(rows, **swaps))
    for each, count in rows:
        each.num_computed_tokens += count
    return output, sampler.seen


def step(runner: OpenVINORunner, rows: list[tuple[Sequence, int]], **swaps: Any) -> Logits:
    """As :func:`execute`, but returns the logits only."""
    return execute(runner, rows, **swaps)[1]


def configuration(**settings: Any) -> Config:
    """A configuration with small pools; ``settings`` are named as their flags, and others have their defaults."""
    rooms: dict[str, Any] = {
        "model": ModelConfig,
        "cache": CacheConfig,
        "engine": EngineConfig,
        "scheduler": SchedulerConfig,
    }
    chosen: dict[str, dict[str, Any]] = {"cache": {"kv_cache_size": "256MiB", "swap_size": "64MiB"}}
    for name, value in settings.items():
        room = next(room for room, kind in rooms.items() if name in kind.__dataclass_fields__)
        chosen.setdefault(room, {})[name] = value
    return Config(**{room: kind(**chosen.get(room, {})) for room, kind in rooms.items()})


def load_folder(folder: Path, cache_dir: Path, **settings: Any) -> OpenVINORunner:
    files = files_in_folder(folder, folder.name, cache_dir)
    return load(files, **settings)


def load(files: ModelFiles, **settings: Any) -> OpenVINORunner:
    return load_runner(describe(files), configuration(**settings))
