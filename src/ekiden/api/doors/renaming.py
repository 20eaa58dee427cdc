"""Errors found by chat's rules, told in the words of another protocol's fields."""

from collections.abc import Mapping
from typing import Any

from ekiden.api.errors import ApiError
from ekiden.api.schema_base import parse_data
from ekiden.api.schemas import REFUSED, ChatRequest


def as_chat(fields: Mapping[str, Any], names: Mapping[str, str]) -> ChatRequest:
    """The chat request with these fields; those that are None are absent. Raises :class:`ApiError` 400."""
    given = {key: value for key, value in fields.items() if value is not None}
    try:
        return parse_data(ChatRequest, given, REFUSED)
    except ApiError as error:
        raise renamed(error, names) from None


def renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """``error`` with the first of ``names`` that is part of its ``param`` replaced, there and in its message."""
    for chat, own in names.items():
        if error.param is not None and chat in error.param:
            param = error.param.replace(chat, own, 1)
            message = error.message.replace(error.param, param)
            return ApiError(error.status, message, kind=error.kind, param=param, code=error.code, headers=error.headers)
    return error
