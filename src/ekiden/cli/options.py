"""Click options made from the settings, so that the command line cannot drift from :mod:`ekiden.config`."""

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ekiden.build.config_sources import CONFIG_VARIABLE, Resolved, Setting, all_settings, resolve

Command = TypeVar("Command", bound=Callable[..., Any])

ALL_ROOMS = ("model", "cache", "scheduler", "limits", "engine", "server", "ledger", "guard")
ENGINE_ROOMS = ("model", "cache", "scheduler", "engine")


def settings_options(
    *rooms: str, model_argument: bool = True, skip: tuple[str, ...] = ()
) -> Callable[[Command], Command]:
    """Give a command the flags of ``rooms`` and ``--config``; it is called with ``resolved`` in their place.

    The model is an argument (``ekiden serve MODEL``) or, where another argument comes first, ``--model``.
    """
    chosen = [s for s in all_settings() if s.room in rooms and s.name not in skip]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(**arguments: Any) -> Any:
            config_file = arguments.pop("config_file")
            flags = {s.name: arguments.pop("setting_" + s.name) for s in chosen}
            arguments["resolved"] = resolve(flags, os.environ, config_file)
            return command(**arguments)

        decorated: Any = wrapper
        for setting in reversed(chosen):
            decorated = _parameter(setting, model_argument)(decorated)
        return click.option(  # type: ignore[no-any-return]  # click's decorators keep the callable
            "--config", "config_file", metavar="FILE.toml", help=f"TOML file of settings (or {CONFIG_VARIABLE})"
        )(decorated)

    return decorate


def _parameter(setting: Setting, model_argument: bool) -> Callable[[Any], Any]:
    name = "setting_" + setting.name
    if setting.positional and model_argument:
        return click.argument(name, metavar=f"[{setting.flag}]", required=False, default=None)
    flag = "--model" if setting.positional else setting.flag
    if setting.kind is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=_help(setting))
    metavar = "|".join(setting.choices) or {int: "N", float: "X"}.get(setting.kind, "TEXT")
    return click.option(flag, name, metavar=metavar, default=None, help=_help(setting))


def _help(setting: Setting) -> str:
    if setting.default is None or setting.name == "model":
        return setting.help
    shown = str(setting.default).lower() if setting.kind is bool else setting.default
    return f"{setting.help}  [default: {shown}]"


__all__ = ["ALL_ROOMS", "ENGINE_ROOMS", "Resolved", "settings_options"]
