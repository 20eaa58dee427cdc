"""How request bodies become models, and how their errors are worded.

A body is decoded once, with limits on depth and on the size of numbers. Lists stop at their first fault, so that a
hostile body cannot make a million error objects. Types are strict: "5", 5.0 and true are not whole numbers. ``null``
means absent. What a model does not declare, :mod:`ekiden.api.shape` finds and judges.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Protocol, TypeVar, get_args, get_origin, runtime_checkable

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema, from_json

from ekiden.api.errors import ApiError, invalid, shown
from ekiden.api.hand_checks import RULE, rule
from ekiden.api.ignored import Ignored
from ekiden.api.json_schema import Schema
from ekiden.api.lone_surrogates import LONE_SURROGATE, lone_surrogate
from ekiden.api.shape import Fate, Objects, PassedOver, Shape, path
from ekiden.state.sampling_params import Bound


@runtime_checkable
class HasShape(Protocol):
    """Annotates a field and knows the shape of what it holds."""

    @property
    def shape(self) -> Shape | None: ...


class Strict(BaseModel):
    """A JSON object whose declared fields are checked strictly. ``fates`` says what becomes of other names that clients
    send; a model has those of its parents too."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    fates: ClassVar[Mapping[str, Fate]] = {}
    closed: ClassVar[bool] = False
    """An unknown field may be a constraint on the answer, so it is always refused."""
    shape: ClassVar[Shape]
    unfolded: ClassVar[str | None] = None
    """A field whose content counts as if it stood beside it."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        fates = {name: fate for kind in reversed(cls.__mro__) for name, fate in vars(kind).get("fates", {}).items()}
        names = {field.alias or name: field for name, field in cls.model_fields.items()}
        cls.fates = {name: fate for name, fate in fates.items() if name not in names}
        inner = [within for name, field in names.items() if (within := _within(name, field.annotation, field.metadata))]
        cls.shape = Shape(names=frozenset(names), fates=cls.fates, inner=tuple(inner), closed=cls.closed)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The documentation lists the fields of ``fates`` too."""
        described = handler.resolve_ref_schema(handler(schema))
        properties: dict[str, Schema] = described.setdefault("properties", {})
        properties |= described_fates(cls.shape)
        if cls.unfolded is not None:
            properties[cls.unfolded] = {
                "type": ["object", "null"],
                "description": "Its fields count as if they were here.",
            }
        return described


def described_fates(shape: Shape) -> dict[str, Schema]:
    """The properties of a JSON schema for the fields that the server does not act on."""
    return {name: _described(fate) for name, fate in shape.fates.items()}


def _described(fate: Fate) -> Schema:
    if not fate.refused:
        return {"description": f"Taken without effect: {fate.words}"}
    return {"description": f"Refused: {fate.words}", "enum": [*fate.fine, None]}


def _within(key: str, annotation: Any, metadata: Sequence[Any] = (), *, listed: bool = False) -> Objects | None:
    """The objects that a field holds, itself or in a list; None for other fields and free-form objects."""
    for each in metadata:
        if isinstance(each, HasShape) and each.shape is not None:
            return Objects(key, each.shape, listed or isinstance(each, ReadBy))
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        return Objects(key, annotation.shape, listed)
    if get_origin(annotation) is Annotated:
        inner, *beside = get_args(annotation)
        return _within(key, inner, beside, listed=listed)
    listed = listed or get_origin(annotation) is list
    return next((found for part in get_args(annotation) if (found := _within(key, part, listed=listed))), None)


Model = TypeVar("Model", bound=Strict)

LARGE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, eq=False)  # annotations are hashed
class ReadBy:
    """Annotates a field whose value a function reads, raising a :func:`rule`; ``schema`` is for the documentation.

    ``shape``: of the objects in it, whose other keys are then found and told; without one nobody looks at them.
    """

    read: Callable[[Any], Any]
    schema: Schema
    shape: Shape | None = None

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


@contextlib.contextmanager
def _no_collection(num_bytes: int) -> Iterator[None]:
    """A million lists make the collector look for garbage again and again, in which it finds none: three quarters of
    the time that such a body takes, in which no other thread runs."""
    if num_bytes < LARGE_BYTES or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def parse(model: type[Model], body: bytes, *, refuse_unknown: bool = False) -> tuple[Model, list[Ignored]]:
    """The body as ``model``, and the fields that were taken without effect. Raises :class:`ApiError` 400."""
    try:
        with _no_collection(len(body)):
            data = from_json(body, allow_inf_nan=False, allow_partial="off")
    except ValueError as error:
        if (place := lone_surrogate(body)) is not None:
            raise invalid(place, f"{place} holds {LONE_SURROGATE}.", code="invalid_json") from None
        raise invalid(None, f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(data, dict):
        raise invalid(None, f"The body is {shown(data)}; it must be a JSON object.", code="invalid_json")
    if model.unfolded in data:
        within = data.pop(model.unfolded)
        if not isinstance(within, dict | None):
            raise invalid(model.unfolded, f"{model.unfolded} is {shown(within)}; it must be an object of fields.")
        data = {**(within or {}), **data}
    try:
        fields = model.model_validate(data)
    except ValidationError as error:
        raise _told(error.errors(include_url=False)[0]) from None
    passed_over = PassedOver(refuse_unknown=refuse_unknown)
    passed_over.look(model.shape, data)
    return fields, passed_over.names


def rule_of(error: ValidationError, at: str) -> PydanticCustomError:
    """The first fault of a value that was validated by itself, as a :func:`rule` of what holds it ``at`` a place."""
    told = _told(error.errors(include_url=False)[0])
    return rule(told.message.removeprefix(f"{told.param} ").removesuffix("."), f"{at}{told.param or ''}")


def _told(detail: ErrorDetails) -> ApiError:
    kind = detail["type"]
    context: dict[str, Any] = detail.get("ctx", {})
    field = path(detail["loc"])
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
