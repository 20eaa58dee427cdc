"""From the settings to a guard over a running engine."""

import asyncio
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

from ekiden.config import Config, controls_of
from ekiden.engine.interface import Engine
from ekiden.guard.files import StateFile
from ekiden.guard.hands import EngineHands
from ekiden.guard.kept import Kept
from ekiden.guard.paging import Channel, Program, Webhook
from ekiden.guard.runtime import Guard
from ekiden.guard.senses import LedgerSense
from ekiden.guardrails.rules import Rules, load_rules
from ekiden.ledger.retention import ledger_folder


def read_rules(config: Config) -> Rules:
    """Raises :class:`ekiden.guardrails.rules.RulesError`; with the guard off there are none."""
    return Rules(rules=()) if config.guard.guard == "off" else load_rules(config.guard.guard_rules)


def make_guard(config: Config, rules: Rules, engine: Engine, loop: Callable[[], asyncio.AbstractEventLoop]) -> Guard:
    """The guard of a server whose engine has started. With the guard off it only keeps approvals."""
    settings = config.guard
    channels: list[Channel] = []
    if settings.guard_webhook is not None:
        channels.append(Webhook(settings.guard_webhook, settings.guard_webhook_key))
    if settings.command:
        channels.append(Program(settings.command))
    return Guard(
        rules,
        EngineHands(engine, loop),
        LedgerSense(),
        mode=settings.guard,
        configured=controls_of(config),
        block_size=engine.card.block_size,
        file=StateFile(state_path(config), Kept),
        channels=channels,
        two_person=settings.two_person,
        server=config.server.address or config.server.host,
        stop_server=_ask_to_end,
    )


def state_path(config: Config) -> Path | None:
    """Where the guard keeps what must outlive the process: one file for each address that is served. None for a port
    that is not known before the start, unless a file is named."""
    if config.guard.guard_state is not None:
        return Path(config.guard.guard_state).expanduser()
    server = config.server
    if server.port == 0:
        return None
    address = re.sub(r"[^A-Za-z0-9.-]+", "_", f"{server.host}-{server.port}")
    return ledger_folder(config.ledger) / f"guard-{address}.json"


def _ask_to_end() -> None:
    """As an operator would: what runs gets its time to finish."""
    os.kill(os.getpid(), signal.SIGTERM)
