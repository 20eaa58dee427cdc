"""Predictions against the truth: on a ledger whose numbers are made by hand, and on one that an engine recorded."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ekiden.backends.fake import FakeRunner
from ekiden.config import Config, LedgerConfig
from ekiden.evaluation.analysis.calibration import MOST_TENANTS, OTHERS, calibrated
from ekiden.evaluation.load.engine_subject import WARM_UP
from ekiden.evidence.reader import LedgerReader, request_detail_of
from ekiden.ledger.blobs import RequestDetail, TurnDecisions, TurnInputs
from ekiden.ledger.records import EndRow, RequestRow, Rows, TurnRow
from ekiden.ledger.retention import SUFFIX
from ekiden.ledger.store import LedgerWriter
from tests.unit.evaluation.analysis.served import run
from tests.unit.evaluation.load.test_engine_subject import CONFIG, offer, subject, workload
from tests.unit.evidence.recorded import header_of

encode = msgspec.msgpack.encode


def turn(number, *, advance, decode=1, prefill=0, attempts=1, middle=100):
    """A step of ``advance`` microseconds that was predicted to take 80 to 120."""
    return TurnRow(
        turn=number, start=1000 * number, took=advance + 50, wait_start=None, head_start=None, wait=None, head=None,
        waiting=0, running=1, free_blocks=9, decode_rows=decode, decode_context=0, prefill_tokens=prefill,
        prefill_pairs=0, p10=80 if middle else 0, p50=middle, p90=120 if middle else 0, prefill_time=0, swapped=0,
        tokens=1, inputs=encode(TurnInputs(advance=advance, attempts=attempts)), decisions=encode(TurnDecisions()),
    )  # fmt: skip


def request(number, *, tenant="t", came=1, expected=None, wait=None):
    detail = RequestDetail(
        arrival=0.0, deadline=None, sampling={}, prompt_digest=b"", block_keys=b"", num_waiting=0, waiting_tokens=0,
        worst_case_blocks=1, expected_output=expected, expected_wait=wait,
    )  # fmt: skip
    return RequestRow(
        request=number, request_id=f"r{number}", tenant=tenant, turn=came, arrival=1000 * came, prompt_tokens=3,
        max_tokens=9, priority=0, refusal=None, detail=encode(detail),
    )  # fmt: skip


def end(number, *, ended, tokens=5, admitted=None, reason="length"):
    return EndRow(
        request=number, turn=ended, at=1000 * ended, e2e=1000, reason=reason, output_tokens=tokens, cached_tokens=0,
        preemptions=0, admitted=admitted, first_token=None, blocks=1, detail=b"",
    )  # fmt: skip


def stored(folder: Path, run_id: str, turns, requests, ends) -> None:
    runner = FakeRunner(vocab_size=50)
    writer = LedgerWriter(folder / (run_id + SUFFIX), header_of(Config(), runner, run_id))
    for row in turns:
        of_turn = [each for each in requests if each.turn == row.turn], [each for each in ends if each.turn == row.turn]
        writer.put(Rows(row, [], *of_turn, []))
    writer.close()


def arm_run(run_id, arm="continuous", name="chat"):
    return run([], arm=arm, workload=name, run_id=run_id)


def by_group(found, predicted):
    return {one.subgroup: one for one in found if one.predicted == predicted}


def test_steps_are_counted_by_kind_and_neither_the_warm_up_nor_a_second_try(tmp_path: Path):
    turns = [
        turn(1, advance=900),
        turn(2, advance=900),  # the last of the warm-up
        turn(3, advance=80, prefill=4),
        turn(4, advance=121),
        turn(5, advance=100),
        turn(6, advance=200, prefill=4, decode=0),
        turn(7, advance=50, attempts=2),
        turn(8, advance=0, decode=0, middle=0),
    ]
    stored(tmp_path, "a", turns, [request(1, tenant=WARM_UP)], [end(1, ended=2)])
    found = by_group(calibrated([arm_run("a")], tmp_path), "step time")
    assert {name: (one.n, one.observed) for name, one in found.items()} == {
        "": (4, 0.5),
        "step=decode": (2, 0.5),
        "step=mixed": (1, 1.0),
        "step=prefill": (1, 0.0),
        "workload=chat": (4, 0.5),
    }
    assert found[""].stated == 0.8
    # Errors of 20/80, 21/121, 0/100 and 100/200: the middle lies between 21/121 and 20/80.
    assert found[""].median_relative_error == pytest.approx((21 / 121 + 20 / 80) / 2)


def test_lengths_are_held_against_whole_answers_only(tmp_path: Path):
    expected = (4, 6, 8)
    requests = [
        request(1),  # nothing was expected yet
        *(request(number, tenant="ab"[number % 2], expected=expected) for number in range(2, 6)),
        request(6, expected=expected),
    ]
    ends = [
        end(1, ended=2, tokens=1),
        end(2, ended=2, tokens=4),
        end(3, ended=2, tokens=9),
        end(4, ended=2, tokens=8, reason="stop"),
        end(5, ended=2, tokens=6),
        end(6, ended=2, tokens=1, reason="abort"),
    ]
    stored(tmp_path, "a", [turn(1, advance=100), turn(2, advance=100)], requests, ends)
    found = by_group(calibrated([arm_run("a")], tmp_path), "output length")
    assert {name: (one.n, one.observed) for name, one in found.items()} == {
        "": (4, 0.75),
        "tenant=a": (2, 1.0),
        "tenant=b": (2, 0.5),
        "workload=chat": (4, 0.75),
    }


def test_a_wait_counts_from_intake_and_only_behind_a_queue(tmp_path: Path):
    requests = [
        request(1, came=1, wait=0.002),
        request(2, came=1, wait=0.004),
        request(3, came=1, wait=0.0),
        request(4, came=1),
        request(5, came=1, wait=1.0),  # it left before it was admitted
    ]
    ends = [*(end(number, ended=5, admitted=4000) for number in range(1, 5)), end(5, ended=5, reason="abort")]
    stored(tmp_path, "a", [turn(number, advance=100) for number in range(1, 6)], requests, ends)
    found = by_group(calibrated([arm_run("a")], tmp_path), "wait")[""]
    # Both waited 3 ms: longer than 2 ms, not as long as 4 ms.
    assert (found.n, found.observed, found.stated) == (2, 0.5, 0.5)
    assert found.median_relative_error == pytest.approx(1 / 3)


def test_many_tenants_are_shown_as_one(tmp_path: Path):
    requests = [request(number, tenant=f"t{number}", expected=(1, 5, 9)) for number in range(1, MOST_TENANTS + 4)]
    ends = [end(each.request, ended=2) for each in requests]
    stored(tmp_path, "a", [turn(1, advance=100), turn(2, advance=100)], requests, ends)
    found = by_group(calibrated([arm_run("a")], tmp_path), "output length")
    tenants = {name: one.n for name, one in found.items() if name.startswith("tenant=")}
    assert len(tenants) == MOST_TENANTS + 1
    assert tenants[OTHERS] == 3
    assert sum(tenants.values()) == found[""].n == len(requests)


def test_arms_are_told_apart_and_ledgers_that_are_gone_are_named(tmp_path: Path):
    stored(tmp_path, "a", [turn(1, advance=100)], [], [])
    stored(tmp_path, "b", [turn(1, advance=999), turn(2, advance=999)], [], [])
    runs = [arm_run("a"), arm_run("gone"), arm_run("b", "static"), arm_run(None, "other")]
    found = {one.arm: one for one in calibrated(runs, tmp_path) if not one.subgroup}
    assert {arm: (one.n, one.observed) for arm, one in found.items()} == {"continuous": (1, 1.0), "static": (2, 0.0)}
    assert found["continuous"].how.endswith("the ledgers of 1 of 2 runs are gone")
    assert "gone" not in found["static"].how
    assert calibrated(runs, None) == []


def test_what_an_engine_recorded_adds_up(tmp_path: Path):
    config = replace(CONFIG, ledger=LedgerConfig(ledger_dir=str(tmp_path)))
    served = workload(*(offer(i, 3 + i % 5, 3 + i % 5, tenant="ab"[i % 2]) for i in range(24)))
    # Eight at a time for four slots: there is always a queue, and answers end before the last requests come.
    run = subject(config=config, ledger=True, concurrency=8).serve(served)
    run.arm = "continuous"
    found = calibrated([run], tmp_path)
    steps = by_group(found, "step time")
    assert run.steps is not None
    assert steps[""].n == run.steps.steps == sum(one.n for name, one in steps.items() if name.startswith("step="))
    lengths = by_group(found, "output length")
    assert 0 < lengths[""].n == lengths["tenant=a"].n + lengths["tenant=b"].n <= 24
    with LedgerReader(tmp_path / f"{run.run_id}{SUFFIX}") as reader:
        details = [request_detail_of(row) for row in reader.all_requests() if row.tenant != WARM_UP]
    assert lengths[""].n == sum(detail.expected_output is not None for detail in details)
    behind = sum(bool(detail.expected_wait) for detail in details)
    waits = by_group(found, "wait")
    assert behind > 0
    assert waits[""].n == behind
