"""How request bodies become models, and how their errors are worded.

A body is decoded once, with limits on depth and on the size of numbers. Unknown fields are refused one at a time and
lists stop at their first fault, so that a hostile body cannot make a million error objects. Types are strict: "5", 5.0
and true are not whole numbers. ``null`` means absent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema, from_json

from ekiden.api.errors import ApiError, invalid, shown, unsupported
from ekiden.api.hand_checks import RULE, rule
from ekiden.api.json_schema import Schema
from ekiden.state.sampling_params import Bound

UNKNOWN: Final = "unknown_parameter"
REFUSED: Final = "refused"


class Fate(NamedTuple):
    """How a field that the server does not act on is treated. ``words``: the accepted values, or why none is."""

    refused: bool
    words: str


def no_effect(values: str) -> Fate:
    """Annotates a field that is accepted with these values and has no effect."""
    return Fate(False, values)


def refused(reason: str) -> Fate:
    """Every value but null is refused; the field stands in ``fates`` and is not declared."""
    return Fate(True, reason)


class Strict(BaseModel):
    """A JSON object with known fields only. ``fates`` lists the fields that the server does not act on."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    fates: ClassVar[dict[str, Fate]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Collect ``fates``: the parents', its own, and those of its fields without effect."""
        super().__pydantic_init_subclass__(**kwargs)
        named = {name: fate for kind in reversed(cls.__mro__) for name, fate in vars(kind).get("fates", {}).items()}
        fields = cls.model_fields.items()
        cls.fates = named | {name: fate for name, field in fields for fate in field.metadata if isinstance(fate, Fate)}

    @model_validator(mode="before")
    @classmethod
    def _only_known_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = dict(data)
        names = {field.alias or name for name, field in cls.model_fields.items()}
        for key in [key for key in data if key not in names]:
            value, fate = known.pop(key), cls.fates.get(key)
            if fate is None or not fate.refused:
                raise PydanticCustomError(UNKNOWN, "unknown field", {"key": key})
            if value is not None:
                raise PydanticCustomError(REFUSED, "refused", {"key": key, "value": shown(value), "why": fate.words})
        return known


Model = TypeVar("Model", bound=Strict)


@dataclass(frozen=True, slots=True, eq=False)  # annotations are hashed
class ReadBy:
    """Annotates a field whose value a function reads, raising a :func:`rule`; ``schema`` is for the documentation."""

    read: Callable[[Any], Any]
    schema: Schema

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return self.schema


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
    allowed = _ALLOWED[kind].format(**context) if kind in _ALLOWED else f"valid ({detail['msg']})"
    return invalid(field, f"{field} is {shown(detail['input'])}; it must be {allowed}.")


_ALLOWED: Final = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "string_too_long": "a string of at most {max_length} characters",
    "string_too_short": "a string of at least {min_length} characters",
    "too_long": "of at most {max_length} entries",
    "too_short": "of at least {min_length} entries",
    "literal_error": "{expected}",
}
