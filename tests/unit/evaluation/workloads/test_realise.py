"""Prompts as token ids: of the length asked for, different where nothing is shared, alike where something is."""

from typing import Any

import msgspec
import pytest

from ekiden.errors import UserError
from ekiden.evaluation.workloads.realise import realise
from ekiden.models.chat_template import ChatTemplate
from ekiden.models.tokenizer_json import read_tokenizer
from tests.unit.evaluation.workloads.making import made

VOCABULARY: dict[str, Any] = {"vocab_size": 2_000, "max_model_len": 100_000}


@pytest.fixture(scope="module")
def tiny(reference_dir):
    return read_tokenizer(reference_dir / "llama" / "tokenizer.json", tokenizer_config={"eos_token": "<|im_end|>"})


def test_made_prompts_have_their_length_and_differ_from_one_another():
    workload = made("poisson")
    prompts = realise(workload, **VOCABULARY).prompts
    assert [len(prompt) for prompt in prompts] == [offer.prompt_tokens for offer in workload.offers]
    assert len({prompt[:4] for prompt in prompts}) == len(prompts)
    assert all(0 <= token < 2_000 for prompt in prompts for token in prompt)


def test_the_same_workload_gives_the_same_prompts_and_another_block_others():
    first, again = (realise(made("poisson"), **VOCABULARY).prompts for _ in range(2))
    assert first == again
    other = realise(made("poisson", block=1), **VOCABULARY).prompts
    assert not {prompt[:4] for prompt in first} & {prompt[:4] for prompt in other}


@pytest.mark.parametrize("change", ["no-max-tokens", "lying-limits", "contradictory-hints", "double-load", "abstain"])
def test_a_change_of_premise_leaves_the_prompts(change):
    plain, after = made("poisson"), made("poisson", change=[change])
    assert realise(plain, **VOCABULARY).prompts == realise(after, **VOCABULARY).prompts


def test_a_group_begins_alike_and_goes_on_differently():
    workload = made("poisson", options={"shared_prefix_tokens": 30, "prompt_cv": 0.2})
    prompts = realise(workload, **VOCABULARY).prompts
    assert len({prompt[:30] for prompt in prompts}) == 1
    assert len({prompt[:34] for prompt in prompts}) == len(prompts)


def test_a_group_begins_alike_whichever_of_it_comes_first():
    workload = made("poisson", options={"shared_prefix_tokens": 30, "prompt_cv": 1.5})
    by_id = dict(zip((o.id for o in workload.offers), realise(workload, **VOCABULARY).prompts, strict=True))
    backwards = msgspec.structs.replace(workload, offers=tuple(reversed(workload.offers)))
    for offer, prompt in zip(backwards.offers, realise(backwards, **VOCABULARY).prompts, strict=True):
        assert prompt == by_id[offer.id]


def test_requests_of_a_trace_repeat_the_beginning_of_the_one_they_name():
    workload = made("mooncake-conversation", length_scale=0.05, block=2)
    prompts = realise(workload, **VOCABULARY).prompts
    by_id = {offer.id: prompt for offer, prompt in zip(workload.offers, prompts, strict=True)}
    for offer, prompt in zip(workload.offers, prompts, strict=True):
        assert len(prompt) == offer.prompt_tokens
        if offer.prefix_of:
            assert prompt[: offer.prefix_tokens] == by_id[offer.prefix_of][: offer.prefix_tokens]
        if offer.prompt_tokens > offer.prefix_tokens + 4:
            own = prompt[offer.prefix_tokens :][:4]
            assert own not in {by_id[name][offer.prefix_tokens :][:4] for name in by_id if name < offer.id}


def test_a_prompt_that_is_too_long_loses_its_middle_and_is_counted():
    workload = made("long-among-short")
    whole = realise(workload, **VOCABULARY)
    cut = realise(workload, vocab_size=2_000, max_model_len=600)
    assert whole.cut == ()
    assert set(cut.cut) == {o.id for o in workload.offers if o.prompt_tokens + o.output_tokens > 600} != set()
    for offer, before, after in zip(workload.offers, whole.prompts, cut.prompts, strict=True):
        assert len(after) == min(offer.prompt_tokens, 600 - offer.output_tokens)
        assert after[:100] == before[:100]
        assert after[-20:] == before[-20:]


def test_room_is_kept_for_a_stated_limit():
    workload = made("poisson", change=["lying-limits"], options={"max_stated_tokens": 500})
    for offer, prompt in zip(
        workload.offers, realise(workload, vocab_size=2_000, max_model_len=560).prompts, strict=True
    ):
        assert len(prompt) + (offer.max_tokens or 560) <= 560


def test_an_answer_that_the_context_cannot_hold_is_refused():
    with pytest.raises(UserError, match="wants 64 tokens of answer, and the context holds 64 in all"):
        realise(made("equal-lengths"), vocab_size=2_000, max_model_len=64)


def test_texts_go_through_the_chat_template_with_their_system_prompt(tiny):
    template = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]")
    workload = made("prompts", seconds=6.0, options={"system_prompts": 1})
    realised = realise(workload, tiny, chat_template=template, max_model_len=100_000)
    for offer, prompt in zip(workload.offers, realised.prompts, strict=True):
        assert tiny.decode(prompt) == f"[system]{offer.system}[user]{offer.text}[assistant]"


def test_a_model_without_a_template_reads_plain_text(tiny):
    workload = made("prompts", seconds=6.0)
    for offer, prompt in zip(workload.offers, realise(workload, tiny, max_model_len=100_000).prompts, strict=True):
        assert tiny.decode(prompt) == offer.text


def test_texts_without_a_tokenizer_are_refused():
    with pytest.raises(UserError, match="there is no tokenizer"):
        realise(made("prompts"), **VOCABULARY)
