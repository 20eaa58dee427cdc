"""What is registered stays as it is or is told; a confirmation is run once."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ekiden.errors import UserError
from ekiden.evaluation.plan.basis import basis_of
from ekiden.evaluation.plan.journal import Event
from ekiden.evaluation.plan.read import parse_plan
from ekiden.evaluation.plan.registration import (
    Basis,
    analysis_digest,
    begin_confirm,
    check,
    confirm_of,
    data_digests,
    register,
    registered,
    superseded,
)
from ekiden.evaluation.plan.store import CONFIRM, RunKey, Store
from ekiden.state.lineage import Lineage
from tests.unit.evaluation.plan.plans import KNOWN, TEXT
from tests.unit.evaluation.plan.test_store import made_run

LINEAGE = Lineage(code={"source": "aa", "commit": "c1", "dirty": False}, model={"weights": "bb"}, machine={"cpus": 2})
BASIS = Basis(
    lineage=LINEAGE.as_object(), data={"traces/t.csv": "11"}, workloads={"conversation/0": "22"}, analysis="33"
)


def fixed(folder, text=TEXT, basis=BASIS):
    """A registered plan's path and the evaluation's folder."""
    plan = folder / "plan.toml"
    plan.write_text(text, encoding="utf-8")
    register(plan, folder / "plan", KNOWN, basis)
    return plan, folder / "plan"


def in_force(folder):
    made = registered(folder)
    assert made is not None
    return made


def changed(text=TEXT, seed=7):
    return text.replace("seed = 20261", f"seed = {seed}")


def test_an_untouched_registration_checks_out(tmp_path):
    plan, folder = fixed(tmp_path)
    assert check(folder, plan, BASIS) == []
    made = in_force(folder)
    assert made.plan_text == TEXT
    assert msgspec.json.decode((folder / "registration.json").read_bytes())["digest"] == made.digest
    assert superseded(folder) == []
    assert confirm_of(folder) is None


def test_a_plan_with_faults_is_not_registered(tmp_path):
    with pytest.raises(UserError, match=r"decision\.owner is empty"):
        fixed(tmp_path, TEXT.replace('owner = "Aoi"', 'owner = ""'))
    assert not (tmp_path / "plan").exists()


@pytest.mark.parametrize(
    ("basis", "told"),
    [
        ({"analysis": "x"}, ["the analysis (its source) was changed"]),
        ({"data": {"traces/t.csv": "x"}}, ["the data file traces/t.csv was changed"]),
        (
            {"data": {"traces/u.csv": "11"}},
            ["the data file traces/t.csv was changed", "the data file traces/u.csv is read in addition"],
        ),
        ({"workloads": {"conversation/0": "x"}}, ["the confirmation's workload conversation/0 comes out otherwise"]),
        ({"workloads": {}}, ["the confirmation's workload conversation/0 comes out otherwise"]),
        (
            {"lineage": msgspec.structs.replace(LINEAGE, model={"weights": "cc"}).as_object()},
            ["model.weights was bb and is cc"],
        ),
        (
            {"lineage": msgspec.structs.replace(LINEAGE, machine={"cpus": 4}).as_object()},
            ["machine.cpus was 2 and is 4"],
        ),
        (  # of a checkout the digest of the source counts
            {
                "lineage": msgspec.structs.replace(
                    LINEAGE, code={"source": "aa", "commit": "c2", "dirty": True}
                ).as_object()
            },
            [],
        ),
    ],
)
def test_what_a_confirmation_stands_on_is_compared(tmp_path, basis, told):
    plan, folder = fixed(tmp_path)
    now = msgspec.structs.replace(BASIS, **basis)
    assert check(folder, plan, now) == told
    if told:
        with pytest.raises(UserError, match="is refused, because since its registration"):
            begin_confirm(folder, plan, "run-1", now)
        assert confirm_of(folder) is None


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda text: changed(text), "the plan was changed: confirm.seed was 20261 and is 7"),
        (
            lambda text: text.replace("result >= 1.1", "result >= 1.0"),
            "the plan was changed: metrics[1].successCondition was 'result >= 1.1' and is 'result >= 1.0'",
        ),
        (
            lambda text: changed(text).replace("blocks = 5", "blocks = 9"),
            "the plan was changed: confirm.blocks was 5 and is 9 (and 1 more)",
        ),
        (lambda text: text + "#\n", "the plan's comments or layout were changed, and nothing that it says"),
        (lambda text: text + "[", "the plan was changed, and cannot be read any more (it is no valid TOML"),
    ],
)
def test_an_edited_plan_is_told_and_refused(tmp_path, edit, told):
    plan, folder = fixed(tmp_path)
    plan.write_text(edit(TEXT), encoding="utf-8")
    (found,) = check(folder, plan, BASIS)
    assert found.startswith(told)
    with pytest.raises(UserError, match="is refused"):
        begin_confirm(folder, plan, "run-1", BASIS)


def test_a_confirmation_is_run_once_and_resumed_by_itself_only(tmp_path):
    plan, folder = fixed(tmp_path)
    store = Store(folder)
    begin_confirm(folder, plan, "run-1", BASIS)
    store.save(CONFIRM, made_run(block=0))
    leftover = store.path_of(CONFIRM, RunKey("conversation", 1, 0, "static"))  # written, and killed before it was told
    leftover.write_text("half")
    with pytest.raises(UserError, match="begun by run run-1"):
        begin_confirm(folder, plan, "run-2", BASIS)
    begin_confirm(folder, plan, "run-1", BASIS)
    assert not leftover.exists()
    assert len(store.finished(CONFIRM)) == 1
    assert confirm_of(folder) == ("run-1", False)
    store.journal.append(Event.CONFIRM_FINISHED, {"run_id": "run-1"})
    assert confirm_of(folder) == ("run-1", True)
    for run_id in ("run-1", "run-2"):
        with pytest.raises(UserError, match="was finished at .*, and it is run once"):
            begin_confirm(folder, plan, run_id, BASIS)
    assert check(folder, plan, BASIS) == []


def test_a_second_confirmation_in_the_journal_is_told(tmp_path):
    plan, folder = fixed(tmp_path)
    for run_id in ("run-1", "run-2"):  # past begin_confirm, as one with the source at hand may do
        Store(folder).journal.append(Event.CONFIRM_STARTED, {"run_id": run_id})
    assert check(folder, plan, BASIS) == ["the confirmation was run more than once (2 times)"]


def test_nothing_is_confirmed_without_a_registration(tmp_path):
    (tmp_path / "plan.toml").write_text(TEXT)
    with pytest.raises(UserError, match="is not registered; run `ekiden evaluate register` first"):
        begin_confirm(tmp_path / "plan", tmp_path / "plan.toml", "run-1", BASIS)
    assert check(tmp_path / "plan", tmp_path / "plan.toml", BASIS) == ["no registration can be read"]


def test_a_changed_plan_is_registered_anew_and_the_old_one_stays_known(tmp_path):
    plan, folder = fixed(tmp_path)
    first = in_force(folder)
    with pytest.raises(UserError, match=r"is registered as it is .*; nothing has changed"):
        register(plan, folder, KNOWN, BASIS)
    fixed(tmp_path, changed())
    assert in_force(folder).digest != first.digest
    (told,) = superseded(folder)
    assert told.startswith(f"registration {first.digest[:12]} of ")
    assert told.endswith("its confirmation was never begun")
    assert check(folder, plan, BASIS) == []
    begin_confirm(folder, plan, "run-1", BASIS)


def test_a_confirmed_plan_is_not_registered_again(tmp_path):
    plan, folder = fixed(tmp_path)
    begin_confirm(folder, plan, "run-1", BASIS)
    with pytest.raises(UserError, match="has begun .*, and it is run once"):
        fixed(tmp_path, TEXT + "\n# again\n")


def test_data_that_served_a_confirmation_serve_no_second(tmp_path):
    plan, folder = fixed(tmp_path)
    begin_confirm(folder, plan, "run-1", BASIS)
    Store(folder).save(CONFIRM, made_run())
    Store(folder).journal.append(Event.VERDICT, {"verdict": "do not adopt"})
    fixed(tmp_path, changed())
    assert superseded(folder)[0].endswith("its verdict was do not adopt")
    with pytest.raises(UserError, match=r"the data of this confirmation \(traces/t.csv\) served that of registration"):
        begin_confirm(folder, plan, "run-2", BASIS)
    fresh = msgspec.structs.replace(BASIS, data={}, workloads={"flood/0": "44"})
    fixed(tmp_path, changed(seed=8), fresh)
    begin_confirm(folder, plan, "run-2", fresh)
    assert check(folder, plan, fresh) == []
    assert Store(folder).finished(CONFIRM) == {}  # the first confirmation's runs are not of this one, and stay
    assert Store(folder).save(CONFIRM, made_run()).parent.name == "confirm-2"
    assert check(folder, plan, fresh) == []


@pytest.fixture(scope="module")
def confirmed(tmp_path_factory):
    """A confirmation that was run to its end: the plan, the folder, and the content of every file."""
    plan, folder = fixed(tmp_path_factory.mktemp("confirmed"))
    begin_confirm(folder, plan, "run-1", BASIS)
    for block in range(2):
        Store(folder).save(CONFIRM, made_run(block=block))
    Store(folder).journal.append(Event.CONFIRM_FINISHED, {"run_id": "run-1"})
    return plan, folder, {path: path.read_bytes() for path in [plan, *folder.rglob("*")] if path.is_file()}


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.integers(1, 255))
def test_any_byte_that_is_changed_in_any_file_is_told(confirmed, data, change):
    plan, folder, contents = confirmed
    assert len(contents) == 6
    path = data.draw(st.sampled_from(sorted(contents)))
    edited = bytearray(contents[path])
    edited[data.draw(st.integers(0, len(edited) - 1))] ^= change
    path.write_bytes(edited)
    try:
        assert check(folder, plan, BASIS)
    finally:
        path.write_bytes(contents[path])


def test_any_file_that_is_removed_or_put_in_is_told(confirmed):
    plan, folder, contents = confirmed
    assert check(folder, plan, BASIS) == []
    for path in contents:
        path.unlink()
        assert check(folder, plan, BASIS), path
        path.write_bytes(contents[path])
    extra = folder / "runs" / CONFIRM / "conversation~009~00~static.json"
    extra.write_bytes(b"{}")
    assert check(folder, plan, BASIS) == [f"the result file runs/{CONFIRM}/{extra.name} is not in the journal"]
    extra.unlink()


def test_the_basis_of_a_plan_is_found_out_again_the_same():
    plan = parse_plan(TEXT, KNOWN)
    basis = basis_of(plan, {})
    assert basis == basis_of(plan, {})
    assert len(basis.workloads) == sum(spec.blocks or plan.confirm.blocks for spec in plan.workloads)
    assert basis.data == data_digests(basis.data)
    assert basis.analysis == analysis_digest()
    other = basis_of(parse_plan(changed(), KNOWN), {})
    assert other.workloads != basis.workloads


def test_data_that_are_gone_are_told(tmp_path):
    gone = msgspec.structs.replace(BASIS, analysis=analysis_digest())
    plan, folder = fixed(tmp_path, basis=gone)
    assert check(folder, plan) == ["the data file traces/t.csv was changed"]
