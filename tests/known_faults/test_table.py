"""The table of docs/known-faults.md and the tests say the same."""

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
ROW = re.compile(r"^\| (PB|R|OWN)-(\d+) \|.*\| ([^|]+) \|$", re.MULTILINE)


def test_every_entry_of_the_table_has_its_tests_and_every_test_its_entry() -> None:
    table = (TESTS.parent / "docs" / "known-faults.md").read_text(encoding="utf-8")
    rows = ROW.findall(table)
    assert len(rows) == len({(kind, number) for kind, number, _ in rows})
    assert len([kind for kind, _, _ in rows if kind != "OWN"]) == 39
    named: dict[str, set[str]] = {}
    for kind, number, tests in rows:
        entry = f"{kind}_{number}".lower()
        places = re.findall(r"`([^`]+)`", tests)
        named[entry] = {place for place in places if "::" not in place}
        assert places, f"{kind}-{number} has no test"
        for place in places:
            file, _, name = place.partition("::")
            text = (TESTS / file).read_text(encoding="utf-8")
            assert name == "" or f"def {name}(" in text, f"{kind}-{number}: there is no {place}"
            assert name or re.search(rf"def test_\w*{entry}_", text), f"{kind}-{number}: {file} has no test of it"
    for path in TESTS.rglob("test_*.py"):
        file = path.relative_to(TESTS).as_posix()
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8")):
            for entry in re.findall(r"(?<=_)(?:pb|r|own)_\d\d(?=_)", name):
                assert file in named.get(entry, ()), f"{file} tests {entry}, which the table does not say"
