"""Every change of premise changes what it says, and nothing else."""

from collections import Counter

import msgspec
import pytest

from ekiden.errors import UserError
from ekiden.evaluation.workloads.changes import CHANGES, PATIENT, URGENT, changed
from ekiden.evaluation.workloads.offer import Offer
from tests.unit.evaluation.workloads.making import made

TOUCHED = {
    "no-max-tokens": {"max_tokens"},
    "lying-limits": {"max_tokens"},
    "contradictory-hints": {"priority", "deadline"},
    "abstain": {"deadline"},
    "double-load": {"at"},
    "half-load": {"at"},
    "other-user-mix": set(Offer.__struct_fields__) - {"id", "at"},
}


def test_every_change_has_a_line_for_the_report_and_a_case_here():
    assert CHANGES.keys() == TOUCHED.keys()
    assert all(text.endswith(".") and "\n" not in text for text in CHANGES.values())


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_touches_its_own_fields_only_and_writes_itself_down(name):
    before, after = made("servegen-large"), made("servegen-large", change=[name])
    for one, other in zip(before.offers, after.offers, strict=True):
        fields = {f for f in Offer.__struct_fields__ if getattr(one, f) != getattr(other, f)}
        assert fields <= TOUCHED[name]
    assert after.digest != before.digest
    assert after.sources == before.sources
    (written,) = after.made["changes"]
    assert written["name"] == name
    assert written["what"] == CHANGES[name]
    same = {key: value for key, value in after.made.items() if key != "changes"}
    assert same == {key: value for key, value in before.made.items() if key != "changes"}
    assert after.digest == made("servegen-large", change=[name]).digest


def test_no_limit_is_stated():
    assert {offer.max_tokens for offer in made("poisson", change=["no-max-tokens"]).offers} == {None}


def truth_and_lies(most: int) -> list[tuple[int, int]]:
    workload = made("poisson", change=["lying-limits"], options={"max_stated_tokens": most})
    return sorted((offer.output_tokens, offer.max_tokens or 0) for offer in workload.offers)


def test_lies_are_never_too_small_always_far_off_and_in_the_wrong_order():
    both = truth_and_lies(10_000)
    short, long = both[: len(both) // 4], both[-len(both) // 4 :]
    assert max(stated for _, stated in long) < min(stated for _, stated in short)
    assert all(stated > true for true, stated in both)
    assert sum(stated for _, stated in both) == 5 * sum(true for true, _ in both)


def test_lies_stay_below_the_largest_stated_limit_unless_the_answer_is_longer():
    assert all(true <= stated <= max(100, true) for true, stated in truth_and_lies(100))


def test_priorities_and_deadlines_contradict():
    offers = made("equal-lengths", change=["contradictory-hints"]).offers
    assert Counter(offer.priority for offer in offers) == {URGENT: 24, PATIENT: 24}
    assert URGENT < PATIENT  # lower runs first
    deadlines = {offer.priority: offer.deadline for offer in offers}
    assert deadlines == {PATIENT: 2 + 0.1 * 64, URGENT: 10 * (2 + 0.1 * 64)}


def test_abstaining_gives_every_request_a_deadline_by_its_length():
    options = {"deadline_seconds": 1.0, "deadline_seconds_per_token": 0.5}
    for offer in made("poisson", change=["abstain"], options=options).offers:
        assert offer.deadline == 1 + 0.5 * offer.output_tokens


def test_load_doubles_and_halves():
    plain = made("poisson")
    for name, factor in (("double-load", 2), ("half-load", 0.5)):
        workload = made("poisson", change=[name])
        assert workload.seconds == plain.seconds / factor
        times = [offer.at / factor for offer in plain.offers]
        assert [offer.at for offer in workload.offers] == pytest.approx(times, abs=1e-6)


def test_tenants_swap_their_shares_and_keep_their_own_requests():
    before, after = made("flood"), made("flood", change=["other-user-mix"])
    assert Counter(o.tenant for o in before.offers) == {"flood": 46, "quiet": 2}
    assert Counter(o.tenant for o in after.offers) == {"flood": 2, "quiet": 46}
    own = {(o.tenant, o.prompt_tokens, o.output_tokens) for o in before.offers}
    assert {(o.tenant, o.prompt_tokens, o.output_tokens) for o in after.offers} <= own


def test_equal_languages_become_unequal():
    offers = made("prompts", change=["other-user-mix"]).offers
    assert sorted(Counter(offer.language for offer in offers).values()) == [12, 36]
    assert {offer.pair for offer in offers} == {""}


def test_another_mix_of_one_user_is_refused():
    with pytest.raises(UserError, match="several tenants or languages"):
        made("poisson", change=["other-user-mix"])


def test_changes_are_made_in_order_and_add_up():
    workload = made("flood", change=["no-max-tokens", "double-load"])
    assert [change["name"] for change in workload.made["changes"]] == ["no-max-tokens", "double-load"]
    assert workload.offers[0].max_tokens is None
    assert workload.seconds == 24
    by_hand = changed(changed(made("flood"), "no-max-tokens"), "double-load")
    assert msgspec.json.encode(by_hand) == msgspec.json.encode(workload)
    with pytest.raises(UserError, match="there are no-max-tokens"):
        changed(workload, "nothing")
