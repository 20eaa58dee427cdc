"""The same answers from two arms: what is compared, and where the first difference is."""

import pytest

from ekiden.evaluation.analysis.agreement import same_answers
from tests.unit.evaluation.analysis.served import answer, run


def told(number, tokens, **more):
    return answer(number, (1.0,), token_ids=tuple(tokens), **more)


@pytest.mark.parametrize(
    ("ours", "theirs", "first"),
    [
        ((1, 2, 3), (1, 9, 3), "a: token 1: 2 / 9"),
        ((1, 2), (1, 2, 3), "a: token 2: end / 3"),
        ((1, 2, 3), (1, 2), "a: token 2: 3 / end"),
    ],
)
def test_the_first_difference_is_named(ours, theirs, first):
    found = same_answers([run([told("b", (5,)), told("a", ours)])], [run([told("a", theirs), told("b", (5,))])])
    assert (found.value, found.compared, found.first_difference) == (0.5, 2, first)


def test_only_what_both_answered_whole_is_compared():
    ours = [told("a", (1,)), told("b", (1,)), told("c", (1,), failure="timeout"), answer("d", failure="http_503")]
    theirs = [told("a", (1,)), told("c", (2,)), told("d", (2,)), told("e", (3,))]
    found = same_answers([run(ours)], [run(theirs)])
    assert (found.value, found.compared, found.first_difference) == (1.0, 1, "")


def test_nothing_to_compare_has_no_value():
    found = same_answers([run([answer("a", (1.0,))])], [run([told("a", (1,))])])
    assert (found.value, found.compared) == (None, 0)


def test_texts_are_compared_where_tokens_are_not_told():
    ours, theirs = answer("a", (1.0,), text_digest="x"), answer("a", (1.0,), text_digest="y")
    assert same_answers([run([ours])], [run([theirs])]).first_difference == "a: SHA-256 of text"
    assert same_answers([run([ours])], [run([ours])]).value == 1.0


def test_a_difference_in_one_of_two_rounds_or_in_another_block_is_seen():
    first, again, other = run([told("a", (1,))]), run([told("a", (2,))], position=3), run([told("a", (3,))], block=1)
    steady = [run([told("a", (1,))], position=1), run([told("a", (1,))], position=2), other]
    found = same_answers([again, other, first], steady)
    assert found.value == pytest.approx(2 / 3)
    assert found.compared == 3
    assert same_answers([first], [other]).compared == 0


def test_rounds_are_paired_in_the_order_in_which_they_were_served():
    early, late = run([told("a", (1,))], position=0), run([told("a", (2,))], position=3)
    theirs = [run([told("a", (1,))], position=1), run([told("a", (2,))], position=2)]
    assert same_answers([late, early], theirs).value == 1.0
    assert same_answers([late, early], theirs[:1]).compared == 1
    assert same_answers([late, early], theirs[:1]).value == 1.0
