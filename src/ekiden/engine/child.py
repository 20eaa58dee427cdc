"""The engine's process: it loads a model, then runs the engine's loop until it is told to stop or its pipe ends.

It reports every step as a msgpack message. Its reader and its writer are threads, so that a parent that is busy holds
up no step.
"""

import gc
import queue
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

import msgspec

from ekiden.config import Config
from ekiden.engine.interface import EngineStats, ModelCard
from ekiden.engine.loop import Command, EngineLoop, Stop
from ekiden.engine.marks import Marks
from ekiden.engine.parts import BuiltEngine
from ekiden.engine.spawn import Words, loaded
from ekiden.errors import UserError
from ekiden.state.controls import ControlState
from ekiden.state.request import RequestUpdate

STATS_SECONDS = 0.2
"""Seconds between two reports of a busy engine's statistics, which nobody reads as often as steps are taken."""

MakeEngine = Callable[[Config], BuiltEngine]
"""Loads the model and builds the engine inside the engine's process; must be importable by name there."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """``ledger``: the file that the run is recorded to, if it is."""

    card: ModelCard
    ledger: str | None = None


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot start, or has ended; trying again makes sense unless ``permanent``."""

    message: str
    permanent: bool


class Stepped(msgspec.Struct, frozen=True, tag=True):
    """What a step brought; the statistics are left out of most."""

    updates: list[RequestUpdate]
    stats: EngineStats | None


class Answered(msgspec.Struct, frozen=True, tag=True):
    """Answers the :class:`SetControls` of the same number: the controls in force, or why the change was refused."""

    number: int
    answer: ControlState | str


Report = Ready | Failed | Stepped | Answered


def engine_main(connection: Connection, words: Words) -> None:
    """Receive what to load, load it, and run the loop. ``words``: the memory for :class:`Marks`."""
    try:
        make_engine, config = connection.recv()
    except (EOFError, OSError):
        return  # the parent ended before it had anything to load
    outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    writer = threading.Thread(target=write_all, args=(connection, outbox), name="ekiden-writer", daemon=True)
    writer.start()
    encode = msgspec.msgpack.Encoder().encode
    built: BuiltEngine | None = None
    try:
        built = make_engine(config)
        loop = EngineLoop(
            built.core,
            lambda updates, stats: outbox.put(encode(Stepped(updates, stats))),
            built.parts.grammars,
            answer=lambda number, answer: outbox.put(encode(Answered(number, answer))),
            stats_seconds=STATS_SECONDS,
            marks=Marks(words),
        )
        reader = threading.Thread(target=_read_commands, args=(connection, loop), name="ekiden-reader", daemon=True)
        reader.start()
        gc.collect()
        gc.freeze()  # all that is loaded stays, so full collections need not visit it and hold up a step
        outbox.put(encode(Ready(built.parts.card, None if built.ledger is None else str(built.ledger.path))))
        loaded()
        loop.run()
    except UserError as error:
        outbox.put(encode(Failed(str(error), permanent=True)))
    except Exception as error:
        outbox.put(encode(Failed(f"{type(error).__name__}: {error}", permanent=False)))
        raise
    finally:
        if built is not None:
            built.close_ledger()
        outbox.put(None)
        writer.join(timeout=5.0)


def _read_commands(connection: Connection, loop: EngineLoop) -> None:
    decoder = msgspec.msgpack.Decoder(Command)
    try:
        while True:
            loop.send(decoder.decode(connection.recv_bytes()))
    except (EOFError, OSError):
        loop.inbox.put(Stop())  # the parent is gone


def write_all(connection: Connection, outbox: "queue.SimpleQueue[bytes | None]") -> None:
    try:
        while (message := outbox.get()) is not None:
            connection.send_bytes(message)
    except OSError:
        return  # the other end is gone; the thread that reads the pipe notices
