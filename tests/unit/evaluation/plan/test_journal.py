"""Nothing can be changed in a journal, moved, put in or left out, without being told."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekiden.errors import UserError
from ekiden.evaluation.plan.journal import START, Event, Journal

EVENTS = [Event.REGISTERED, Event.DEV_RUN, Event.TUNED, Event.CONFIRM_STARTED, Event.RUN_STORED]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A journal of five entries, and its two files' content."""
    folder = tmp_path_factory.mktemp("journal")
    journal = Journal(folder, now=lambda: datetime(2026, 11, 30, 21, tzinfo=UTC))
    for number, event in enumerate(EVENTS):
        journal.append(event, {"what": number, "名": "走者"})
    return folder, journal.path.read_bytes(), (folder / "journal.head").read_bytes()


def judged(written, content=None, head=None):
    """What is told of the journal with this content."""
    folder, original, original_head = written
    (folder / "journal.jsonl").write_bytes(original if content is None else content)
    (folder / "journal.head").write_bytes(original_head if head is None else head)
    return Journal(folder).read()


def test_a_journal_reads_back_as_it_was_written(written):
    entries, faults = judged(written)
    assert faults == []
    assert [entry.event for entry in entries] == EVENTS
    assert [entry.payload["what"] for entry in entries] == [0, 1, 2, 3, 4]
    assert entries[0].before == START
    assert entries[2].before == entries[1].digest
    assert entries[0].time == "2026-11-30T21:00:00Z"
    assert Journal(written[0]).last_digest() == entries[-1].digest


@settings(max_examples=150)
@given(st.data(), st.integers(1, 255))
def test_any_byte_that_is_changed_is_told(written, data, change):
    content = bytearray(written[1])
    content[data.draw(st.integers(0, len(content) - 1))] ^= change
    assert judged(written, bytes(content))[1]


@given(st.data(), st.integers(1, 255))
def test_any_byte_of_the_head_that_is_changed_is_told(written, data, change):
    head = bytearray(written[2])
    head[data.draw(st.integers(0, len(head) - 1))] ^= change
    assert judged(written, head=bytes(head))[1]


@given(st.lists(st.integers(0, 4), max_size=6).filter(lambda order: order != [0, 1, 2, 3, 4]))
def test_entries_that_are_removed_reordered_or_doubled_are_told(written, order):
    lines = written[1].splitlines(keepends=True)
    assert judged(written, b"".join(lines[at] for at in order))[1]


@given(st.integers(0, 10_000))
def test_a_journal_that_is_cut_off_is_told(written, size):
    content = written[1][: min(size, len(written[1]) - 1)]
    assert judged(written, content)[1]


def test_a_head_that_lags_one_entry_is_that_of_a_killed_process(tmp_path):
    journal = Journal(tmp_path)
    journal.append(Event.REGISTERED, {})
    head = (tmp_path / "journal.head").read_bytes()
    (tmp_path / "journal.head").unlink()
    assert journal.read()[1] == []
    journal.append(Event.DEV_RUN, {})
    (tmp_path / "journal.head").write_bytes(head)
    assert journal.read()[1] == []
    journal.append(Event.DEV_RUN, {})
    (tmp_path / "journal.head").write_bytes(head)
    assert journal.read()[1] == ["the journal's head is not of this journal"]


def test_nothing_is_added_to_a_journal_that_was_edited(tmp_path):
    journal = Journal(tmp_path)
    journal.append(Event.REGISTERED, {"seed": 1})
    journal.path.write_bytes(journal.path.read_bytes().replace(b'"seed":1', b'"seed":2'))
    with pytest.raises(UserError, match=r"entry 0 \(registered\) was edited; nothing can be added"):
        journal.append(Event.DEV_RUN, {})


def test_what_is_not_allowed_leaves_no_trace(tmp_path):
    def never(_):
        raise UserError("no")

    journal = Journal(tmp_path)
    journal.append(Event.REGISTERED, {})
    before = journal.path.read_bytes()
    with pytest.raises(UserError, match="no"):
        journal.append(Event.CONFIRM_STARTED, {}, allowed=never)
    assert journal.path.read_bytes() == before


def test_a_full_disk_leaves_no_half_of_an_entry(tmp_path, monkeypatch):
    import os

    journal = Journal(tmp_path)
    journal.append(Event.REGISTERED, {})
    before = journal.path.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, content: write(handle, content[:20]))
    with pytest.raises(UserError, match="only 20 of"):
        journal.append(Event.DEV_RUN, {})
    monkeypatch.undo()
    assert journal.path.read_bytes() == before
    assert journal.append(Event.DEV_RUN, {}).number == 1


def test_a_journal_that_is_gone_is_missed(tmp_path):
    journal = Journal(tmp_path)
    assert journal.read() == ([], [])
    journal.append(Event.REGISTERED, {})
    journal.path.unlink()
    assert journal.read() == ([], ["the journal is missing, though its head is there"])
