"""What the page asks of stored runs: their list, requests, one request's story, two runs, and what would have been."""

import asyncio
import json
import shutil
import sqlite3
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from ekiden.config import ConfigError
from ekiden.dashboard import comparison as comparison_module
from ekiden.dashboard.comparison import compare
from ekiden.dashboard.period import changes_of, period
from ekiden.dashboard.request_list import list_requests
from ekiden.dashboard.run_list import list_runs
from ekiden.dashboard.story import stories
from ekiden.dashboard.what_if import Busy, Simulator, TooLong, simulated, typed
from ekiden.evidence.explain import explain
from ekiden.evidence.listing import BY
from ekiden.evidence.reader import LedgerReader, LedgerReadError
from ekiden.state.controls import ControlChange, SetBy
from tests.unit.dashboard.growing import write
from tests.unit.evidence.directed import Directed

HOSTILE = "<script>alert(1)</script>\"'&"


def names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.sqlite"))


# --- runs


def test_runs_of_earlier_versions_and_damaged_ones(recorded_runs: Path, tmp_path: Path) -> None:
    for path in recorded_runs.glob("*.sqlite"):
        shutil.copy(path, tmp_path)
    (tmp_path / "zz-empty.sqlite").write_bytes(b"")
    (tmp_path / "zz-text.sqlite").write_text("no database at all, but a text of some length" * 100)
    with sqlite3.connect(shutil.copy(tmp_path / "texts.sqlite", tmp_path / "zz-newer.sqlite")) as connection:
        ((header,),) = connection.execute("SELECT header FROM run").fetchall()
        connection.execute("UPDATE run SET header = ?", (json.dumps({**json.loads(header), "format": 99}),))
    connection.close()
    found = {run.run_id: run for run in list_runs(tmp_path)}
    assert {name: run.readable for name, run in found.items()} == {
        **dict.fromkeys(names(recorded_runs), True),
        **dict.fromkeys(("zz-empty", "zz-text", "zz-newer"), False),
    }
    assert "ledger format 99" in found["zz-newer"].why
    assert all(found[name].why and found[name].turns is None for name in ("zz-empty", "zz-text", "zz-newer"))
    texts = found["texts"]
    assert (texts.turns, texts.first_turn, texts.requests, texts.slots, texts.order) == (65, 1, 28, 4, "fair")
    assert not texts.recording
    assert list_runs(tmp_path / "nothing") == []


def test_every_recorded_run_can_be_drawn(recorded_runs: Path) -> None:
    for name in names(recorded_runs):
        with LedgerReader(recorded_runs / f"{name}.sqlite") as reader:
            found = period(reader, 0.0, None)
            ends = {end.request for end in reader.all_ends() if end.admitted is not None}
            turns = len(list(reader.all_turns()))
        assert {int(bar.id.partition(".")[0]) for bar in found.bars if bar.slot is not None} == ends
        assert sum(point.turns for point in found.series) == turns


# --- requests


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("tenant", [None, "limited"])
def test_lists_are_what_a_search_of_all_would_find(recorded_runs: Path, by: str, tenant: str | None) -> None:
    with LedgerReader(recorded_runs / "continuous-fair.sqlite") as reader:
        found = list_requests(reader, None, None, by=by, tenant=tenant, count=5)
        ends = {end.request: end for end in reader.all_ends()}
        rows = [row for row in reader.all_requests() if tenant in (None, row.tenant)]
    if by == "slowest":
        rows = sorted((row for row in rows if row.refusal is None), key=lambda row: -ends[row.request].e2e)
    elif by == "refused":
        rows = [row for row in reversed(rows) if row.refusal is not None]
    else:
        rows.reverse()
    assert [line.request_id for line in found.requests] == [row.request_id for row in rows[:5]]
    assert found.matching == len(rows)
    assert found.tenants == {"b": 9, "limited": 6, "a": 4}


