"""``ekiden chat``: a conversation in the terminal, with the server behind ``--url`` or one of our own.

Ctrl-C ends an answer, and at the prompt the chat. What was said of a stopped answer stays in the conversation.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import click

from ekiden.cli.options import ENGINE_ROOMS, Resolved, settings_options
from ekiden.config import LedgerConfig
from ekiden.errors import UserError

HELP = "/exit leaves, /clear starts afresh, Ctrl-C stops an answer"


Answer = Callable[[list[dict[str, str]]], AsyncIterator[str]]
"""The text of an answer, piece by piece; closing the iterator stops it. Raises :class:`UserError`."""


@dataclass(slots=True, kw_only=True)
class ChatSession:
    """The turns of one conversation. ``read`` gives a line or raises EOFError; ``write`` shows text at once."""

    answer: Answer
    read: Callable[[], str]
    write: Callable[[str], None]
    note: Callable[[str], None]
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def talk(self, run: Callable[[Any], None]) -> None:
        """Until /exit, end of input, or Ctrl-C at the prompt. ``run`` runs a coroutine to its end."""
        while True:
            try:
                text = self.read().strip()
            except (EOFError, KeyboardInterrupt):
                return
            if text in ("/exit", "/quit"):
                return
            if text == "/clear":
                self.clear()
                self.note("a new conversation")
            elif text.startswith("/"):
                self.note(HELP)
            elif text:
                self._turn(text, run)

    def _turn(self, text: str, run: Callable[[Any], None]) -> None:
        self.messages.append({"role": "user", "content": text})
        said: list[str] = []
        stopped = ""
        started = time.monotonic()
        try:
            run(self._say(said))
        except KeyboardInterrupt:
            stopped = "stopped after "
        except UserError as error:
            self.messages.pop()
            self.note(str(error))
            return
        self.write("\n")
        self.note(f"{stopped}{time.monotonic() - started:.1f} s")
        self.messages.append({"role": "assistant", "content": "".join(said)})

    async def _say(self, said: list[str]) -> None:
        async for piece in self.answer(self.messages):
            said.append(piece)
            self.write(piece)


@click.command()
@settings_options(*ENGINE_ROOMS)
@click.option("--url", help="talk to a running server, such as http://127.0.0.1:8000")
@click.option("--api-key", "key", envvar="EKIDEN_API_KEY", help="bearer token of that server")
@click.option("--system", help="system prompt")
@click.option("--max-tokens", type=click.IntRange(min=1), default=512, help="longest answer  [default: 512]")
@click.option("--temperature", type=click.FloatRange(min=0), help="default: what the model's makers advise")
def command(
    resolved: Resolved, url: str | None, key: str | None, system: str | None, max_tokens: int, temperature: float | None
) -> None:
    """Talk to a model in the terminal."""
    from ekiden.cli.loading import find_model
    from ekiden.cli.own_server import own_server
    from ekiden.cli.remote_chat import RemoteAnswerer

    options = {"max_tokens": max_tokens, "temperature": temperature}
    options = {name: value for name, value in options.items() if value is not None}
    watched = sys.stdin.isatty()
    note = _note if watched else _note_quietly
    with ExitStack() as stack:
        if url is None:
            find_model(resolved.config)  # here, where a fetch shows its progress
            unrecorded = replace(resolved.config, ledger=LedgerConfig(ledger=False))
            url, key = stack.enter_context(own_server(unrecorded)), None
        runner = stack.enter_context(asyncio.Runner())
        answerer = RemoteAnswerer(url, key, options)
        stack.callback(lambda: runner.run(answerer.close()))
        runner.run(answerer.open())
        if watched:
            import readline  # noqa: F401 - gives input() its line editing

            note(HELP)
        ChatSession(
            answer=answerer.answer,
            read=lambda: input("> " if watched else ""),
            write=_write,
            note=note,
            system=system,
        ).talk(runner.run)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _note(text: str) -> None:
    click.secho(text, dim=True, err=True)


def _note_quietly(text: str) -> None:
    if not text.endswith(" s"):  # errors are shown, timings are not
        click.echo(text, err=True)
