"""The options that benches share, which mean the same in every one."""

import functools
from collections.abc import Callable
from typing import Any

import click

from ekiden.cli.options import ENGINE_ROOMS, Resolved, settings_options
from ekiden.errors import UserError
from ekiden.evaluation.benches.engine import Shape

ABOVE_ZERO = click.IntRange(min=1)
JSON = click.option("--json", "as_json", is_flag=True, help="print one JSON object")
REQUESTS = click.option("--requests", type=ABOVE_ZERO, help="requests in all  [default: as many as rows]")
LOAD = (
    REQUESTS,
    click.option("--concurrency", type=ABOVE_ZERO, help="closed loop: so many requests in flight"),
    click.option(
        "--rate",
        type=click.FloatRange(min=0, min_open=True),
        help="open loop: so many arrivals a second on average (Poisson)",
    ),
    click.option("--temperature", type=click.FloatRange(min=0), default=0.0, help="0 is greedy  [default: 0]"),
    click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, help="nucleus"),
)


def shaped(*more: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Give a command the settings of the engine, the options that every bench shares, and ``more`` of the shape.

    It is called with ``resolved``, with a ``shape`` in place of the options that make one, and with ``as_json``.
    """
    options = (
        settings_options(*ENGINE_ROOMS, model_argument=False, skip=("max_num_seqs",)),
        click.option("--rows", type=ABOVE_ZERO, default=64, help="sequences that run at once  [default: 64]"),
        click.option("--prompt-tokens", type=ABOVE_ZERO, default=128, help="tokens of each prompt  [default: 128]"),
        click.option("--output-tokens", type=ABOVE_ZERO, default=64, help="tokens of each answer  [default: 64]"),
        JSON,
        *more,
    )

    def decorate(run: Callable[..., None]) -> Any:
        @functools.wraps(run)
        def wrapper(resolved: Resolved, rows: int, requests: int | None = None, **rest: Any) -> None:
            if rest.get("concurrency") is not None and rest.get("rate") is not None:
                raise UserError("--concurrency and --rate exclude each other: a closed loop has no arrivals of its own")
            given = {name: rest.pop(name) for name in Shape.__dataclass_fields__ if name in rest}
            shape = Shape(rows=rows, requests=requests or rows, seed=resolved.config.engine.seed, **given)
            run(resolved=resolved, shape=shape, **rest)

        decorated: Any = wrapper
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate
