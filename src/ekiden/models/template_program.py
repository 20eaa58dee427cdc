"""A chat template as a program: what it may use, what it is called with, and its two uses, reading and running.

Reading (:func:`read_template`) evaluates nothing. Running can take any time and memory, since a template is a program
from elsewhere: only the processes of `template_worker.py` do it.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Environment, Template, TemplateError, meta, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's words for training; rendering only needs the block's content."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it this way)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # Jinja's own filter escapes HTML, but models were trained on plain JSON.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


class _Reading(ImmutableSandboxedEnvironment):
    """Compiles without computing anything: Jinja otherwise evaluates constant expressions while it compiles."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)
    intercepted_unops = frozenset(ImmutableSandboxedEnvironment.default_unop_table)


@pass_context
def _at_run_time(context: Context) -> None:
    """Stands for filters and tests; what takes the context is never evaluated early."""


def _prepared(environment: Environment) -> Environment:
    environment.filters["tojson"] = _to_json
    # Each run brings its own clock.
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": None}
    return environment


def _options() -> dict[str, Any]:
    return {"trim_blocks": True, "lstrip_blocks": True, "extensions": [_Generation, loopcontrols]}


@lru_cache(1)
def _reading() -> Environment:
    environment = _prepared(_Reading(**_options()))
    environment.filters = dict.fromkeys(environment.filters, _at_run_time)
    environment.tests = dict.fromkeys(environment.tests, _at_run_time)
    return environment


@lru_cache(1)
def _running() -> Environment:
    return _prepared(ImmutableSandboxedEnvironment(**_options()))


@lru_cache(32)
def _compiled(source: str) -> Template:
    return _running().from_string(source)


@lru_cache(32)
def read_template(source: str) -> frozenset[str]:
    """The variables that the template reads from outside, found without evaluating any of it.

    Raises ``jinja2.TemplateError`` or ``RecursionError`` for a text that is not a template.
    """
    environment = _reading()
    environment.compile(source, raw=True)
    return frozenset(meta.find_undeclared_variables(environment.parse(source)))


def run_template(source: str, variables: Mapping[str, Any], now: datetime) -> str:
    """The text that the template writes. It can raise anything, and need not end."""
    return _compiled(source).render({"strftime_now": now.strftime, **variables})
