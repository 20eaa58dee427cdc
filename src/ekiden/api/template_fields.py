"""Fields about the chat template that several doors share."""

from typing import Annotated, Any, Final

from ekiden.api.errors import shown
from ekiden.api.hand_checks import rule
from ekiden.api.schema_base import ReadBy
from ekiden.models.chat_template import RESERVED


def _check_kwargs(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise rule(f"is {shown(value)}; it must be an object of variables for the chat template")
    if taken := RESERVED.intersection(value):
        raise rule("is set by the server; leave it out", f".{min(taken)}")
    return value


_KWARGS_SCHEMA: Final = {"type": "object", "propertyNames": {"not": {"enum": sorted(RESERVED)}}}

TemplateKwargs = Annotated[dict[str, Any], ReadBy(_check_kwargs, _KWARGS_SCHEMA)]
"""Variables for the chat template, by name."""
