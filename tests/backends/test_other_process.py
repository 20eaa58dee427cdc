"""The real runner computes the same in another process, from encoded plans alone."""

import functools
from pathlib import Path
from typing import Any

from ekiden.config import CacheConfig, Config, SchedulerConfig, controls_of
from ekiden.engine.engine_core import EngineCore
from ekiden.state.request import Request
from ekiden.state.sampling_params import SamplingParams
from tests.backends.driving import load_folder
from tests.unit.engine.other_process import Recorded, execute_elsewhere

SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9, "top_p": 0.9, "seed": 1},
    {"temperature": 1.0, "seed": 2, "repetition_penalty": 1.3, "logprobs": 2},
    {"temperature": 0.0, "prompt_logprobs": 3},
    {"temperature": 0.7, "seed": 5, "top_k": 12, "min_tokens": 6, "stop_token_ids": tuple(range(40))},
]


def test_the_same_tokens_and_logprobs_from_another_process(reference_dir: Path, tmp_path: Path) -> None:
    load = functools.partial(load_folder, reference_dir / "llama", tmp_path, kv_cache_size="1MiB", threads=1)
    runner = Recorded(load())
    core = EngineCore(
        runner=runner,
        controls=controls_of(Config(scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=96))),
        cache=CacheConfig(),
        clock=lambda: 0.0,
    )
    for index, fields in enumerate(SETTINGS):
        prompt = tuple((7 * index + step) % runner.info.vocab_size for step in range(10 + 22 * index))
        params = SamplingParams(max_tokens=12, ignore_eos=True, **fields)
        core.add_request(Request(request_id=str(index), prompt_token_ids=prompt, sampling=params, arrival_time=0.0))
    tokens = 0
    while core.has_work:
        tokens += sum(len(update.token_ids) for update in core.step().updates)
    runner.close()
    assert tokens >= 4 * 12
    assert len(runner.plans) > 12
    assert execute_elsewhere(load, runner.plans) == runner.outputs
