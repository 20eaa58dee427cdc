"""The words of the report, one file a language: ``data/report/words.LANGUAGE.toml``, with the same keys in each."""

import tomllib
from functools import cache
from importlib.resources import files

from ekiden import data
from ekiden.errors import UserError

LANGUAGES = ("en", "ja")


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

    def all_keys(self) -> set[str]:
        return {f"{section}.{name}" for section, texts in self._texts.items() for name in texts}


@cache
def words(language: str) -> Words:
    """Raises UserError for a language in which there are no words."""
    if language not in LANGUAGES:
        raise UserError(f"the report is in no language {language!r}; choose one of {', '.join(LANGUAGES)}")
    text = files(data).joinpath("report", f"words.{language}.toml").read_text(encoding="utf-8")
    return Words(language, tomllib.loads(text))
