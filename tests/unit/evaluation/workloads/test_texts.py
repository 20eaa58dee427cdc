"""Real prompts: a task comes in both languages at once, dev and confirm share none, and reuse is told."""

from collections import Counter

from ekiden.evaluation.workloads.package_data import prompts, system_prompts
from ekiden.evaluation.workloads.source import SPLITS
from ekiden.evaluation.workloads.texts import FILES, SYSTEM
from tests.unit.evaluation.workloads.making import made

TEXTS = {path: {prompt.turns[0] for prompt in prompts(path)} for path in FILES.values()}


def tasks_of(workload):
    return {offer.pair.partition("@")[0] for offer in workload.offers}


def test_each_task_is_asked_in_both_languages_one_after_the_other_with_one_answer_length():
    workload = made("prompts")
    offers = workload.offers
    first = Counter[str]()
    for one, other in zip(offers[::2], offers[1::2], strict=True):
        assert one.pair == other.pair != ""
        assert {one.language, other.language} == {"en", "ja"}
        assert one.output_tokens == other.output_tokens
        first[one.language] += 1
    assert len(tasks_of(workload)) == len(offers) // 2
    assert min(first.values()) >= 4  # neither language is always the first
    for offer in offers:
        assert offer.text in TEXTS[FILES[offer.language]]


def test_japanese_answers_can_be_longer():
    plain, longer = made("prompts"), made("prompts", options={"japanese_output_ratio": 2.0})
    for before, after in zip(plain.offers, longer.offers, strict=True):
        assert after.output_tokens == before.output_tokens * (2 if before.language == "ja" else 1)


def test_dev_and_confirm_share_no_task_and_blocks_share_none_before_all_are_used():
    seen: dict[str, list[str]] = {"dev": [], "confirm": []}
    for split, many in zip(SPLITS, (9, 10), strict=True):  # 234 and 260 tasks, 24 a block
        for block in range(many):
            workload = made("prompts", split=split, block=block)
            assert workload.made["pass"] == 0
            seen[split] += tasks_of(workload)
        assert len(set(seen[split])) == len(seen[split]) == 24 * many
        again = made("prompts", split=split, block=many)
        assert again.made["pass"] == 1
        assert tasks_of(again) & set(seen[split])
    assert not set(seen["dev"]) & set(seen["confirm"])


def test_pairs_of_different_blocks_have_different_names():
    assert not {o.pair for o in made("prompts", block=0).offers} & {o.pair for o in made("prompts", block=9).offers}


def test_one_language_alone_also_has_the_tasks_without_a_pair():
    workload = made("prompts", seconds=300.0, options={"languages": ["en"]})
    assert {offer.language for offer in workload.offers} == {"en"}
    assert {offer.pair for offer in workload.offers} == {""}
    texts = {prompt.turns[0] for prompt in prompts(FILES["en"]) if prompt.source == "gsm8k"}
    assert any(offer.text in texts for offer in workload.offers)


def test_system_prompts_are_shared_by_the_requests_of_a_block_and_not_between_splits():
    chosen = {
        split: {offer.system for offer in made("prompts", split=split, options={"system_prompts": 3}).offers}
        for split in ("dev", "confirm")
    }
    assert {split: len(found) for split, found in chosen.items()} == {"dev": 3, "confirm": 3}
    all_of_them = system_prompts(SYSTEM)
    assert chosen["dev"] <= set(all_of_them[0::2])
    assert chosen["confirm"] <= set(all_of_them[1::2])
    assert {offer.system for offer in made("prompts").offers} == {None}
