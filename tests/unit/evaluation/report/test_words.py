import re
import string
from importlib.resources import files

import pytest

from ekiden import data
from ekiden.errors import UserError
from ekiden.evaluation.outcome import Label, Phase, Verdict
from ekiden.evaluation.report.page import SECTIONS
from ekiden.evaluation.report.words import LANGUAGES, Words, words


def filled_in(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def test_the_languages_have_the_same_keys_and_fill_in_the_same():
    english, japanese = words("en"), words("ja")
    assert english.all_keys() == japanese.all_keys()
    for key in english.all_keys():
        assert filled_in(english(key)) == filled_in(japanese(key)), key


def test_japanese_is_japanese():
    """A text without a character of Japanese has been forgotten, unless it is a name or a place to fill in."""
    texts = {key: words("ja")(key) for key in words("ja").all_keys()}
    latin = {key for key, text in texts.items() if not re.search(r"[\u3040-\u30ff\u4e00-\u9fff]", text)}
    assert latin == {"figures.charts", "page.colon"}  # places to fill in, and a sign


def test_every_word_that_the_page_uses_by_name_is_there():
    text = files(data).joinpath("report", "page.html").read_text(encoding="utf-8")
    used = set(re.findall(r'w\("([a-z_]+\.[a-z_]+)"', text))
    assert len(used) > 40
    assert used <= words("en").all_keys()


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_state_has_a_word(language):
    text = words(language)
    found = [text(f"verdict.{each.value}") for each in Verdict] + [text(f"phase.{each.value}") for each in Phase]
    found += [text(f"label.{each.value}") for each in Label] + [text(f"section.{name}") for name in SECTIONS]
    assert len(set(found)) >= len(found) - 3  # none says the same as another, apart from a phase and a verdict


def test_names_without_a_word_are_shown_as_they_are():
    assert words("ja").name("metric", "my_own_figure") == "my own figure"
    assert words("ja").name("metric", "goodput") == "グッドプット"


def test_what_is_missing_in_a_language_is_given_in_english():
    assert words("ja").of({"en": "so"}) == "so"
    assert words("ja").of({"en": "so", "ja": "そう"}) == "そう"
    assert words("en").all_of({}) == []


def test_another_language_is_refused():
    with pytest.raises(UserError, match=r"no language 'de'; choose one of en, ja"):
        words("de")


def test_a_key_that_is_nowhere_is_a_mistake_of_ours():
    with pytest.raises(KeyError):
        Words("en", {"page": {}})("page.title")
