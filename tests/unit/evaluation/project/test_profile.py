"""Profiles of hardware: they read back equal, and a wrong one is refused by the name of its field."""

from pathlib import Path

import msgspec
import pytest

from ekiden.errors import UserError
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.project.packaged import packaged_profiles, profile_path
from ekiden.evaluation.project.profile import read_profile, toml_of
from ekiden.evaluation.project.projection import Projector
from ekiden.evaluation.project.recorded import checked, profile_of, recorded_loads
from ekiden.evaluation.project.routers import ROUTERS
from ekiden.state.drafting import Drafter
from tests.unit.evaluation.project.fleets import PROFILE
from tests.unit.evidence.directed import BASE, PER_PREFILL_TOKEN, PER_ROW, Directed
from tests.unit.evidence.test_replay import Oracle


def test_a_profile_reads_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(toml_of(PROFILE))
    assert read_profile(path) == PROFILE
    assert read_profile(path).speed.cost == PROFILE.speed.cost


def test_the_packaged_profiles_can_be_used_and_were_measured() -> None:
    assert packaged_profiles()
    for name in packaged_profiles():
        profile = read_profile(profile_path(name))
        assert profile.measured
        assert profile.accuracy.figures_error is not None
        assert {"machine", "model"} <= profile.made.keys()
    with pytest.raises(UserError, match=r"profile is 'nowhere'; give a TOML file, or one of .*"):
        profile_path("nowhere")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("step = 0.01", "step = -1.0"), r"step_cost.step is -1.0; write seconds, 0 or more"),
        (("step = 0.01", "step = inf"), r"step_cost.step is inf"),
        (("step = 0.01", "step = 'x'"), r"Expected `float`, got `str` - at `step_cost.step`"),
        (("step = 0.01", "stride = 0.01"), r"stride"),
        (("gap = 0.001", "gap = -0.5"), r"gap is -0.5; write seconds"),
        (("version = 1", "version = 2"), r"version is 2; this version of Ekiden reads version 1"),
        (("num_blocks = 256", "num_blocks = 0"), r"model.num_blocks is 0; it must be 1 or more"),
        (("max_num_seqs = 8", "max_num_sequences = 8"), r"scheduler.max_num_sequences is no setting"),
        (("max_num_seqs = 8", "max_num_seqs = 0"), r"max_num_seqs is 0; it must be at least 1"),
        (("measured = true", "measured ="), r"is not valid TOML"),
    ],
)
def test_a_wrong_profile_is_refused_by_the_name_of_its_field(
    tmp_path: Path, change: tuple[str, str], told: str
) -> None:
    text = toml_of(PROFILE)
    assert change[0] in text
    path = tmp_path / "p.toml"
    path.write_text(text.replace(*change))
    with pytest.raises(UserError, match=told) as error:
        read_profile(path)
    assert str(path) in str(error.value)


def test_several_faults_are_told_together(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(toml_of(PROFILE).replace("gap = 0.001", "gap = -1.0").replace("num_blocks = 256", "num_blocks = 0"))
    with pytest.raises(UserError, match=r"gap is -1.0.*model.num_blocks is 0"):
        read_profile(path)
    with pytest.raises(UserError, match="cannot read the profile"):
        read_profile(tmp_path / "none.toml")


def recorded(count: int = 30, drafter: Drafter | None = None) -> Directed:
    world = Directed(drafter=drafter)
    for number in range(count):
        world.submit(f"r{number}", prompt=8 + number % 5, output=20 if number % 4 == 0 else 6)
        world.step(2)
    world.run()
    return world


def test_a_recorded_run_gives_its_machines_profile_and_error(tmp_path: Path) -> None:
    with recorded().stored(tmp_path) as reader:
        profile = profile_of(reader)
        (drawn, drafts), (again, _) = recorded_loads(reader, rate=5.0, seconds=20.0, seeds=(1, 1))
        slower = msgspec.structs.replace(profile.step_cost, step=3 * profile.step_cost.step)
        wrong = checked(msgspec.structs.replace(profile, step_cost=slower), reader)
    assert profile.step_cost.step == pytest.approx(BASE, rel=0.1)
    assert profile.step_cost.decode_row == pytest.approx(PER_ROW, rel=0.3)
    assert profile.step_cost.prefill_token == pytest.approx(PER_PREFILL_TOKEN, rel=0.1)
    assert profile.accuracy.checked_on == profile.made["run"] == "directed"
    assert profile.accuracy.figures_error is not None
    assert profile.accuracy.figures_error < 0.15
    assert wrong.accuracy.figures_error is not None
    assert wrong.accuracy.figures_error > 0.5
    assert profile.config().scheduler.max_num_seqs == 4
    assert drawn.digest == again.digest
    assert drafts == {}
    assert {offer.output_tokens for offer in drawn.offers} == {6, 20}
    assert len(drawn.offers) == pytest.approx(100, abs=35)
    assert all(offer.at < 20.0 for offer in drawn.offers)


def test_guesses_are_drawn_with_the_answers_for_which_they_were_made(tmp_path: Path) -> None:
    with recorded(drafter=Oracle()).stored(tmp_path) as reader:
        profile = profile_of(reader)
        (load,) = recorded_loads(reader, rate=5.0, seconds=20.0, seeds=(1,))
    assert profile.info.max_drafts == 4
    longer = {offer.id for offer in load.workload.offers if offer.output_tokens == 20}
    assert longer <= load.drafts.keys() <= {offer.id for offer in load.workload.offers}
    guessed, plain = (
        Projector(profile, [load.workload], Objectives(ttft=1.0, tpot=1.0), drafts=drafts).fleet(1)
        for drafts in ([load.drafts], ())
    )
    assert guessed.failures == plain.failures == {}
    assert guessed.tpot is not None
    assert plain.tpot is not None
    assert guessed.tpot["p50"] < 0.6 * plain.tpot["p50"]


def test_a_run_with_too_little_in_it_is_refused(tmp_path: Path) -> None:
    world = Directed()
    world.submit("only", output=3)
    world.run()
    with world.stored(tmp_path) as reader, pytest.raises(UserError, match=r"needs 20 or more"):
        profile_of(reader)


def test_the_commands_routers_are_those_that_exist() -> None:
    from ekiden.cli.evaluate_project import ROUTER_NAMES

    assert set(ROUTER_NAMES) == set(ROUTERS)
