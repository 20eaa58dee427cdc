"""Checks of values that are read by hand, because one field may hold several shapes."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from pydantic_core import PydanticCustomError

from ekiden.api.errors import shown

RULE: Final = "rule"
"""Type of our own validation errors: the message is complete but for the field and its value."""


def rule(text: str, at: str = "") -> PydanticCustomError:
    """A validation error; ``text`` completes "<field><at> ...", for example "is 5; it must be a string"."""
    return PydanticCustomError(RULE, "{text}", {"text": text, "at": at})


def objects(values: Iterable[Any], at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object of a list with its place; raises a :func:`rule` for what is none."""
    for index, value in enumerate(values):
        where = f"{at}[{index}]"
        if not isinstance(value, dict):
            raise rule(f"is {shown(value)}; it must be an object", where)
        yield where, value


def string_field(item: dict[str, Any], key: str, at: str) -> str:
    """The string in a field; raises a :func:`rule` for anything else."""
    value = item.get(key)
    if not isinstance(value, str):
        raise rule(f"is {shown(value)}; it must be a string", f"{at}.{key}")
    return value


TEXT_PARTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""The types of parts that hold text, under the names of both of OpenAI's APIs, each with the key of the text."""


def joined_text(value: Any, at: str = "") -> str:
    """A string, or a list of text parts, joined by line breaks. Other keys of a part are judged elsewhere."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise rule(f"is {shown(value)}; it must be a string or a list of text parts", at)
    texts: list[str] = []
    for where, part in objects(value, at):
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in TEXT_PARTS:
            raise rule(f"is {shown(kind)}; the model takes text parts only", f"{where}.type")
        texts.append(string_field(part, TEXT_PARTS[kind], where))
    return "\n".join(texts)