def test_a_line_is_what_the_explanation_says(recorded_runs: Path) -> None:
    with LedgerReader(recorded_runs / "continuous-priority.sqlite") as reader:
        for line in list_requests(reader, None, None, by="latest", tenant=None, count=30).requests:
            (row,) = reader.requests_named(line.request_id)
            told = explain(reader, row)
            assert line.e2e == pytest.approx(told.e2e_seconds)
            assert (line.ttft, line.queue_seconds) == (told.ttft_seconds, told.queue_seconds)
            if row.refusal is None:
                main = told.causes[0]
                assert (line.main_cause, line.main_words, line.main_seconds) == (main.cause, main.words, main.seconds)
            else:
                assert (line.refusal, line.end, line.main_cause) == (row.refusal, None, None)


def test_requests_in_the_engine_are_among_the_slowest(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=1)
    world.submit("long", output=50)
    world.submit("waits", output=2)
    world.step(20)
    with world.stored(tmp_path) as reader:
        found = list_requests(reader, None, None, by="slowest", tenant=None, count=5)
        early = list_requests(reader, 0.0, 0.05, by="latest", tenant=None, count=5)
    assert [(line.request_id, line.end) for line in found.requests] == [("long", None), ("waits", None)]
    assert found.requests[0].tokens == 20
    assert found.requests[1].main_cause == "waiting_for_slot"
    assert [line.request_id for line in early.requests] == ["waits", "long"]


# --- one request


def crowded(folder: Path) -> Path:
    world = Directed(num_blocks=9, num_swap_blocks=30, max_num_seqs=3, max_overtakes=4)
    world.submit("first", prompt=50, output=60, tenant=HOSTILE[:9])
    world.step(3)
    world.submit("second", prompt=30, output=40)
    world.step(3)
    world.submit("large", prompt=100, output=5)
    world.submit("small", prompt=10, output=5)
    world.step(30)
    world.run()
    return write(folder / "crowded.sqlite", world.header, world.kept.turns)


def test_the_story_of_one_that_was_passed_over_and_of_one_that_was_preempted(tmp_path: Path) -> None:
    crowded(tmp_path)
    (large,) = stories(tmp_path, "large", None)
    assert sum(cause.seconds for cause in large.explanation.causes) == pytest.approx(large.explanation.e2e_seconds)
    blocked = next(one for one in large.decisions if one.stage == "refill" and "did not fit" in one.words)
    assert blocked.passed_over == ["large"]
    assert blocked.facts["free_blocks"] < 7
    admitted = next(one for one in large.decisions if "got slot" in one.words)
    assert admitted.chosen[0] == "large"
    assert admitted.facts["order"] == "fcfs"
    assert admitted.at > blocked.at
    assert large.decisions[0].stage == "intake"
    assert large.decisions[-1].facts["reason"] == "length"
    assert {bar.request_id for bar in large.neighbours} == {"first", "second", "small"}
    assert [bar.request_id for bar in large.bars] == ["large"]
    assert large.waited.end == pytest.approx(large.waited.start + (large.line.queue_seconds or 0.0))
    (second,) = stories(tmp_path, "second", "crowded")
    victim = next(one for one in second.decisions if "preempted" in one.words)
    assert victim.chosen == ["second"]
    assert victim.facts["free_blocks"] == 0 or victim.facts["blocks_moved"] > 0
    assert "preempted" in {answer.question for answer in second.answers}
    assert "preempted" in {phase for bar in second.bars for phase, _, _ in bar.segments}
    assert msgspec.json.encode(second)


def test_every_request_of_every_recorded_run_has_a_story(recorded_runs: Path) -> None:
    for name in names(recorded_runs):
        with LedgerReader(recorded_runs / f"{name}.sqlite") as reader:
            ids = [row.request_id for row in reader.all_requests()]
        for request_id in ids[::3]:
            (one,) = stories(recorded_runs, request_id, name)
            assert one.line.request_id == request_id
            assert one.decisions, "at least intake decided"
            assert all(before.at <= after.at for before, after in zip(one.decisions, one.decisions[1:], strict=False))


