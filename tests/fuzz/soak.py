"""Runs all attacks in turn on ``ekiden serve`` with the real default model, for a set time: ``make fuzz``.

It ends with status 1 at the first 5xx answer that is a bug, at the first hang, or when work, KV blocks, tasks, files,
threads or memory remain. It starts a server of its own on loopback and deletes what that records.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import attacks
from tests.fuzz.attacks import ATTACKS
from tests.fuzz.counted_server import TASKS_FILE
from tests.fuzz.target import Target

EXAMPLES = {"bodies": 100, "doors": 60, "leavers": 100, "http": 100, "schema": 15}
SETTINGS = ["--max-model-len", "512", "--kv-cache-size", "16MiB", "--swap-size", "16MiB", "--max-num-seqs", "16"]
GROWTH_MIB = 96
"""Memory that may be added after the first fifth of the time, because allocators keep what they once had."""
SPARE = 8
"""Open files and threads that may be added after the start, because pools fill when they are first used."""
SETTLING = 30.0
"""Seconds after which no work of an attack may remain."""


@dataclass(frozen=True)
class Held:
    """Resources of the server's processes; ``tasks`` are those on the HTTP event loop."""

    memory_mib: float
    files: int
    threads: int
    tasks: int


class Server:
    """The server's processes, seen through /proc."""

    def __init__(self, parent: int, tasks_file: Path) -> None:
        self.parent = parent
        self._tasks_file = tasks_file

    def children(self) -> list[int]:
        found = Path(f"/proc/{self.parent}/task/{self.parent}/children").read_text().split()
        return [int(pid) for pid in found]

    def held(self) -> Held:
        processes = [self.parent, *self.children()]
        memory = sum(_status(pid, "VmRSS") for pid in processes) / 1024
        files = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in processes)
        return Held(memory, files, sum(_status(pid, "Threads") for pid in processes), self._tasks())

    def _tasks(self) -> int:
        os.kill(self.parent, signal.SIGUSR1)
        end = time.monotonic() + SETTLING
        while not self._tasks_file.exists():
            assert time.monotonic() < end, "the server's event loop stands still"
            time.sleep(0.01)
        tasks = int(self._tasks_file.read_text())
        self._tasks_file.unlink()
        return tasks

    def settled(self, start: Held) -> Held:
        """The resources once tasks, files and threads are back to those of the start; an error if they never are."""
        end = time.monotonic() + SETTLING
        while True:
            now = self.held()
            left = now.tasks > start.tasks or max(now.files - start.files, now.threads - start.threads) > SPARE
            if not left:
                return now
            assert time.monotonic() < end, f"tasks, files or threads are left: {start} became {now}"
            time.sleep(0.1)


def _status(pid: int, key: str) -> int:
    (value,) = re.findall(rf"^{key}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(value)


def attack(target: Target, server: Server, seconds: float) -> None:
    """Attack in rounds until the time is up, at least two; memory must not grow after the first fifth of it."""
    target.check(SETTLING)
    began = time.monotonic()
    start, base = server.held(), None
    engine = server.children()
    rounds = 0
    while rounds < 2 or time.monotonic() - began < seconds:
        for name, run in ATTACKS.items():
            run(target, EXAMPLES[name])
            target.check(SETTLING)
        assert server.children() == engine, "the engine's process was replaced"
        rounds += 1
        now = server.settled(start)
        spent = time.monotonic() - began
        print(f"{spent:6.0f} s  round {rounds}  {now}  {dict(sorted(target.answers.items()))}", flush=True)
        if base is None and spent >= seconds / 5:
            base = now
        elif base is not None:
            assert now.memory_mib - base.memory_mib < GROWTH_MIB, f"memory grew: {base} became {now}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    seconds = parser.parse_args().seconds
    attacks.SHRINK = False
    with tempfile.TemporaryDirectory() as folder:
        return _run(Path(folder), seconds)


def _run(folder: Path, seconds: float) -> int:
    tasks_file = folder / "tasks"
    environment = {**os.environ, "XDG_STATE_HOME": str(folder), TASKS_FILE: str(tasks_file)}
    command = [sys.executable, "-u", "-m", "tests.fuzz.counted_server"]
    command += ["serve", "--port", "0", "--log-level", "error", *SETTINGS]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        while "Ekiden is ready on" not in (line := server.stdout.readline()):
            assert line, "the server did not start"
        host, port = line.split()[4].removeprefix("http://").split(":")
        attack(Target(host, int(port), "smollm2-135m", 49152), Server(server.pid, tasks_file), seconds)
    except AssertionError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    print("no server error, no hang, nothing left over")
    return 0


if __name__ == "__main__":
    sys.exit(main())
