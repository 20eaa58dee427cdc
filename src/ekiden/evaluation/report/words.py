"""The words of the report, one file a language: ``data/report/words.LANGUAGE.toml``, with the same keys in each."""

import re
import tomllib
from functools import cache
from importlib.resources import files

from ekiden import data
from ekiden.errors import UserError

LANGUAGES = ("en", "ja")
_JAPANESE = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")


class Words:
    """``words("section.metrics")`` is a text; names that somebody else chose are looked up with :meth:`name`."""

    def __init__(self, language: str, texts: dict[str, dict[str, str]]) -> None:
        self.language = language
        self._texts = texts

    def __call__(self, key: str, **filled: object) -> str:
        """The text of a key such as ``page.title``; KeyError for one that is in no file."""
        section, _, name = key.partition(".")
        text = self._texts[section][name]
        return text.format(**filled) if filled else text

    def name(self, section: str, raw: str) -> str:
        """The word for a name, or the name itself, in plain words, where there is none."""
        return self._texts[section].get(raw, raw.replace("_", " "))

    def of(self, by_language: dict[str, str]) -> str:
        """What was given in several languages, in this one, or in English where it is missing."""
        return by_language.get(self.language) or by_language.get("en", "")

    def all_of(self, by_language: dict[str, list[str]]) -> list[str]:
        return by_language.get(self.language) or by_language.get("en", [])

    def foreign(self, text: str) -> str:
        """The language of a text that is in another one than the page, for its ``lang``; else empty."""
        language = "ja" if _JAPANESE.search(text) else "en"
        return language if language != self.language and text else ""

    def subgroup(self, raw: str) -> str:
        """Such as ``tenant=c143``, with the word for what tells the subgroups apart."""
        kind, equals, value = raw.partition("=")
        return f"{self.name('subgroup', kind)}: {value}" if equals else raw

    def all_keys(self) -> set[str]:
        return {f"{section}.{name}" for section, texts in self._texts.items() for name in texts}


@cache
def words(language: str) -> Words:
    """Raises UserError for a language in which there are no words."""
    if language not in LANGUAGES:
        raise UserError(f"the report is in no language {language!r}; choose one of {', '.join(LANGUAGES)}")
    text = files(data).joinpath("report", f"words.{language}.toml").read_text(encoding="utf-8")
    return Words(language, tomllib.loads(text))