def test_what_no_run_knows_is_told(recorded_runs: Path) -> None:
    with pytest.raises(LedgerReadError, match="no request 'nobody'"):
        stories(recorded_runs, "nobody", None)
    with pytest.raises(LedgerReadError, match="no request 'nobody' in run texts"):
        stories(recorded_runs, "nobody", "texts")
    with pytest.raises(LedgerReadError, match="no run 'never' is recorded"):
        stories(recorded_runs, "nobody", "never")


# --- two runs


def test_a_run_does_not_differ_from_itself(recorded_runs: Path) -> None:
    path = recorded_runs / "continuous-fair.sqlite"
    with LedgerReader(path) as a, LedgerReader(path) as b:
        found = compare(a, b)
    assert found.a == found.b
    assert found.differing == {}
    assert {value for levels in found.differences.values() for value in levels.values()} == {0.0}
    assert found.pictures[0] == found.pictures[1]
    assert found.whole
    assert found.formulas.keys() == found.a.distributions.keys()


def test_differences_are_of_the_runs_own_figures(recorded_runs: Path) -> None:
    fcfs, fair = (recorded_runs / f"continuous-{name}.sqlite" for name in ("fcfs", "fair"))
    with LedgerReader(fcfs) as a, LedgerReader(fair) as b:
        found = compare(a, b)
        slowest = [max(end.e2e for end in reader.all_ends()) / 1e6 for reader in (a, b)]
    assert found.differing["scheduling_policy"] == ("fcfs", "fair")
    assert found.differences["e2e"]["max"] == pytest.approx(slowest[1] - slowest[0])
    assert (found.a.requests, found.a.refused, found.b.requests) == (15, 1, 19)


def test_what_was_set_in_a_run_is_told_of_the_whole_run(tmp_path: Path) -> None:
    """In its list of changes, however long ago they were, and where it is compared."""
    world = Directed(max_num_seqs=2)
    world.submit("before", output=3)
    world.run()
    for value in (3, 4):
        world.core.set_controls(
            ControlChange(values={"max_num_seqs": value}, set_by=SetBy.PERSON, who="anna", why=f"{value} fit")
        )
        world.submit(f"with {value}", output=3)
        world.run()
    world.wait(600.0)
    world.submit("much later", output=3)
    world.run()
    with world.stored(tmp_path) as reader, LedgerReader(reader.path) as other:
        found = changes_of(reader)
        compared = compare(reader, other)
    assert [(one.name, one.old, one.value, one.why) for one in found.controls] == [
        ("max_num_seqs", "2", "3", "3 fit"), ("max_num_seqs", "3", "4", "4 fit"),
    ]  # fmt: skip
    assert compared.a.settings["max_num_seqs"] == "2 → 3 → 4"


def test_the_drawing_links_to_requests_and_nothing_in_a_name_is_markup(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=2)
    for index in range(3):
        world.submit(f"{HOSTILE}{index}", output=5, tenant=f"{HOSTILE}{index % 2}")
        world.step()
    world.run()
    with world.stored(tmp_path) as a, LedgerReader(a.path) as b:
        found = compare(a, b)
    for picture in found.pictures:
        assert "<script" not in picture
        assert "style=" not in picture
        tree = ElementTree.fromstring(picture)
        links = [each.get("href") for each in tree.iter("{http://www.w3.org/2000/svg}a")]
        assert links == [
            f"/#/request/%3Cscript%3Ealert%281%29%3C%2Fscript%3E%22%27%26{index}?run=directed" for index in range(3)
        ]


def test_a_long_run_is_drawn_in_part_and_says_so(recorded_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison_module, "DRAWN_SECONDS", 1.0)
    path = recorded_runs / "continuous-fair.sqlite"
    with LedgerReader(path) as a, LedgerReader(path) as b:
        found = compare(a, b)
        assert not found.whole
        assert (found.start, found.end) == (0.0, 1.0)
        assert found.a.requests == 19, "figures are of all of it"
        part = compare(a, b, start=1.0, seconds=0.5)
    assert (part.start, part.end, part.a.seconds) == (1.0, 1.5, 0.5)
    assert part.a.requests < 19


