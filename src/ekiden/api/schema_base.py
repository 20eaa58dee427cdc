"""How request bodies become models, and how their errors are worded.

A body is decoded once, with limits on depth and on the size of numbers. Unknown fields are refused one at a time and
lists stop at their first fault, so that a hostile body cannot make a million error objects. Types are strict: "5", 5.0
and true are not whole numbers. ``null`` means absent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema, from_json

from ekiden.api.errors import ApiError, invalid, shown, unsupported
from ekiden.state.sampling_params import Bound

UNKNOWN: Final = "unknown_parameter"
REFUSED: Final = "refused"
RULE: Final = "rule"
"""Type of our own validation errors: the message is complete but for the field and its value."""


class Fate(NamedTuple):
    """How a field that the server does not act on is treated. ``words``: the accepted values, or why none is."""

    refused: bool
    words: str


def no_effect(values: str) -> Fate:
    """The field is accepted with these values and has no effect; the model declares it."""
    return Fate(False, values)


def refused(reason: str) -> Fate:
    """Every value but null is refused; the model does not declare the field."""
    return Fate(True, reason)


class Strict(BaseModel):
    """A JSON object with known fields only. ``fates`` lists the fields that the server does not act on."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    fates: ClassVar[Mapping[str, Fate]] = {}

    @model_validator(mode="before")
    @classmethod
    def _only_known_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = dict(data)
        for key, value in data.items():
            if key in cls.model_fields or any(field.alias == key for field in cls.model_fields.values()):
                continue
            fate = cls.fates.get(key)
            if fate is None or not fate.refused:
                raise PydanticCustomError(UNKNOWN, "unknown field", {"key": key})
            if value is not None:
                raise PydanticCustomError(REFUSED, "refused", {"key": key, "value": shown(value), "why": fate.words})
            del known[key]
        return known


Model = TypeVar("Model", bound=Strict)


def rule(text: str, at: str = "") -> PydanticCustomError:
    """A validation error; ``text`` completes "<field><at> ...", for example "is 5; it must be a string"."""
    return PydanticCustomError(RULE, "{text}", {"text": text, "at": at})


def only_fields(item: dict[str, Any], fields: Sequence[str], at: str) -> None:
    """For objects that are checked by hand: raise a :func:`rule` for a field that is not among ``fields``."""
    unknown = next((key for key in item if key not in fields), None)
    if unknown is not None:
        raise rule(f"has the unknown field {shown(unknown)}", at)


def string_field(item: dict[str, Any], key: str, at: str) -> str:
    """The string in a field; raises a :func:`rule` for anything else."""
    value = item.get(key)
    if not isinstance(value, str):
        raise rule(f"is {shown(value)}; it must be a string", f"{at}.{key}")
    return value


def joined_text(
    value: Any, at: str = "", *, kinds: Sequence[str] = ("text",), extra: Sequence[str] = (), noun: str = "parts"
) -> str:
    """A string, or a list of text parts, joined by line breaks. ``extra``: fields of a part that are ignored."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise rule(f"is {shown(value)}; it must be a string or a list of text {noun}", at)
    texts: list[str] = []
    for index, part in enumerate(value):
        where = f"{at}[{index}]"
        if not isinstance(part, dict):
            raise rule(f"is {shown(part)}; it must be an object", where)
        if part.get("type") not in kinds:
            raise rule(f"is {shown(part.get('type'))}; the model takes text {noun} only", f"{where}.type")
        only_fields(part, ("type", "text", *extra), where)
        texts.append(string_field(part, "text", where))
    return "\n".join(texts)


@dataclass(frozen=True, slots=True)
class Within:
    """Annotates a number that must be within a bound: checked, and described in the documentation."""

    bound: Bound

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        least, most, _, above = self.bound
        described = {"exclusiveMinimum" if above else "minimum": least, "maximum": most}
        return handler(schema) | {key: value for key, value in described.items() if value is not None}

    def _check(self, value: float) -> float:
        if not self.bound.allows(value):
            raise rule(f"is {shown(value)}; it must be {self.bound.words}")
        return value


def parse(model: type[Model], body: bytes) -> Model:
    """The body as ``model``; raises :class:`ApiError` 400."""
    try:
        data = from_json(body, allow_inf_nan=False, allow_partial="off")
    except ValueError as error:
        raise invalid(None, f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(data, dict):
        raise invalid(None, f"The body is {shown(data)}; it must be a JSON object.", code="invalid_json")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _told(error.errors(include_url=False)[0]) from None


def path(location: Sequence[int | str]) -> str:
    """``("messages", 0, "role")`` as ``messages[0].role``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def _told(detail: ErrorDetails) -> ApiError:
    kind = detail["type"]
    context: dict[str, Any] = detail.get("ctx", {})
    field = path(detail["loc"])
    if kind in (UNKNOWN, REFUSED):
        key = shown(context["key"])[1:-1]
        name = f"{field}.{key}" if field else key
        if kind == REFUSED:
            return unsupported(name, f"{name} is {context['value']}; leave it out: {context['why']}.")
        return invalid(name, f"Unknown field {name!r}; the fields are listed under /docs.", code=UNKNOWN)
    if kind == RULE:
        param = field + context["at"]
        return invalid(param, f"{param} {context['text']}.")
    if kind == "missing":
        return invalid(field, f"{field} is required.", code="missing_parameter")
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
_LENGTHS: Final = {
    "string_too_long": ("a string of at most", "max_length", "characters"),
    "too_long": ("of at most", "max_length", "entries"),
    "too_short": ("of at least", "min_length", "entries"),
    "string_too_short": ("a string of at least", "min_length", "characters"),
}


def _allowed(kind: str, context: Mapping[str, Any], detail: ErrorDetails) -> str:
    if kind in _TYPES:
        return _TYPES[kind]
    if kind in _LENGTHS:
        word, key, unit = _LENGTHS[kind]
        return f"{word} {context[key]} {unit}"
    if kind == "literal_error":
        return str(context["expected"])
    return f"valid ({detail['msg']})"
