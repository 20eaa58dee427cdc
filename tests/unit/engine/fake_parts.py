"""Engine parts with the fake model, importable by name in a child process."""

import os
import signal

from ekiden.backends.fake import FakeRunner
from ekiden.build.engines import build_engine
from ekiden.config import CacheConfig, Config, LimitsConfig, SchedulerConfig
from ekiden.engine.interface import ModelCard
from ekiden.engine.parts import BuiltEngine, EngineParts
from ekiden.models.errors import ModelError
from ekiden.state.plan import BatchPlan, StepOutput
from ekiden.state.request import Request
from ekiden.state.sampling_params import SamplingParams
from tests.unit.engine.holding import take_time, wait_to_be_made

VOCAB = 1000
CONTEXT = 1_000_000
BLOCK = 64
NUM_BLOCKS = CONTEXT // BLOCK + 100


def make_config(**scheduler: object) -> Config:
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 256, **scheduler}
    return Config(
        cache=CacheConfig(block_size=BLOCK),
        scheduler=SchedulerConfig(**settings),  # type: ignore[arg-type]
        limits=LimitsConfig(max_num_queued_reqs=100),
    )


def make_fake_parts(config: Config, make_runner: type[FakeRunner] = FakeRunner) -> EngineParts:
    runner = make_runner(
        vocab_size=VOCAB, num_blocks=NUM_BLOCKS, block_size=BLOCK, num_swap_blocks=100, max_model_len=CONTEXT
    )
    card = ModelCard(
        model_id="fake",
        max_model_len=CONTEXT,
        vocab_size=VOCAB,
        block_size=BLOCK,
        num_blocks=NUM_BLOCKS,
        created=0,
        fingerprint="fake",
    )
    return EngineParts(runner=runner, card=card)


def make_fake_engine(config: Config) -> BuiltEngine:
    wait_to_be_made()
    parts = make_fake_parts(config)
    assert isinstance(parts.runner, FakeRunner)
    parts.runner._before_step = take_time
    return build_engine(parts, config, record=config.ledger.ledger)


DEADLY_TOKEN = VOCAB - 1
"""A prompt that holds it ends the engine that computes it."""
DEADLY_POSITION = 5000
"""A decode at this position ends the engine."""


class DeadlyRunner(FakeRunner):
    """Ends its process as a crash in a kernel would."""

    def execute(self, plan: BatchPlan) -> StepOutput:
        for row in plan.rows:
            if DEADLY_TOKEN in row.token_ids if row.prefill else row.start == DEADLY_POSITION:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(plan)


def make_deadly_engine(config: Config) -> BuiltEngine:
    wait_to_be_made()
    return build_engine(make_fake_parts(config, DeadlyRunner), config, record=config.ledger.ledger)


MODEL_FILE = "EKIDEN_TEST_MODEL"
"""An environment variable that names what must exist for an engine to be made."""


def make_engine_of_a_file(config: Config) -> BuiltEngine:
    if not os.path.exists(os.environ[MODEL_FILE]):
        raise ModelError("the model's file has gone")
    return make_fake_engine(config)


def make_unloadable_engine(config: Config) -> BuiltEngine:
    raise ModelError("model.gguf is truncated; fetch it again")


def make_request(request_id: str, *, max_tokens: int, prompt: tuple[int, ...] = (1, 2, 3)) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=SamplingParams(temperature=0.0, max_tokens=max_tokens),
        arrival_time=0.0,
    )