# --- what would have been


def test_a_request_under_other_settings(tmp_path: Path) -> None:
    world = Directed(max_num_seqs=1)
    for index in range(6):
        world.submit(f"r{index}", output=10)
        world.step()
    world.run()
    path = write(tmp_path / "run.sqlite", world.header, world.kept.turns)
    told = simulated(path, 6, {"max_num_seqs": 6, "num_blocks": 100})
    assert (told["request_id"], told["changed"], told["requests"]) == ("r5", {"max_num_seqs": 6, "num_blocks": 100}, 6)
    followed = told["followed"]
    assert followed["same"]["e2e"] == pytest.approx(followed["recorded"]["e2e"], rel=0.2)
    assert followed["other"]["ttft"] < 0.5 * followed["recorded"]["ttft"]
    with pytest.raises(LedgerReadError, match="no request number 99"):
        simulated(path, 99, {"max_num_seqs": 6})


async def test_a_simulation_has_a_process_of_its_own_and_bounds(tmp_path: Path) -> None:
    path = crowded(tmp_path)
    simulator = Simulator(most_seconds=60)
    told = await simulator.ask(path, 3, {"scheduling_policy": "fair"})
    assert (told["request_id"], told["changed"]) == ("large", {"scheduling_policy": "fair"})
    with pytest.raises(ConfigError, match="max_num_batched_tokens is 1; with max_num_seqs 3"):
        await simulator.ask(path, 3, {"max_num_batched_tokens": 1})
    with pytest.raises(TooLong, match="given up after 0.05 s"):
        await Simulator(most_seconds=0.05).ask(path, 3, {"max_num_seqs": 2})


async def test_one_simulation_at_once_and_none_for_who_has_left(tmp_path: Path) -> None:
    path = crowded(tmp_path)
    simulator = Simulator(most_seconds=60)
    first = asyncio.create_task(simulator.ask(path, 3, {"max_num_seqs": 2}))
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await simulator.ask(path, 3, {"max_num_seqs": 2})
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await simulator.ask(path, 3, {"max_num_seqs": 2}))["requests"] == 4


def test_settings_come_as_text() -> None:
    assert typed({"max_num_seqs": "16", "prefill_first": "true", "target_itl_ms": "80", "batching": "static"}) == {
        "max_num_seqs": 16,
        "prefill_first": True,
        "target_itl_ms": 80.0,
        "batching": "static",
    }
    with pytest.raises(ConfigError, match="max_num_seqs is 'many'"):
        typed({"max_num_seqs": "many"})
    with pytest.raises(ConfigError, match="colour is no setting that a simulation can change; these are: max_num_seqs"):
        typed({"colour": "red"})
    with pytest.raises(ConfigError, match="no setting is changed"):
        typed({})


def test_a_tenant_has_one_colour_in_both_drawings(tmp_path: Path) -> None:
    paths = []
    for name, tenants in (("one", ("ann", "bob")), ("two", ("bob", "carol", "ann"))):
        world = Directed(max_num_seqs=2)
        for index, tenant in enumerate(tenants):
            world.submit(f"r{index}", output=5, tenant=tenant)
            world.step()
        world.run()
        folder = tmp_path / name
        folder.mkdir()
        with world.stored(folder) as reader:
            paths.append((reader.path, tenants))
    with LedgerReader(paths[0][0]) as a, LedgerReader(paths[1][0]) as b:
        found = compare(a, b)
    assert list(found.tenants) == ["ann", "bob", "carol"]
    assert len(set(found.tenants.values())) == 3
    for picture, (_, tenants) in zip(found.pictures, paths, strict=True):
        bars = [each.get("fill") for each in ElementTree.fromstring(picture).iter() if each.get("rx")]
        assert bars == [found.tenants[tenant] for tenant in tenants]
