"""Runs are stored whole and told to the journal; all their requests come out as rows."""

import pytest

from ekiden.errors import UserError
from ekiden.evaluation.plan.journal import Event
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.plan.store import CONFIRM, DEV, RunKey, Store
from ekiden.evaluation.results import Answered, ArmRun
from ekiden.measure.figures import RequestRecord


def made_run(arm="static", block=0, position=0, workload="conversation"):
    """A run of a good answer, a late one and a refused one."""
    good = RequestRecord(intended=1.0, sent=1.1, end=2.0, event_times=[1.5, 1.6, 2.0], prompt_tokens=5, output_tokens=3)
    late = RequestRecord(intended=1.0, sent=1.0, end=9.0, event_times=[9.0], prompt_tokens=5, output_tokens=1)
    refused = RequestRecord(intended=2.0, sent=2.0, end=2.0, failure="refused_queue_full")
    results = [
        Answered(id="r0", record=good, token_ids=(4, 5, 6), tenant="a", prompt_tokens=5, output_tokens=3),
        Answered(id="r1", record=late, language="ja", pair="p1", output_tokens=1),
        Answered(id="r2", record=refused, priority=2, output_tokens=8),
    ]
    return ArmRun(
        arm=arm, workload=workload, block=block, position=position, started=1.0, seconds=9.0, arrival_seconds=4.0,
        workload_digest="d", results=results, run_id="run",
    )  # fmt: skip


def test_runs_read_back_equal_and_in_order(tmp_path):
    store = Store(tmp_path)
    runs = [made_run(block=block, position=position) for block in (1, 0) for position in (1, 0)]
    for run in runs:
        store.save(CONFIRM, run)
    store.save(DEV, made_run(arm="window"))
    assert store.load(CONFIRM) == [runs[3], runs[2], runs[1], runs[0]]
    assert [run.arm for run in store.load(DEV)] == ["window"]
    assert set(store.finished(CONFIRM)) == {RunKey.of(run) for run in runs}
    assert store.altered() == []


def test_what_the_journal_does_not_tell_is_not_finished(tmp_path):
    store = Store(tmp_path)
    path = store.save(CONFIRM, made_run())
    leftover = store.path_of(CONFIRM, RunKey("conversation", 1, 0, "static"))
    leftover.write_bytes(path.read_bytes())
    assert list(store.finished(CONFIRM)) == [RunKey("conversation", 0, 0, "static")]
    assert store.leftovers(CONFIRM) == [leftover]
    store.save(CONFIRM, made_run(block=1))
    assert store.leftovers(CONFIRM) == []
    assert store.altered() == []


def test_an_exploratory_run_of_another_plan_begins_anew(tmp_path):
    store = Store(tmp_path)
    assert store.begin_dev("run-1", "plan-a") == "run-1"
    store.save(DEV, made_run())
    assert store.begin_dev("run-2", "plan-a") == "run-1"
    assert len(store.finished(DEV)) == 1
    assert store.begin_dev("run-3", "plan-b") == "run-3"
    assert store.finished(DEV) == {}
    assert store.save(DEV, made_run()).parent.name == "dev-2"
    assert store.begin_dev("run-4", "plan-b", fresh=True) == "run-4"
    assert store.finished(DEV) == {}
    assert store.altered() == []


def test_a_file_that_is_gone_is_run_again_and_told(tmp_path):
    store = Store(tmp_path)
    store.save(CONFIRM, made_run()).unlink()
    assert store.finished(CONFIRM) == {}
    assert store.altered() == ["the result file runs/confirm/conversation~000~00~static.json was removed"]


def test_a_file_that_is_no_run_is_named(tmp_path):
    store = Store(tmp_path)
    store.save(CONFIRM, made_run()).write_text("{}")
    with pytest.raises(UserError, match=r"conversation~000~00~static\.json is no stored run .*; delete it"):
        store.load(CONFIRM)
    (told,) = store.altered()
    assert told.endswith("was edited after it was stored")


def test_a_payload_that_is_no_stored_run_is_passed_over(tmp_path):
    store = Store(tmp_path)
    store.journal.append(Event.RUN_STORED, {"file": 5})
    assert store.finished(CONFIRM) == {}
    assert store.altered() == []


def test_every_request_is_a_row(tmp_path):
    store = Store(tmp_path)
    store.write_requests([made_run(), made_run(arm="continuous", block=3)], Objectives(ttft=1.0, tpot=0.3))
    rows = store.read_requests()
    assert [(row["arm"], row["block"], row["request_id"]) for row in rows] == [
        (arm, block, name) for arm, block in (("static", 0), ("continuous", 3)) for name in ("r0", "r1", "r2")
    ]
    first, late, refused = rows[:3]
    assert (first["ttft"], first["tpot"], first["e2e"]) == (0.5, 0.25, 1.0)
    assert first["largest_gap"] == pytest.approx(0.4)
    assert [row["good"] for row in rows[:3]] == [True, False, False]
    assert (late["language"], late["pair"], late["tpot"], late["largest_gap"]) == ("ja", "p1", None, None)
    assert (refused["failure"], refused["ttft"], refused["priority"]) == ("refused_queue_full", None, 2)
    assert (refused["output_tokens"], refused["answered_tokens"]) == (8, 0)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be read or written|cannot write"):
        Store(tmp_path / "file").save(DEV, made_run())
