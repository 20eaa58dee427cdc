"""``ekiden chat``: a conversation in the terminal, with the server behind ``--url`` or one of our own.

Ctrl-C ends an answer, and at the prompt the chat. What was said of a stopped answer stays in the conversation.
"""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import click

from ekiden.cli.options import ENGINE_ROOMS, Resolved, settings_options
from ekiden.config import GuardConfig, LedgerConfig
from ekiden.errors import UserError

if TYPE_CHECKING:
    from ekiden.cli.remote_chat import Answer, Messages

HELP = "/exit leaves, /clear starts afresh, Ctrl-C stops an answer"


@dataclass(slots=True, kw_only=True)
class ChatSession:
    """The turns of one conversation. ``read`` gives a line or raises EOFError; ``write`` shows text at once.

    ``note`` shows what is not part of an answer, such as errors and, with ``timed``, how long each answer took.
    """

    answer: "Answer"
    read: Callable[[], str]
    write: Callable[[str], None]
    note: Callable[[str], None]
    timed: bool = True
    system: str | None = None
    messages: "Messages" = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def talk(self) -> None:
        """Until /exit, end of input, or Ctrl-C at the prompt."""
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
                self._turn(text)

    def _turn(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        said: list[str] = []
        stopped, started = "", time.monotonic()
        try:
            with closing(self.answer(self.messages)) as pieces:
                for piece in pieces:
                    said.append(piece)
                    self.write(piece)
        except KeyboardInterrupt:
            stopped = "stopped after "
        except UserError as error:
            self.messages.pop()
            self.note(str(error))
            return
        self.write("\n")
        if self.timed:
            self.note(f"{stopped}{time.monotonic() - started:.1f} s")
        self.messages.append({"role": "assistant", "content": "".join(said)})


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
    from ekiden.cli.remote_chat import remote_answers

    options = {"max_tokens": max_tokens, "temperature": temperature}
    options = {name: value for name, value in options.items() if value is not None}
    watched = sys.stdin.isatty()
    note = partial(click.secho, dim=True, err=True)
    with ExitStack() as stack:
        if url is None:
            find_model(resolved.config)  # here, where a fetch shows its progress
            unrecorded = replace(resolved.config, ledger=LedgerConfig(ledger=False), guard=GuardConfig())
            url, key = stack.enter_context(own_server(unrecorded)), None
        answer = stack.enter_context(remote_answers(url, key, options, partial(note, nl=False)))
        if watched:
            import readline  # noqa: F401 - gives input() its line editing

            note(HELP)
        ChatSession(
            answer=answer,
            read=lambda: input("> " if watched else ""),
            write=partial(click.echo, nl=False),
            note=note,
            timed=watched,
            system=system,
        ).talk()
