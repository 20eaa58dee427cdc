"""Checked reading of numbers from a configuration or from metadata: each error names the file, the key and the value.

A configuration is input like any other: sizes are bounded, so that nonsense in it ends as a :class:`ModelError` and
not as an allocation.
"""

import math
from collections.abc import Mapping
from typing import Any

from ekiden.models.architectures.spec import FAMILIES, ModelSpec
from ekiden.models.errors import ModelError

MAX_SIZE = 1 << 24
MAX_LAYERS = 1024


class Fields:
    """A mapping with typed getters. A default of ``None`` makes the key necessary; JSON's ``null`` means absent."""

    def __init__(self, source: str, values: Mapping[str, Any]) -> None:
        self.source = source
        self._values = values

    def has(self, key: str) -> bool:
        return key in self._values

    def is_off(self, key: str) -> bool:
        """Whether the key is absent, null or zero (some writers say 0 for "none")."""
        value = self._values.get(key)
        return value is None or (isinstance(value, int | float) and value == 0)

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def _fail(self, key: str, value: object, wanted: str) -> ModelError:
        if value is None:
            return ModelError(f"{self.source}: {key!r} is missing and needed; fetch or convert the model again")
        shown = " ".join(repr(value).split())[:80]
        return ModelError(f"{self.source}: {key!r} is {shown}, not {wanted}; fetch or convert the model again")

    def integer(self, key: str, default: int | None = None, *, limit: int = MAX_SIZE) -> int:
        """A whole number from 1 to ``limit``."""
        value = self._values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
            raise self._fail(key, value, f"a whole number from 1 to {limit:,}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self._values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self._fail(key, value, "a positive number")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._fail(key, value, "true or false")
        return value

    def text(self, key: str) -> str | None:
        value = self._values.get(key)
        if value is not None and not isinstance(value, str):
            raise self._fail(key, value, "a text")
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self._values.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._fail(key, value, "an object")
        return value


def unsupported(source: str, family: object) -> ModelError:
    """The refusal of an unknown architecture, with the way round it."""
    return ModelError(
        f"{source}: architecture {family!r} is not supported ({', '.join(FAMILIES)} are); export the model with "
        "`optimum-cli export openvino --model ... FOLDER` and give that folder"
    )


def check_shape(source: str, spec: ModelSpec) -> ModelSpec:
    """The spec itself, when its numbers fit together; otherwise a :class:`ModelError`."""
    if spec.num_heads % spec.num_kv_heads:
        raise ModelError(f"{source}: {spec.num_heads} attention heads cannot share {spec.num_kv_heads} key-value heads")
    if spec.head_dim % 2:
        raise ModelError(f"{source}: a head of {spec.head_dim} cannot be rotated in halves; head_dim must be even")
    return spec
