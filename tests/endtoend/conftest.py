"""The real default model, loaded once for all end-to-end tests."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from ekiden.build.model import load_model
from ekiden.config import CacheConfig, Config
from ekiden.engine.parts import EngineParts
from ekiden.evaluation.workloads.synthetic import demo_prompts
from ekiden.models.conversation import chat_token_ids
from ekiden.models.load import describe
from ekiden.models.resolve import ModelFiles
from ekiden.state.plan import BatchPlan, StepOutput
from ekiden.state.runner import ModelRunner, RunnerInfo
from tests.model_threads import model_threads

__all__ = ["model_threads"]


@dataclass(slots=True)
class SmallPool:
    """A runner that reports only some of its blocks, so that a test need not load the model again."""

    runner: ModelRunner
    num_blocks: int
    num_swap_blocks: int
    swapped_out: int = 0

    @property
    def info(self) -> RunnerInfo:
        return replace(self.runner.info, num_blocks=self.num_blocks, num_swap_blocks=self.num_swap_blocks)

    def execute(self, plan: BatchPlan) -> StepOutput:
        self.swapped_out += len(plan.swap_out)
        return self.runner.execute(plan)

    def check(self) -> None:
        self.runner.check()

    def close(self) -> None:
        """Do nothing: the fixture that owns the pool closes the runner."""


@pytest.fixture(scope="session")
def parts(model_threads: int) -> Iterator[EngineParts]:
    loaded = load_model(Config(cache=CacheConfig(kv_cache_size="256MiB", swap_size="256MiB")))
    assert loaded.runner.info.details["threads"] == str(model_threads)
    yield loaded
    loaded.runner.close()


@pytest.fixture(scope="session")
def chat_prompts(smollm2_files: ModelFiles) -> list[list[int]]:
    """24 real chat prompts as token ids."""
    description = describe(smollm2_files)
    return [
        chat_token_ids(description.tokenizer, description.chat_template, [{"role": "user", "content": demo.prompt}])
        for demo in demo_prompts()
    ]
