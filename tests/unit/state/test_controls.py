"""Changes of the controls: what holds when several overlap, and what is refused before anything changes."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekiden.config import Config, ConfigError, SchedulerConfig, check_controls, controls_of
from ekiden.state.controls import ControlChange, Controls, ControlsInForce, InvalidControls, SetBy, TenantLimits

BLOCK = 16


def check(controls: Controls) -> None:
    try:
        check_controls(controls, BLOCK)
    except ConfigError as error:
        raise InvalidControls(str(error)) from None


def configured(**scheduler: int) -> ControlsInForce:
    return ControlsInForce(controls_of(Config(scheduler=SchedulerConfig(**scheduler))), check)  # type: ignore[arg-type]


def change(expires_at: float | None = None, who: str = "anna", /, **values: Any) -> ControlChange:
    return ControlChange(values=values, set_by=SetBy.PERSON, who=who, expires_at=expires_at)


def test_the_expiry_of_one_change_does_not_undo_another() -> None:
    controls = configured()
    controls.apply(change(10.0, max_num_seqs=8, max_overtakes=1), now=0.0)
    controls.apply(change(20.0, "ben", max_num_seqs=16), now=5.0)
    assert controls.now.epoch == 2
    (expired,) = controls.expire(10.0)
    assert (expired.name, expired.old, expired.new) == ("max_overtakes", 1, 16)
    assert (expired.change.set_by, expired.change.who) == (SetBy.SOFTWARE_RULE, "expired")
    assert "anna" in expired.change.why
    assert controls.now.max_num_seqs == 16
    (expired,) = controls.expire(20.0)
    assert (expired.name, expired.old, expired.new) == ("max_num_seqs", 16, 64)
    assert controls.state.changes == []
    assert controls.now.epoch == 4
    assert controls.next_expiry is None


def test_an_older_change_holds_again_when_the_newer_one_expires_first() -> None:
    controls = configured()
    controls.apply(change(None, max_num_seqs=8), now=0.0)
    controls.apply(change(5.0, max_num_seqs=2), now=1.0)
    assert controls.next_expiry == 5.0
    controls.expire(5.0)
    assert controls.now.max_num_seqs == 8


def test_a_change_without_an_end_replaces_what_came_before() -> None:
    controls = configured()
    controls.apply(change(5.0, max_num_seqs=2, max_overtakes=0), now=0.0)
    controls.apply(change(None, "ben", max_num_seqs=4), now=1.0)
    controls.expire(5.0)
    assert controls.now.max_num_seqs == 4
    assert controls.now.max_overtakes == 16
    for number in range(100):
        controls.apply(change(None, max_num_seqs=1 + number % 5), now=6.0)
    assert len(controls.state.changes) == 1


def test_a_change_that_fits_only_until_another_expires_is_refused() -> None:
    controls = configured()
    controls.apply(change(10.0, max_num_batched_tokens=4096), now=0.0)
    with pytest.raises(InvalidControls, match="max_num_batched_tokens is 512; with max_num_seqs 2000"):
        controls.apply(change(None, max_num_seqs=2000), now=1.0)
    controls.apply(change(9.0, max_num_seqs=2000), now=1.0)
    assert controls.now.max_num_seqs == 2000


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0; it must be at least 1"),
        ({"max_num_seqs": True}, "max_num_seqs is True: Expected `int`, got `bool`"),
        ({"batching": "eager"}, "batching is 'eager'; it must be one of continuous, static"),
        ({"ageing_seconds": float("nan")}, "ageing_seconds is nan; it must be over 0"),
        ({"tenants": {"a": {"weight": 0}}}, "weight is 0.0; it must be a number over 0"),
        ({"tenants": {"a": {"wait": 1}}}, "unknown field `wait`"),
        ({"epoch": 7}, "epoch cannot be changed"),
        ({}, "no field is named"),
    ],
)
def test_what_cannot_work_is_refused_and_changes_nothing(values: dict[str, object], text: str) -> None:
    controls = configured()
    before = controls.now
    with pytest.raises(InvalidControls, match=text.replace("(", r"\(")):
        controls.apply(change(None, **values), now=0.0)
    assert controls.now is before
    with pytest.raises(InvalidControls, match="which is past"):
        controls.apply(change(3.0, max_num_seqs=2), now=3.0)


def test_a_change_crosses_the_pipe() -> None:
    sent = change(5.0, target_itl_ms=None, prefill_first=True, tenants={"a": TenantLimits(weight=2.0)})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=ControlChange) == sent


NAMES = ("max_num_seqs", "max_overtakes", "max_concurrent_prefills")
CHANGES = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(NAMES), st.integers(1, 9), min_size=1), st.one_of(st.none(), st.integers(1, 12))
    ),
    max_size=8,
)


@given(CHANGES)
@settings(max_examples=200, deadline=None)
def test_each_field_has_the_value_of_the_newest_change_that_holds(
    drawn: list[tuple[dict[str, int], int | None]],
) -> None:
    """Against a plain model: at every moment, look through all changes ever made."""
    controls = configured()
    made: list[tuple[dict[str, int], float | None]] = []
    for now in range(14):
        controls.expire(float(now))
        if now < len(drawn):
            values, seconds = drawn[now]
            end = None if seconds is None else float(now + seconds)
            controls.apply(change(end, **values), now=float(now))
            made.append((values, end))
        for name in NAMES:
            holding = [values[name] for values, end in made if name in values and (end is None or end > now)]
            first = getattr(controls_of(Config()), name)
            assert getattr(controls.now, name) == (holding[-1] if holding else first)
