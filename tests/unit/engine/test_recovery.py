"""Who is run again, given up or refused after engines ended, without any engine."""

import itertools

from ekiden.engine.marks import TAKEN_IN, Place
from ekiden.engine.recovery import MAX_FRUITLESS, MAX_TRIES, InFlight, Verdict, judge, judge_failed_start, next_to_run
from ekiden.state.request import Carried
from tests.unit.engine.fake_parts import make_request


def flights(*names: str) -> list[InFlight]:
    found = [InFlight(make_request(name, max_tokens=10)) for name in names]
    for flight in found:
        flight.submitted = True
    return found


def end(group: list[InFlight], run_id: str = "run", **marks: Place) -> Verdict:
    """An engine ends, and the next one gets what it shall go on with."""
    verdict = judge(group, marks, run_id)
    for flight in (*verdict.refused, *verdict.given_up):
        group.remove(flight)
    for flight in next_to_run(group):
        flight.submitted = True
    return verdict


def test_what_was_given_goes_to_the_next_engine() -> None:
    (flight,) = flights("a")
    assert flight.carried() is flight.request
    flight.token_ids += [4, 5]
    flight.first_token_time = 1.23456789
    end([flight], "first")
    end([flight], "second")
    brought = flight.carried().carried
    assert brought == Carried(token_ids=(4, 5), first_token_time=1.234568, ends=2, run_id="second")


def test_two_ends_at_one_place_refuse_a_request_that_is_alone_there() -> None:
    group = flights("a", "b")
    assert end(group, a=(0, 2)) == Verdict()
    assert end(group, a=(2, 3)) == Verdict(), "this is further than before"
    assert [flight.request_id for flight in end(group, a=(2, 3)).refused] == ["a"]
    assert [flight.request_id for flight in group] == ["b"]


def test_ends_at_what_was_computed_before_accuse_nobody() -> None:
    group = flights("a", "b")
    group[0].token_ids += [4, 5, 6]  # after three tokens of prompt: positions 0 to 4 have been computed
    for _ in range(4):
        assert end(group, a=(0, 3), b=TAKEN_IN) == Verdict() or group[1].watched
        assert end(group, a=(4, 5)) == Verdict()
        group[0].token_ids.append(7)
        group[0].token_ids.append(7)
    assert end(group, a=(13, 14)) == Verdict()
    assert [flight.request_id for flight in end(group, a=(13, 14)).refused] == ["a"]


def test_ends_at_other_places_refuse_nobody() -> None:
    group = flights("a")
    for place in range(MAX_FRUITLESS - 1):
        assert end(group, a=(place, place + 1)) == Verdict()
    assert not group[0].watched


def test_a_grammar_whose_compilation_ends_engines_is_refused() -> None:
    group = flights("a", "b")
    end(group, a=TAKEN_IN)
    assert [flight.request_id for flight in end(group, a=TAKEN_IN).refused] == ["a"]


def test_suspects_in_company_are_run_after_the_others_and_one_after_another() -> None:
    group = flights("a", "b", "c", "d")
    end(group, a=(1, 2), b=(1, 2), c=(1, 2), d=(2, 3))
    assert end(group, a=(1, 2), b=(1, 2), c=(1, 2)) == Verdict()
    assert [flight.request_id for flight in group if flight.submitted] == ["d"]
    assert next_to_run(group) == []
    for name in ("a", "b"):
        last = next(flight for flight in group if flight.submitted and not flight.has_moved)
        last.token_ids.append(1)
        (flight,) = next_to_run(group)
        assert flight.request_id == name
        flight.submitted = True
    assert [flight.request_id for flight in end(group, b=(1, 2), d=(3, 4)).refused] == ["b"]
    assert {flight.request_id for flight in group if flight.watched} == {"c"}, "a has got a token"


def test_a_request_that_gets_a_token_from_each_engine_is_never_given_up() -> None:
    group = flights("a")
    for place in range(3 * MAX_FRUITLESS):
        group[0].token_ids.append(1)
        assert end(group, a=(place, place + 1)) == Verdict()


def test_engines_that_give_others_tokens_may_end_more_often() -> None:
    """While it waits its turn, or while what it had is computed again."""
    group = flights("long", "waiting", "short")
    group[0].token_ids += [1] * 500
    for place in range(MAX_TRIES):
        group[2].token_ids.append(1)
        assert end(group, long=(50, 51), short=(3 + place, 4 + place)) == Verdict() or place == MAX_TRIES - 1
    assert [flight.request_id for flight in group] == ["long", "short"]
    group[1].token_ids.append(1)
    assert [flight.request_id for flight in end(group, long=(50, 51)).given_up] == ["long"]


def test_requests_of_engines_that_give_nobody_a_token_are_given_up() -> None:
    group = flights("a", "b")
    group[0].token_ids.append(1)
    for _ in range(MAX_FRUITLESS):
        assert end(group) == Verdict()
    assert [flight.request_id for flight in end(group).given_up] == ["a", "b"]


def test_what_is_held_back_is_not_counted_against_a_request() -> None:
    group = flights("a", "b")
    end(group, a=(1, 2), b=(1, 2))
    for number in itertools.count(2):
        assert number < MAX_FRUITLESS + 1
        if end(group, a=(1, 2), b=(1, 2)).refused:
            break
    (left,) = group
    assert left.ends < number


def test_engines_that_do_not_start_count_as_tries() -> None:
    group = flights("a")
    end(group)
    for flight in group:
        flight.submitted = False
    for _ in range(MAX_FRUITLESS - 2):
        assert judge_failed_start(group) == []
    assert judge_failed_start(group) == group
