"""What would have been under other settings, for the page: a simulation in a process of its own, which may be ended.

It computes for seconds, so it runs at the lowest priority, one at a time, and is given up after
:data:`MOST_SECONDS`. Of a long run the part around the request is served again: what arrived in the minutes before it
and until it ended.
"""

import asyncio
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, get_type_hints

import msgspec

from ekiden.config import ConfigError, SchedulerConfig
from ekiden.errors import UserError
from ekiden.evidence.reader import LedgerReader, LedgerReadError
from ekiden.evidence.what_if import what_if

MOST_SECONDS: Final = 20.0
BEFORE_SECONDS: Final = 180.0
"""What arrived so long before the request is served again with it."""
MOST_REQUESTS: Final = 3_000
_MODULE: Final = __name__
_TYPES: Final[dict[str, Any]] = {**get_type_hints(SchedulerConfig), "num_blocks": int}


class Busy(UserError, RuntimeError):
    """Another simulation is under way."""


class TooLong(UserError, RuntimeError):
    """The simulation was given up."""


def typed(settings: dict[str, str]) -> dict[str, Any]:
    """Settings as text, by their types. Raises :class:`ConfigError` naming the setting and what there is."""
    if not settings:
        raise ConfigError("no setting is changed; name one, such as max_num_seqs=16")
    found: dict[str, Any] = {}
    for name, text in settings.items():
        if name not in _TYPES:
            raise ConfigError(f"{name} is no setting that a simulation can change; these are: {', '.join(_TYPES)}")
        try:
            found[name] = msgspec.convert(text, _TYPES[name], strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{name} is {text!r}: {error}") from None
    return found


class Simulator:
    """At most one simulation at once, for one event loop."""

    def __init__(self, *, most_seconds: float = MOST_SECONDS) -> None:
        self._most_seconds = most_seconds
        self._busy = False

    async def ask(self, path: Path, request: int, settings: dict[str, Any]) -> dict[str, Any]:
        """The answer of :func:`simulated`. Who stops waiting ends the simulation. Raises :class:`Busy`,
        :class:`TooLong`, and :class:`ConfigError` for settings that cannot work."""
        if self._busy:
            raise Busy("Another simulation is under way; ask again when it has ended")
        self._busy = True
        try:
            async with asyncio.timeout(self._most_seconds):
                return await _answer_of(path, request, settings)
        except TimeoutError:
            raise TooLong(
                f"The simulation was given up after {self._most_seconds:g} s; `ekiden replay {path.stem} "
                "--scheduling-policy ...` has no such limit"
            ) from None
        finally:
            self._busy = False


async def _answer_of(path: Path, request: int, settings: dict[str, Any]) -> dict[str, Any]:
    asked = (sys.executable, "-m", _MODULE, str(path), str(request), json.dumps(settings))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*asked, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    try:
        answer, words = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        told = words.decode(errors="replace").strip().splitlines()
        raise ConfigError(told[-1] if told else "the simulation failed without a word")
    found: dict[str, Any] = json.loads(answer)
    return found


def simulated(path: Path, request: int, settings: dict[str, Any]) -> dict[str, Any]:
    """The answer, as an object for JSON: figures of the part, and how the request fared, recorded and simulated."""
    changed = dict(settings)
    blocks = changed.pop("num_blocks", None)
    with LedgerReader(path) as reader, reader.snapshot():
        row = reader.request(request)
        if row is None:
            raise LedgerReadError(f"no request number {request} in run {reader.header.run_id}")
        end = reader.end(request)
        until = row.arrival + 1 if end is None else end.at
        since = max(0, row.arrival - round(BEFORE_SECONDS * 1e6))
        while len(reader.requests_arrived(since, until)) > MOST_REQUESTS and until - since > 1_000_000:
            since, until = since + (row.arrival - since) // 2, row.arrival + 1 + (until - row.arrival) // 2
        told = what_if(reader, changed, num_blocks=blocks, part=(since, until), follow=request)
        return {
            "run_id": reader.header.run_id,
            "request_id": row.request_id,
            "changed": settings,
            "since": since / 1e6,
            "until": until / 1e6,
            **asdict(told),
        }


def main(path: str, request: str, settings: str) -> int:
    os.nice(19)
    try:
        answer = simulated(Path(path), int(request), json.loads(settings))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
