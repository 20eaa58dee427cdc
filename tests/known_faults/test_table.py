"""The table of docs/known-faults.md and the tests say the same."""

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
ROW = re.compile(r"^\| (PB|R)-(\d+) \|.*\| ([^|]+) \|$", re.MULTILINE)


def test_every_entry_of_the_table_has_its_tests_and_every_test_its_entry() -> None:
    table = (TESTS.parent / "docs" / "known-faults.md").read_text()
    rows = ROW.findall(table)
    assert len(rows) == 39
    for kind, number, tests in rows:
        entry = f"{kind}-{number}".lower().replace("-", "_")
        for place in re.findall(r"`([^`]+)`", tests):
            file, _, name = place.partition("::")
            text = (TESTS / file).read_text()
            assert name == "" or f"def {name}(" in text, f"{kind}-{number}: there is no {place}"
            assert name or re.search(rf"def test_\w*{entry}_", text), f"{kind}-{number}: {file} has no test of it"
    listed = {f"{kind}_{number}".lower() for kind, number, _ in rows}
    for path in TESTS.glob("known_faults/test_*.py"):
        for entry in re.findall(r"def test_((?:pb|r)_\d\d)_", path.read_text()):
            assert entry in listed, f"{path.name} tests {entry}, which is not in the table"
