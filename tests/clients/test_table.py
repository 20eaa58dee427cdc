"""The table of docs/clients.md is of the versions that the locks name, and has every client."""

from tests.clients.table import rows
from tests.clients.trial import CLIENTS, LOCKS, PROGRAMS


def test_the_table_has_each_client_with_its_locked_version() -> None:
    assert [row.split(" | ")[:2] for row in rows()] == [
        [f"| {client.shown}", client.locked_version()] for client in CLIENTS
    ]


def test_every_program_is_of_a_client() -> None:
    shared = {"report.py", "js/report.mjs"}
    found = {path.relative_to(PROGRAMS).as_posix() for kind in ("*.py", "js/*.mjs") for path in PROGRAMS.glob(kind)}
    assert found - shared == {client.program for client in CLIENTS}


def test_no_lock_names_where_a_package_came_from() -> None:
    locks = [*LOCKS.glob("*.lock"), *PROGRAMS.glob("*/package-lock.json")]
    assert len(locks) >= 2
    for lock in locks:
        text = lock.read_text(encoding="utf-8")
        assert not any(mark in text for mark in ("resolved", "--index-url", " @ ")), lock
