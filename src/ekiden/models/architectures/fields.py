"""Typed and checked reading of values from a configuration or from metadata.

Each error names the file, the key and the value. Sizes are bounded, so that a nonsensical number ends as a
:class:`ModelError` and not as a huge allocation.
"""

import math
from collections.abc import Mapping
from typing import Any

from ekiden.models.architectures.spec import FAMILIES, ModelSpec
from ekiden.models.errors import ModelError, cut

MAX_SIZE = 1 << 24
MAX_LAYERS = 1024


class Fields:
    """A mapping with typed getters, for keys after ``prefix``.

    A key without a default must be present; JSON's ``null`` counts as absent.
    """

    def __init__(self, source: str, values: Mapping[str, Any], prefix: str = "") -> None:
        self.source = source
        self.prefix = prefix
        self._values = values

    def has(self, key: str) -> bool:
        return self.prefix + key in self._values

    def is_off(self, key: str) -> bool:
        """Whether the key is absent, null or zero (some converters write 0 for "none")."""
        value = self.get(key)
        return value is None or (isinstance(value, int | float) and value == 0)

    def get(self, key: str, default: Any = None) -> Any:
        value = self._values.get(self.prefix + key)
        return default if value is None else value

    def _fail(self, key: str, value: object, wanted: str) -> ModelError:
        found = "missing and needed" if value is None else f"{cut(value)}, not {wanted}"
        return ModelError(f"{self.source}: {self.prefix + key!r} is {found}; fetch or convert the model again")

    def integer(self, key: str, default: int | None = None, *, limit: int = MAX_SIZE) -> int:
        """A whole number from 1 to ``limit``."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
            raise self._fail(key, value, f"a whole number from 1 to {limit:,}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self._fail(key, value, "a positive number")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self._fail(key, value, "true or false")
        return value

    def text(self, key: str) -> str | None:
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self._fail(key, value, "a text")
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self._fail(key, value, "an object")
        return value


def unsupported(source: str, family: object) -> ModelError:
    """The error for an architecture that Ekiden does not build; it says how to run the model all the same."""
    return ModelError(
        f"{source}: architecture {cut(family)} is not supported ({', '.join(FAMILIES)} are); export the model with "
        "`optimum-cli export openvino --model ... FOLDER` and give that folder"
    )


def check_shape(source: str, spec: ModelSpec) -> ModelSpec:
    """Return ``spec`` if its numbers fit together; otherwise raise :class:`ModelError`."""
    if spec.num_heads % spec.num_kv_heads:
        raise ModelError(f"{source}: {spec.num_heads} attention heads cannot share {spec.num_kv_heads} key-value heads")
    if spec.head_dim % 2:
        raise ModelError(f"{source}: head_dim is {spec.head_dim}; it must be even for the rotary embedding")
    return spec
