import re
from functools import cache
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from ekiden.errors import UserError
from ekiden.evaluation.outcome import Chart, Curve, Outcome, Verdict
from ekiden.evaluation.report.page import SECTIONS, page
from ekiden.evaluation.report.words import LANGUAGES, words
from ekiden.evaluation.report.write import read_report, write_report
from tests.unit.evaluation.report.sample import sample

EMPTY: dict[str, Any] = {
    name: [] if isinstance(getattr(sample(), name), list) else {}
    for name in (
        *("falsifiers", "predictions", "metrics", "arms", "workloads", "figures", "noise", "blocks_needed", "tuning"),
        *("calibration", "fairness", "worst", "void", "charts", "slots", "answers", "limits", "formulas", "integrity"),
        *("lineage", "decision", "summary"),
    )
}


@cache
def drawn(language: str = "en") -> str:
    return page(sample(), language)


class Balanced(HTMLParser):
    """Counts elements, and notes those that were closed in the wrong order or never."""

    VOID = {"meta", "link", "br", "wbr"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.targets += [value for name, value in attrs if name == "href" and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Nothing is left open."""


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("changed", [{}, EMPTY, {"registration": None, "integrity": ["plan.toml was edited"]}])
def test_the_page_is_well_formed_whatever_is_missing(language, changed):
    found = Balanced(page(sample(**changed), language))
    assert (found.open, found.wrong) == ([], [])
    assert len(found.ids) == len(set(found.ids))
    assert {target[1:] for target in found.targets if target.startswith("#")} <= set(found.ids)
    assert [name for name in found.ids if name in SECTIONS] == list(SECTIONS)


def test_nothing_points_outside():
    text = drawn()
    assert set(re.findall(r"url\(([^)]*)\)", text)) == {"#hatch"}
    assert set(re.findall(r"https?://[^\"' ]*", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"<(script|img|iframe|object)|@import", text)
    assert re.search(r"content=\"default-src &#39;none&#39;; style-src &#39;sha256-", text)


def test_every_drawing_is_well_formed_and_named():
    drawings = re.findall(r"<svg.*?</svg>", drawn(), flags=re.DOTALL)
    assert len(drawings) > 40
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)
        assert root.get("aria-hidden") == "true" or root.get("aria-label")


@pytest.mark.parametrize("verdict", Verdict)
def test_the_verdict_and_its_reason_come_first(verdict):
    outcome = sample(verdict)
    text = page(outcome)
    order = [
        words("en")(f"verdict.{verdict.value}") + "</span>",
        outcome.summary["en"],
        'id="falsifiers"',
        'id="metrics"',
    ]
    places = [text.index(each, text.index("<main>")) for each in order]
    assert places == sorted(places)


def test_what_was_changed_since_registration_is_shown():
    assert "plan.toml was edited" in page(sample(integrity=["plan.toml was edited"]))
    assert "Nothing was found changed" not in page(sample(integrity=["plan.toml was edited"]))
    assert "Nothing was found changed" not in page(sample(registration=None))
    assert "Nothing was found changed" in drawn()


def test_figures_that_could_not_be_had_are_said_so():
    assert page(sample(figures=[])).count("not estimable") < drawn().count("not estimable")
    assert "推定できない" in drawn("ja")


def test_curves_with_holes_are_drawn_without_them():
    nan = float("nan")
    curves = [
        Curve(name="a", x=[0.0, 1.0, 2.0], y=[1.0, nan, 3.0], low=[0.5, nan, 2.5], high=[1.5, nan, 3.5]),
        Curve(name="none", x=[], y=[]),
    ]
    chart = Chart(kind="gain_variance", title="t", x_label="x", y_label="y", curves=curves)
    text = page(sample(charts=[chart], figures=[]))
    assert not re.search(r"[ ,\"]nan\b", text)
    assert text.count('class="line c0" points=') == 1
    assert "no gain" in text


def test_what_has_no_threshold_is_a_row_of_a_table_and_not_a_drawing():
    text = drawn()
    judged, measured = text[text.index('id="metrics"') : text.index('id="answers"')].split("<details>")
    assert judged.count('<li class="metric') == 7
    assert measured.count('<tr class="head">') == 4  # errors, equal tokens, first token, processor time
    assert "−13 pp" in measured
    assert "−20 … −6 pp" in measured
    assert "<svg" not in measured


def test_a_share_of_both_arms_is_told_once():
    text = drawn()
    assert "not estimable against" not in text[text.index("answers with equal tokens") :][:3000]
    assert text.count("360 answers compared") == 2  # of the judged one in its reason, of the other beside its value


@pytest.mark.parametrize(
    "told",
    [
        "値 0.975 は result",
        "事例：largest gap",
        "p10〜p90 と実際の値",
        "約 6 ブロックが必要",
        "プロンプトのトークン数: 17-64",
    ],
)
def test_what_the_outcome_says_in_japanese_is_shown_in_japanese(told):
    assert told in drawn("ja")
    assert told not in drawn()


def test_english_within_the_japanese_page_is_said_to_be_english():
    text = drawn("ja")
    for sentence in (
        "The gain comes from filling freed slots, so equal lengths must show none.",
        "Part of the interval lies beyond the margin of 5%, and part does not.",
        "good requests / seconds of arrivals",
        "Readers at 40 terminals, a third of whom write Japanese; staff with long documents.",
        "Grid on dev, the setting of the highest goodput; ties go to the smaller one.",
    ):
        assert re.search(rf'lang="en">{re.escape(sentence)}<', text), sentence
    assert 'lang="en">Readers' not in drawn()


def test_settings_are_not_figures():
    text = page(sample(lineage={"settings": {"engine.seed": 20263, "server.api_key": None}}))
    assert "<dd>20263</dd>" in text
    assert "<dd>not set</dd>" in text


def test_texts_of_the_plan_are_shown_as_written_in_both_languages():
    for language in LANGUAGES:
        text = drawn(language)
        assert "The gain comes from filling freed slots, so equal lengths must show none." in text
        assert f'<html lang="{language}">' in text


def test_the_folder_gets_the_pages_and_the_json_they_came_from(tmp_path):
    outcome = sample()
    paths = write_report(outcome, tmp_path / "new", ["en", "ja"])
    assert [path.name for path in paths] == ["report.html", "report.ja.html", "report.json"]
    again = read_report(paths[-1])
    assert isinstance(again, Outcome)
    assert msgspec.to_builtins(again) == msgspec.to_builtins(outcome)
    assert page(again, "ja") == paths[1].read_text(encoding="utf-8")


def test_an_unknown_language_writes_nothing(tmp_path):
    with pytest.raises(UserError, match="no language 'fr'"):
        write_report(sample(), tmp_path / "new", ["en", "fr"])
    assert not (tmp_path / "new").exists()
