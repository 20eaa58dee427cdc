"""The blocking front door: order, reuse, interruption."""

import pytest

from ekiden.build.engines import build_llm
from ekiden.config import BATCHING
from ekiden.engine.llm import LLM, Completion
from ekiden.state.sampling_params import SamplingParams
from tests.fake_answers import next_token
from tests.unit.engine.fake_parts import VOCAB, make_config, make_fake_parts

GREEDY = SamplingParams(temperature=0.0, max_tokens=6)


def make_llm(batching: str = "continuous") -> LLM:
    config = make_config(batching=batching)
    return build_llm(make_fake_parts(config), config)


@pytest.mark.parametrize("batching", BATCHING)
def test_completions_come_in_the_order_of_the_prompts(batching: str) -> None:
    prompts = [[i, i + 1] for i in range(30)]
    completions = make_llm(batching).generate(prompts, GREEDY)
    assert [c.index for c in completions] == list(range(30))
    for prompt, completion in zip(prompts, completions, strict=True):
        assert completion.token_ids[0] == next_token(prompt, VOCAB)
        assert len(completion.token_ids) == 6


def test_an_engine_can_be_used_again_and_again() -> None:
    llm = make_llm()
    batches = [llm.generate([[i, 7] for i in range(n)], GREEDY) for n in (4, 3, 4)]
    assert [len(batch) for batch in batches] == [4, 3, 4]
    assert [c.token_ids for c in batches[0]] == [c.token_ids for c in batches[2]]


def test_no_prompts_give_no_completions() -> None:
    assert make_llm().generate([]) == []


def test_a_refused_prompt_does_not_hold_up_the_others() -> None:
    bad, good = make_llm().generate([[], [1, 2]], GREEDY)
    assert bad.refusal is not None
    assert bad.token_ids == ()
    assert len(good.token_ids) == 6


def test_an_interrupted_batch_leaves_the_engine_clean() -> None:
    llm = make_llm()

    def interrupt(completion: Completion) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate([[1]] * 20, GREEDY, on_finish=interrupt)
    assert llm.core.stats().kv_blocks_used == 0
    assert not llm.core.has_work
    assert len(llm.generate([[1, 2]], GREEDY)[0].token_ids) == 6


def test_sampling_must_be_one_or_one_each() -> None:
    with pytest.raises(ValueError, match="2 prompts were given with 1 sampling"):
        make_llm().generate([[1], [2]], [GREEDY])


def test_text_needs_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="no tokenizer"):
        make_llm().generate(["hello"])
