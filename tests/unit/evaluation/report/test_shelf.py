"""The reports of a folder of evaluations, as the server's page lists and opens them."""

import os
import shutil
from pathlib import Path

import msgspec

from ekiden.evaluation.report.shelf import Shelf

DONE = Path(__file__).parents[4] / "docs" / "evaluation" / "2026-11-30"


def test_reports_are_found_at_any_depth_and_opened_by_their_names_alone(tmp_path: Path) -> None:
    whole = msgspec.json.decode((DONE / "report.json").read_bytes())
    few = {name: whole[name] for name in ("verdict", "phase", "label", "summary", "question", "integrity")}
    for place, date in (("one", 1), ("two/plan", 3), ("two/plan/exploratory", 2)):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "report.json").write_bytes(msgspec.json.encode(few))
        (tmp_path / place / "report.html").write_text(f"page of {place}")
        os.utime(tmp_path / place / "report.json", (date, date))
    (tmp_path / "one" / "report.ja.html").write_text("in Japanese")
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "report.json").write_text("{}")
    (tmp_path / "secret.html").write_text("not a report")
    shelf = Shelf(tmp_path)
    lines = shelf.listed()
    assert [(line.name, line.written) for line in lines] == [
        ("two/plan", 3.0),
        ("two/plan/exploratory", 2.0),
        ("one", 1.0),
    ]
    assert lines[2].reports == {"en": "one/report.html", "ja": "one/report.ja.html"}
    assert (lines[0].verdict, lines[0].label) == (whole["verdict"], whole["label"])
    assert shelf.report("one/report.ja.html") == b"in Japanese"
    for name in ("secret.html", "one/report.json", "../x", "three/report.html", "one/../one/report.html", ""):
        assert shelf.report(name) is None
    shutil.rmtree(tmp_path / "one")
    assert [line.name for line in shelf.listed()] == ["two/plan", "two/plan/exploratory"]
    assert Shelf(tmp_path / "nothing").listed() == []
