"""The ladder over time: when it goes up, when it comes down, and that nothing makes it flap."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekiden.guardrails.ladder import (
    FORGET_COOLDOWNS,
    MOST_DOUBLINGS,
    STALE_SECONDS,
    Because,
    RuleState,
    Step,
    acknowledge,
    cooldown_of,
    in_words,
    override,
    step,
    waits_for_person,
)
from ekiden.guardrails.readings import Reading
from ekiden.guardrails.rules import Rule, Rules

FOR, STEP, COOL = 3.0, 10.0, 20.0


def rule(*actions: str, signal: str = "queue_age", threshold: float = 5.0, clear: float = 2.0) -> Rule:
    return Rule(
        name="tried",
        signal=signal,
        threshold=threshold,
        clear_threshold=clear,
        actions=actions or ("shrink_batch", "shed_newest", "page"),
        owner="anna",
        for_seconds=FOR,
        step_seconds=STEP,
        cooldown_seconds=COOL,
    )


class Tried:
    """One rule, looked at each second."""

    def __init__(self, tried: Rule | None = None) -> None:
        self.rule = tried or rule()
        self.rules = Rules(rules=(self.rule,))
        self.state: dict[str, RuleState] = {}
        self.steps: list[Step] = []
        self.now = 100.0

    @property
    def rung(self) -> int:
        return self.state["tried"].rung

    def look(self, *values: float | None, seconds: float = 1.0, subject: str | None = None) -> list[Step]:
        taken: list[Step] = []
        for value in values:
            self.now += seconds
            found = {self.rule.signal: Reading(value=value, evidence="seen", subject=subject)}
            self.state, steps = step(self.rules, self.state, found, self.now)
            taken += steps
        self.steps += taken
        return taken

    def hold(self, value: float | None, seconds: int) -> list[Step]:
        return self.look(*[value] * seconds)


def test_it_goes_up_rung_by_rung_while_harm_lasts_and_down_again_after_it() -> None:
    tried = Tried()
    ups = tried.hold(9.0, 60)
    assert [(s.before, s.after, s.actions) for s in ups] == [
        (0, 1, ("shrink_batch",)), (1, 2, ("shed_newest",)), (2, 3, ("page",)),
    ]  # fmt: skip
    assert [s.at for s in ups] == [104.0, 114.0, 124.0]
    assert [s.because for s in ups] == [Because.OVER, Because.STILL_OVER, Because.STILL_OVER]
    assert ups[0].why == "queue_age is 9 s, over 5 for 3 s: seen"
    assert [s.pages for s in ups] == [False, False, True]
    assert in_words(tried.rules, tried.state) == "tried: shrink_batch, shed_newest, page"
    downs = tried.hold(1.0, 70)
    assert [(s.before, s.after, s.actions) for s in downs] == [
        (3, 2, ("page",)), (2, 1, ("shed_newest",)), (1, 0, ("shrink_batch",)),
    ]  # fmt: skip
    assert [s.at - 160.0 for s in downs] == [21.0, 41.0, 61.0]
    assert in_words(tried.rules, tried.state) == ""


def test_a_low_value_is_the_harm_where_the_signal_says_so() -> None:
    tried = Tried(rule(signal="worst_tenant_attainment", threshold=0.8, clear=0.95))
    assert tried.hold(0.9, 20) == []
    (up,) = tried.hold(0.7, 6)
    assert "under 0.8" in up.why
    assert tried.hold(0.9, 60) == []
    assert len(tried.hold(0.96, 30)) == 1


def test_a_short_peak_is_no_harm() -> None:
    tried = Tried()
    for _ in range(20):
        assert tried.look(9.0, 9.0, 9.0, 3.0) == []


def test_with_nothing_to_measure_it_comes_down_and_while_nothing_can_be_read_it_stays() -> None:
    tried = Tried()
    tried.hold(9.0, 5)
    for _ in range(200):
        tried.now += 1.0
        tried.state, steps = step(tried.rules, tried.state, {}, tried.now)
        assert steps == []
    assert tried.rung == 1
    assert len(tried.hold(None, 30)) == 1
    assert tried.rung == 0


def test_time_that_was_not_looked_at_proves_nothing() -> None:
    tried = Tried()
    assert tried.look(9.0, 9.0, 9.0, seconds=STALE_SECONDS + 1) == []
    tried.hold(9.0, 4)
    assert tried.rung == 1
    assert tried.look(1.0, 1.0, 1.0, 1.0, 1.0, seconds=STALE_SECONDS + 1) == []


def test_it_waits_for_a_person_from_that_rung_on_and_asks_one() -> None:
    for action in ("require_acknowledgement", "go_back"):
        tried = Tried(rule(action, "drain"))
        (up,) = tried.hold(9.0, 5)
        assert up.pages
        assert waits_for_person(tried.rule, tried.state["tried"])
        assert "waits for a person" in in_words(tried.rules, tried.state)
        assert tried.hold(1.0, 300) == []
        tried.state = acknowledge(tried.state, "tried", "ben")
        assert [s.after for s in tried.hold(1.0, 2)] == [0]
        tried.hold(9.0, 20)
        assert tried.rung > 0
        assert tried.state["tried"].acknowledged_by is None, "the next trip needs another look"


def test_an_override_takes_it_down_at_once_and_ends_by_itself() -> None:
    tried = Tried()
    tried.hold(9.0, 20)
    assert tried.rung == 2
    tried.state = override(tried.state, "tried", "ben", tried.now + 60.0)
    (down,) = tried.hold(9.0, 1)
    assert (down.after, down.because, down.actions) == (0, Because.OVERRIDDEN, ("shed_newest", "shrink_batch"))
    assert "ben" in down.why
    assert tried.hold(9.0, 58) == []
    assert len(tried.hold(9.0, 5)) == 1
    tried.state = override(tried.state, "tried", "ben", None)
    assert len(tried.hold(9.0, int(STEP))) == 1


def test_a_rule_that_comes_back_stays_longer_each_time_and_is_forgotten_in_the_end() -> None:
    tried = Tried()
    lasted = []
    for _ in range(7):
        tried.hold(9.0, 12)
        assert tried.rung == 1
        lasted.append(_seconds_down(tried))
    assert lasted == [2 ** min(at, MOST_DOUBLINGS) * COOL + 1 for at in range(7)]
    tried.hold(1.0, int(FORGET_COOLDOWNS * COOL) + 1)
    tried.hold(9.0, 12)
    assert cooldown_of(tried.rule, tried.state["tried"]) == COOL


def _seconds_down(tried: Tried) -> int:
    seconds = 0
    while tried.rung:
        tried.hold(1.0, 1)
        seconds += 1
    return seconds


def test_the_tenant_it_is_about_stays_the_same_until_it_is_down() -> None:
    tried = Tried()
    tried.look(*[9.0] * 4, subject="flood")
    (up,) = tried.look(*[9.0] * 10, subject="other")
    assert up.reading.subject == "flood"


def test_its_state_can_be_stored() -> None:
    tried = Tried()
    tried.hold(9.0, 20)
    stored = msgspec.json.encode(tried.state)
    assert msgspec.json.decode(stored, type=dict[str, RuleState]) == tried.state


VALUES = st.one_of(st.none(), st.floats(0.0, 10.0))


@settings(max_examples=60, deadline=None)
@given(values=st.lists(VALUES, max_size=150), repeats=st.integers(1, 12), seconds=st.sampled_from([0.5, 1.0, 2.5]))
def test_whatever_is_read_steps_keep_their_distance_and_it_comes_down(values, repeats, seconds) -> None:
    tried = Tried()
    for value in values:
        tried.look(*[value] * repeats, seconds=seconds)
    check_distances(tried)
    clear = 3 * int(COOL * 2**MOST_DOUBLINGS / seconds) + 10
    tried.look(*[1.0] * clear, seconds=seconds)
    assert tried.rung == 0
    check_distances(tried)


def check_distances(tried: Tried) -> None:
    """One rung at a time, never two steps closer than they may be: so their number is bounded by time."""
    rung, last = 0, None
    for taken in tried.steps:
        assert taken.before == rung
        assert abs(taken.after - taken.before) == 1
        if last is not None:
            assert taken.at - last.at >= (STEP if taken.up else COOL)
        rung, last = taken.after, taken
    if tried.steps:
        assert len(tried.steps) <= 1 + (tried.now - 100.0) / STEP


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(2.001, 5.0), min_size=1, max_size=200), st.integers(0, 3))
def test_what_swings_inside_the_band_moves_nothing(values, rungs) -> None:
    tried = Tried()
    tried.hold(9.0, int(FOR + 1 + STEP * (rungs - 1)) if rungs else 0)
    before = tried.rung if rungs else 0
    assert tried.look(*values) == []
    assert tried.rung == before == rungs


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([4.9, 5.1]), min_size=5, max_size=300))
def test_around_the_threshold_it_only_ever_goes_up(values) -> None:
    tried = Tried()
    assert all(taken.up for taken in tried.look(*values))


@pytest.mark.parametrize("action", ["shrink_batch", "drain"])
def test_rules_do_not_disturb_one_another(action: str) -> None:
    two = Rules(rules=(rule(action), msgspec.structs.replace(rule("page"), name="other", signal="kv_used")))
    state: dict[str, RuleState] = {}
    taken = []
    for second in range(30):
        found = {"queue_age": Reading(value=9.0), "kv_used": Reading(value=9.0 if second > 20 else 0.0)}
        state, steps = step(two, state, found, float(second))
        taken += steps
    assert [(s.rule, s.at) for s in taken] == [("tried", 3.0), ("other", 24.0)]
