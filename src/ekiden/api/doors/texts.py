"""The field of a prompt or an input: a text, a list of texts, token ids, or a list of token-id lists."""

from typing import Any, Final

from ekiden.api.call import Texts
from ekiden.api.errors import shown
from ekiden.api.hand_checks import rule
from ekiden.api.json_schema import TEXT, any_of, array

MAX_TEXTS: Final = 2048
"""Most prompts of a call, and most texts or pairs of texts of one that is only read."""


def _check_each(entries: list[Any], kind: type, words: str, at: str = "") -> None:
    if {*map(type, entries)} == {kind}:
        return
    wrong = next((index for index, entry in enumerate(entries) if type(entry) is not kind), None)
    if wrong is not None:
        raise rule(f"is {shown(entries[wrong])}; it must be {words}", f"{at}[{wrong}]")


def read_texts(value: Any) -> Texts:
    """Prompts as clients send them: a text, texts, token ids, or lists of token ids."""
    if isinstance(value, str):
        return Texts(texts=[value])
    if not isinstance(value, list):
        raise rule(f"is {shown(value)}; it must be a string, a list of strings, token ids, or a list of token-id lists")
    if not value:
        raise rule("is empty; it must hold at least one token or text")
    if isinstance(value[0], str | list) and len(value) > MAX_TEXTS:
        raise rule(f"has {len(value)} entries; at most {MAX_TEXTS} are allowed")
    if isinstance(value[0], str):
        _check_each(value, str, "a string")
        return Texts(texts=value, single=False)
    if not isinstance(value[0], list):
        _check_each(value, int, "a token id")
        return Texts(token_lists=[value])
    _check_each(value, list, "a list of token ids")
    for index, tokens in enumerate(value):
        if not tokens:
            raise rule("is empty; it must hold at least one token", f"[{index}]")
        _check_each(tokens, int, "a token id", f"[{index}]")
    return Texts(token_lists=value, single=False)


_TOKENS_SCHEMA: Final = array({"type": "integer", "minimum": 0})
TEXTS_SCHEMA: Final = any_of(TEXT, array(TEXT), _TOKENS_SCHEMA, array(_TOKENS_SCHEMA))
