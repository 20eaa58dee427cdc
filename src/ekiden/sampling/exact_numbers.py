"""Rewrites the numbers of a JSON schema so that what the library generates is what the schema says.

The library computes with 64-bit floats, of which it misreads about one in twelve of those with 16 digits or more, and
writes whole numbers as 64-bit integers. As it stands it therefore gives another number than a schema asks for, or lets
an excluded bound through. So:

- a float is written with digits that the library reads as that float;
- a bound of whole numbers becomes inclusive here, with exact arithmetic;
- an excluded whole bound on the side of zero becomes an inclusive one just beside it;
- bounds at or beyond the ends of 64-bit integers, which many programs write for "any integer", stand for these ends;
- a number that cannot be kept is refused by the name of its keyword, or passed over where the schema is lenient;
- counts may be written as 5.0, and a most that no answer reaches is left out.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor, inf, isfinite, ulp
from typing import Any, Final, NamedTuple, TypeGuard

from ekiden.sampling.grammar_limits import GrammarError

EXACT: Final = 2**53
"""Up to here every whole number is a 64-bit float."""
HIGHEST: Final = 2**63 - 1
HIGHEST_FLOAT: Final = 2**63 - 1024
"""The highest below 2^63 that is a 64-bit float."""
LONG: Final = 10**18
"""The library needs a bound on the other side too, once one has as many digits as this."""
SMALLEST: Final = Fraction(1, 10**60)
"""The library writes a bound as an expression that nests deeper with each decimal place; about 80 are possible."""
MOST: Final = 2**31
"""No answer has as many characters, entries or properties."""
_MAPS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose value has a schema under each name."""
_DATA: Final = frozenset({"const", "default", "example", "examples"})
"""Keywords whose value is no schema; neither is a list under ``enum``."""
_COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_LOWER: Final = ("minimum", "exclusiveMinimum")
_UPPER: Final = ("maximum", "exclusiveMaximum")
_WAY_OUT: Final = "use a string instead, or leave out strict"


class _Bound(NamedTuple):
    """A bound as it was given; upper bounds are negated, so that all are lower ones."""

    value: Fraction
    excluded: bool
    key: str
    given: Any


def exact_numbers(schema: Mapping[str, Any], *, lenient: bool) -> dict[str, Any]:
    """The schema to give to the library. Raises :class:`GrammarError` for a number that cannot be kept.

    Its depth has been checked, so that this may recurse.
    """
    return _Rewriting(lenient).schema(schema, "")


