"""What the runner hands to the model and gives back, with a stand-in for the compiled model."""

import numpy as np
import pytest

from ekiden.backends.openvino.kv_pool import KVPool
from ekiden.backends.openvino.paged_model import Inputs
from ekiden.backends.openvino.passes import PassLimits
from ekiden.backends.openvino.runner import CHUNK_RULES, OpenVINORunner
from ekiden.sampling.sampler import Sampler
from ekiden.state.plan import NO_TOKENS, BatchPlan, Row
from ekiden.state.runner import RunnerInfo
from tests.backends.driving import execute, plan_of, sequence, step

SCRATCH = 10


class StandIn:
    """Logits that name the token they came from; every pass's inputs are kept."""

    def __init__(self) -> None:
        layer = np.arange(11 * 4, dtype=np.uint8).reshape(11, 4)
        self.pool = KVPool(SCRATCH, 3, 4, {}, [layer.copy()], [np.zeros((3, 4), np.uint8)])
        self.passes: list[Inputs] = []
        self.buffer = np.zeros((600, 1000), np.float32)

    def compute(self, inputs: Inputs) -> tuple[np.ndarray, float]:
        self.passes.append(inputs)
        rows = inputs["state_rows"][inputs["logit_rows"]]
        self.buffer[:] = 0
        self.buffer[np.arange(len(rows)), inputs["input_ids"][rows]] = 1.0
        return self.buffer[: len(rows)], 0.25

    def states(self) -> np.ndarray:
        """Two floats of each state: its token, and the half of it."""
        inputs = self.passes[-1]
        tokens = inputs["input_ids"][inputs["state_rows"]].astype(np.float32)
        return np.stack([tokens, tokens / 2], axis=1)

    def close(self) -> None:
        self.passes.clear()


@pytest.fixture
def model():
    return StandIn()


@pytest.fixture
def runner(model):
    info = RunnerInfo(
        backend="openvino",
        vocab_size=1000,
        max_model_len=512,
        block_size=32,
        num_blocks=SCRATCH,
        num_swap_blocks=3,
        bytes_per_block=4,
        chunks=CHUNK_RULES,
    )
    return OpenVINORunner(model, info, limits=PassLimits(80))


def test_a_lone_decode_gets_a_dummy_row_and_two_logit_rows(runner, model):
    lone = sequence([11, 12, 13], [4], computed=2)
    logits = step(runner, [(lone, 1)])
    (inputs,) = model.passes
    assert inputs["input_ids"].tolist() == [13, 0]
    assert inputs["position_ids"].tolist() == [2, 0]
    assert inputs["past_lens"].tolist() == [2, 0]
    assert inputs["subsequence_begins"].tolist() == [0, 1, 2]
    assert inputs["block_indices"].tolist() == [4, SCRATCH]
    assert inputs["block_indices_begins"].tolist() == [0, 1, 2]
    assert inputs["max_context_len"] == 3
    assert inputs["state_rows"].tolist() == [0, 0]
    assert list(logits) == [0]
    assert logits[0].argmax() == 13


def test_a_lone_prefill_asks_for_its_last_row_twice(runner, model):
    step(runner, [(sequence(list(range(1, 41)), [1, 2]), 40)])
    assert model.passes[0]["state_rows"].tolist() == [39, 39]
    assert len(model.passes[0]["past_lens"]) == 1


def test_a_chunk_in_the_middle_of_a_prompt_has_no_logits_and_one_row_of_the_head(runner, model):
    output, logits = execute(runner, [(sequence(list(range(1, 101)), [0, 1, 2, 3]), 64)])
    assert output.rows == [NO_TOKENS]
    assert logits == {}
    assert output.timing.model == 0.25
    assert model.passes[0]["state_rows"].tolist() == [0 + 63]


def test_rows_name_only_the_blocks_they_have_reached(runner, model):
    early = sequence(list(range(1, 200)), [3, 4, 5, 6, 7, 8, 9])
    step(runner, [(early, 64), (sequence([5, 6], [0], computed=1), 1)])
    assert model.passes[0]["block_indices"].tolist() == [3, 4, 0]
    assert model.passes[0]["position_ids"].tolist() == [*range(64), 1]


def test_logits_of_a_split_step_come_back_to_their_rows(runner):
    rows = [(sequence([7, 100 + row], [0], computed=1), 1) for row in range(90)]
    rows.insert(3, (sequence([500] * 99 + [501], [1, 2, 3, 4]), 100))
    logits = step(runner, rows)
    assert sorted(logits) == list(range(91))
    for row, (each, _) in enumerate(rows):
        assert logits[row].argmax() == each.token_ids[-1]


def test_tokens_are_chosen_in_the_models_buffer_without_a_copy(runner, model):
    shared = []

    class Look(Sampler):
        def sample(self, logits, rows):
            shared.append(np.shares_memory(logits, model.buffer))
            return super().sample(logits, rows)

    runner._sampler = Look()
    output = runner.execute(plan_of([(sequence([1, 2], [0], computed=1), 1)]))
    assert shared == [True]
    assert output.rows[0].tokens == (2,)


def test_swaps_come_before_the_pass_and_out_before_in(runner, model):
    before = model.pool._pool[0].copy()
    step(runner, [], swap_out=[(4, 0), (5, 2)], swap_in=[(2, 8), (0, 9)])
    after = model.pool._pool[0]
    assert after[8].tolist() == before[5].tolist()
    assert after[9].tolist() == before[4].tolist()
    assert model.passes == []


def drafted(tokens: list[int], blocks: list[int], drafts: tuple[int, ...], slot: int) -> Row:
    each = sequence(tokens, blocks, computed=len(tokens) - 1)
    each.slot = slot
    return each.row(1, drafts)


def test_a_token_and_its_drafts_are_rows_that_share_a_block_table(runner, model):
    """The stand-in says each token again, so a draft is right where it equals the token before it."""
    plain = sequence([8, 9], [5], computed=1)
    plain.slot = 1
    rows = [drafted([1, 2, 7], [4], (7, 7, 3, 3), 0), plain.row(1), drafted([6] * 33, [2, 3], (5, 5), 2)]
    output = runner.execute(BatchPlan(rows))
    (inputs,) = model.passes
    assert inputs["input_ids"].tolist() == [7, 7, 7, 3, 3, 9, 6, 5, 5]
    assert inputs["past_lens"].tolist() == inputs["position_ids"].tolist() == [2, 3, 4, 5, 6, 1, 32, 33, 34]
    assert inputs["subsequence_begins"].tolist() == list(range(10))
    assert inputs["block_indices"].tolist() == [4, 4, 4, 4, 4, 5, 2, 3, 2, 3, 2, 3]
    assert inputs["state_rows"].tolist() == list(range(9))
    assert [row.tokens for row in output.rows] == [(7, 7, 7), (9,), (6,)]
    assert output.padding_rows == 0


def test_a_step_with_drafts_that_is_split_gives_each_row_its_own_tokens(runner, model):
    rows = [drafted([row + 1, 100 + row], [0], (100 + row,) * (row % 17), row) for row in range(40)]
    prompt = sequence([500] * 99 + [501], [1, 2, 3, 4])
    prompt.slot = 40
    output = runner.execute(BatchPlan([*rows, prompt.row(100)]))
    assert output.passes > 4
    assert max(len(inputs["input_ids"]) for inputs in model.passes) <= 80
    assert [row.tokens for row in output.rows] == [*((100 + row,) * (row % 17 + 1) for row in range(40)), (501,)]
