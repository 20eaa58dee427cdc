"""How request bodies become models, and how what is wrong with them is told.

A body is decoded once, with limits on depth and on the size of numbers. Unknown fields are refused one at a time and
lists stop at their first fault, so that a hostile body cannot make a million error objects. Types are strict: "5", 5.0
and true are not whole numbers. ``null`` means absent.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError, from_json

from ekiden.api.errors import ApiError, invalid, shown, unsupported

UNKNOWN: Final = "unknown_parameter"
RULE: Final = "rule"
"""Type of our own validation errors: the message is complete but for the field and its value."""


class Strict(BaseModel):
    """A JSON object with known fields only."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _only_known_fields(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields and all(field.alias != key for field in cls.model_fields.values()):
                    raise PydanticCustomError(UNKNOWN, "unknown field", {"key": key})
        return data


Model = TypeVar("Model", bound=Strict)


def rule(text: str, at: str = "") -> PydanticCustomError:
    """A validation error; ``text`` completes "<field><at> ...", for example "is 5; it must be a string"."""
    return PydanticCustomError(RULE, "{text}", {"text": text, "at": at})


def only_fields(item: dict[str, Any], fields: Sequence[str], at: str) -> None:
    """For objects that are checked by hand: raises a :func:`rule` for a field that is not among ``fields``."""
    unknown = next((key for key in item if key not in fields), None)
    if unknown is not None:
        raise rule(f"has the unknown field {shown(unknown)}", at)


def string_field(item: dict[str, Any], key: str, at: str) -> str:
    """The same for a field that must be a string."""
    value = item.get(key)
    if not isinstance(value, str):
        raise rule(f"is {shown(value)}; it must be a string", f"{at}.{key}")
    return value


def parse(model: type[Model], body: bytes, refused: Mapping[str, str] | None = None) -> Model:
    """The body as ``model``; raises :class:`ApiError` 400. ``refused`` tells why known fields are not taken."""
    try:
        data = from_json(body, allow_inf_nan=False, allow_partial="off")
    except ValueError as error:
        raise invalid(None, f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(data, dict):
        raise invalid(None, f"The body is {shown(data)}; it must be a JSON object.", code="invalid_json")
    return parse_data(model, data, refused)


def parse_data(model: type[Model], data: dict[str, Any], refused: Mapping[str, str] | None = None) -> Model:
    """Decoded JSON as ``model``; see :func:`parse`."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _told(error.errors(include_url=False)[0], refused or {}) from None


def path(location: Sequence[int | str]) -> str:
    """``("messages", 0, "role")`` as ``messages[0].role``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def _told(detail: ErrorDetails, refused: Mapping[str, str]) -> ApiError:
    kind = detail["type"]
    context: dict[str, Any] = detail.get("ctx", {})
    field = path(detail["loc"])
    if kind == UNKNOWN:
        key = shown(context["key"])[1:-1]
        name = f"{field}.{key}" if field else key
        return invalid(name, f"Unknown field {name!r}; the fields are listed under /docs.", code=UNKNOWN)
    if kind == RULE:
        param = field + context["at"]
        return invalid(param, f"{param} {context['text']}.")
    if kind == "missing":
        return invalid(field, f"{field} is required.", code="missing_parameter")
    if kind == "none_required":
        reason = refused.get(str(detail["loc"][-1]), "it is not supported by this server")
        return unsupported(field, f"{field} is {shown(detail['input'])}; leave it out: {reason}.")
    return invalid(field, f"{field} is {shown(detail['input'])}; it must be {_allowed(kind, context, detail)}.")


_TYPES: Final = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_BOUNDS: Final = {
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
    "greater_than": ("over", "gt"),
    "less_than": ("under", "lt"),
}
_LENGTHS: Final = {
    "string_too_long": ("a string of at most", "max_length", "characters"),
    "too_long": ("of at most", "max_length", "entries"),
    "too_short": ("of at least", "min_length", "entries"),
    "string_too_short": ("a string of at least", "min_length", "characters"),
}


def _allowed(kind: str, context: Mapping[str, Any], detail: ErrorDetails) -> str:
    if kind in _TYPES:
        return _TYPES[kind]
    if kind in _BOUNDS:
        word, key = _BOUNDS[kind]
        return f"{word} {context[key]}"
    if kind in _LENGTHS:
        word, key, unit = _LENGTHS[kind]
        return f"{word} {context[key]} {unit}"
    if kind == "literal_error":
        return str(context["expected"])
    return f"valid ({detail['msg']})"