class _Rewriting:
    def __init__(self, lenient: bool) -> None:
        self._lenient = lenient

    def schema(self, schema: Mapping[str, Any], where: str) -> dict[str, Any]:
        made = {key: self._value(key, value, _at(where, key)) for key, value in schema.items()}
        for key in ("const", "enum"):
            if key in made and (key == "const" or isinstance(made[key], list)):
                self._keep_literal(made, key, where)
        for key in _COUNTS:
            self._check_count(made, key, where)
        if any(key in made for key in _LOWER + _UPPER):
            self._rewrite_bounds(made, where)
        multiple = made.get("multipleOf")
        if _is_number(multiple) and multiple <= 0:
            self._cannot("multipleOf", multiple, "it must be greater than 0", where)
            del made["multipleOf"]
        return made

    def _value(self, key: str, value: Any, where: str) -> Any:
        """A keyword's value, with the schemas inside it rewritten; other values are left as they are."""
        if key in _DATA:
            return value
        if isinstance(value, Mapping):
            if key in _MAPS:
                return {name: self._value("", inner, _at(where, name)) for name, inner in value.items()}
            return self.schema(value, where)
        if isinstance(value, list) and key != "enum":
            return [self._value("", inner, f"{where}[{index}]") for index, inner in enumerate(value)]
        return value

    def _keep_literal(self, made: dict[str, Any], key: str, where: str) -> None:
        given = made[key]
        try:
            made[key] = _readable(given)
        except _Unkept as error:
            kept = f"up to {EXACT} (2^53), and with up to 15 digits, every number can be kept exactly; this one cannot"
            self._cannot(key, error.number, f"{kept}: {_WAY_OUT}", where)
            del made[key]
            if all(type(each) is int for each in (given if key == "enum" else [given])):
                made.setdefault("type", "integer")

    def _check_count(self, made: dict[str, Any], key: str, where: str) -> None:
        value = made.get(key)
        if isinstance(value, float) and value.is_integer():
            value = made[key] = int(value)
        if _is_number(value) and value >= MOST:
            if key.startswith("min"):
                self._cannot(key, value, "no answer is as long", where)
            del made[key]
        elif key == "minProperties" and _is_number(value) and value > len(_listed(made.get("required"))) + 1:
            # The library does not see when a name that is not listed comes again.
            self._cannot(key, value, "it may exceed the number of required properties by one at most", where)

    def _rewrite_bounds(self, made: dict[str, Any], where: str) -> None:
        whole = _only_whole(made.get("type"))
        # The library turns 2^63 into the highest 64-bit integer.
        end = HIGHEST + 1 if whole else HIGHEST_FLOAT
        lower = self._held(self._tightest(made, _LOWER, 1, where), whole=whole, end=HIGHEST_FLOAT, where=where)
        upper = self._held(self._tightest(made, _UPPER, -1, where), whole=whole, end=end, where=where)
        if lower and upper and (lower.value, lower.excluded or upper.excluded) > (-upper.value, False):
            self._cannot(lower.key, lower.given, f"with this {upper.key} no number is left", where)
        for key in _LOWER + _UPPER:
            made.pop(key, None)
        if upper is None and lower is not None and lower.value >= LONG:
            made["maximum"] = end
        if lower is None and upper is not None and upper.value >= LONG:
            made["minimum"] = -HIGHEST_FLOAT
        for bound, keys, sign in ((lower, _LOWER, 1), (upper, _UPPER, -1)):
            if bound is not None:
                value = bound.value
                number = int(value) if value.denominator == 1 else _spelled_above(float(value))
                made[keys[bound.excluded]] = sign * number

    def _tightest(self, made: Mapping[str, Any], keys: tuple[str, str], sign: int, where: str) -> _Bound | None:
        """The narrower of the bounds on one side. The second keyword may be a boolean, as in the oldest drafts."""
        found: list[_Bound] = []
        for key in keys:
            value = made.get(key)
            if _is_number(value) and _is_finite(value):
                excluded = key == keys[1] or made.get(keys[1]) is True
                found.append(_Bound(sign * Fraction(value), excluded, key, value))
            elif key in made and not (key == keys[1] and isinstance(value, bool)):
                self._cannot(key, value, "it must be a finite number", where)
        return max(found, default=None)

    def _held(self, bound: _Bound | None, *, whole: bool, end: int, where: str) -> _Bound | None:
        """A lower bound as the library holds it; None for one that is passed over.

        ``end`` is how far below zero it can reach.
        """
        if bound is None:
            return None
        value, excluded = bound.value, bound.excluded
        if whole:
            value, excluded = Fraction(floor(value) + 1 if excluded else ceil(value)), False
        if value <= -HIGHEST:
            return bound._replace(value=Fraction(-end), excluded=False)
        near = inf if value >= HIGHEST else float(value)
        reason = ""
        if abs(value) > EXACT and (near == inf or value != Fraction(near if whole else Decimal(repr(near)))):
            reason = "beyond 2^53 a bound must be below 2^63 and a number that 64-bit floats hold exactly"
        elif 0 < abs(value) < SMALLEST:
            reason = f"a bound must be 0 or at least {float(SMALLEST)} away from it"
        if reason:
            self._cannot(bound.key, bound.given, f"{reason}; {_WAY_OUT}", where)
            return None
        if excluded and value >= 0 and value.denominator == 1:
            # The library would let the whole number itself through, without a decimal point.
            value += SMALLEST if value == 0 else Fraction(1, 10 ** max(0, 15 - len(str(value))))
            excluded = False
        return bound._replace(value=value, excluded=excluded)

    def _cannot(self, key: str, value: Any, reason: str, where: str) -> None:
        """Refuse a value; a lenient schema passes over it."""
        if not self._lenient:
            text = str(value)
            shown = text if len(text) <= 40 else f"{text[:40]}... ({len(text)} characters)"
            raise GrammarError(f"{key} has {shown}: {reason}", _at(where, key))


def _at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


class _Unkept(Exception):
    """A number that the library cannot be given exactly."""

    def __init__(self, number: float) -> None:
        self.number = number


def _readable(value: Any) -> Any:
    """A JSON value with its floats written so that the library reads them as they are. Raises :class:`_Unkept`."""
    if isinstance(value, list):
        return [_readable(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _readable(each) for key, each in value.items()}
    if _is_number(value) and not abs(value) <= EXACT:
        raise _Unkept(value)
    return _spelled(value) if isinstance(value, float) else value


def _spellings(value: float) -> Iterator[tuple[float, Decimal]]:
    """Ways to write a float, or one beside it, each with the float that the library reads.

    The library makes one float of all digits and divides it by one of a power of ten, which rounds twice.
    """
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    for more in range(4):
        number, places = int("".join(map(str, digits))) * 10**more, more - exponent
        if places > 308 or number >= 2**63:
            return
        step = max(1, int(ulp(number)))
        for whole in (number, number + step, number - step):
            read, text = float(whole) / float(f"1e{places}"), Decimal((sign, Decimal(whole).as_tuple().digits, -places))
            yield (-read if sign else read), text


def _spelled(value: float) -> Decimal | float:
    """A float in digits that the library reads as that float. Raises :class:`_Unkept` where there are none."""
    _, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    if value.is_integer() or (len(digits) <= 15 and exponent >= -22):  # both are floats exactly
        return value
    for read, text in _spellings(value):
        if read == value:
            return text
    raise _Unkept(value)


def _spelled_above(value: float) -> Decimal | float:
    """As :func:`_spelled`; where that fails, the next higher number that works."""
    try:
        return _spelled(value)
    except _Unkept:
        return min((each for each in _spellings(value) if each[0] > value), default=(value, value))[1]


def _is_finite(value: float) -> bool:
    return isinstance(value, int) or isfinite(value)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _only_whole(kind: Any) -> bool:
    """Whether a schema's ``type`` lets no other numbers than whole ones come."""
    kinds = kind if isinstance(kind, list) else [kind]
    return "integer" in kinds and "number" not in kinds
