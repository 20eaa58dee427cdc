"""Runs all attacks in turn on ``ekiden serve`` with the real default model, for a set time: ``make fuzz``.

Half of the time goes to a server with room, half to one with a KV pool so small that everything is swapped.

It ends with status 1 at the first 5xx answer that is a bug, at the first hang, when an innocent neighbour's answer
changes or the engine's process ends, or when work, KV blocks, tasks, files, threads or memory remain. It starts servers
of its own on loopback and deletes what they record.
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

EXAMPLES = {"bodies": 60, "doors": 40, "leavers": 60, "http": 60, "schema": 5, "extremes": 300}
SETTINGS = ["--max-model-len", "512", "--max-num-seqs", "16", "--swap-size", "16MiB"]
POOLS = {"room": "64MiB", "tiny": "6MiB"}
"""Sizes of the KV pool; a tiny one has as few blocks as a pool may have."""
GROWTH_MIB = 96
"""Memory that may be added after the first fifth of the time, because allocators keep what they once had."""
SPARE = 8
"""Open files and threads that may be added after the start, because pools fill when they are first used."""
PATIENCE = 120.0
"""Seconds after which an answer counts as a hang: the machine may have other work."""
SETTLING = 60.0
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


def attack(target: Target, server: Server, seconds: float, only: str | None) -> None:
    """Attack in rounds until the time is up, at least two; memory must not grow after the first fifth of it."""
    target.check(SETTLING)
    began = time.monotonic()
    start, base = server.held(), None
    engine = server.children()
    rounds = 0
    while rounds < 2 or time.monotonic() - began < seconds:
        for name, run in ATTACKS.items():
            if only in (None, name):
                run(target, EXAMPLES[name])
                target.check(SETTLING)
        assert server.children() == engine, "the engine's process was replaced"
        rounds += 1
        now = server.settled(start)
        spent = time.monotonic() - began
        print(f"{spent:6.0f} s  round {rounds}  {now}  {_seen(target)}", flush=True)
        if base is None and spent >= seconds / 5:
            base = now
        elif base is not None:
            assert now.memory_mib - base.memory_mib < GROWTH_MIB, f"memory grew: {base} became {now}"


def _seen(target: Target) -> str:
    """What the server was asked and said so far; an error where its own work for a request failed."""
    counted = {name: float(value) for name, value in _COUNT.findall(target.get("/metrics")[1].decode())}
    ours = {name: value for name, value in counted.items() if name in _OURS and value}
    assert not ours, f"the server failed on requests by itself: {ours}"
    drawn, neighbours = target.drawn, target.neighbours
    if drawn is None or neighbours is None:
        return f"answers {dict(sorted(target.answers.items()))}"
    return (
        f"answers {dict(sorted(target.answers.items()))}, {len(drawn.pairs_sent)} of {drawn.num_pairs} field pairs, "
        f"{drawn.tokens_sent} token ids of {target.vocab_size}, neighbours asked {neighbours.asked} times, "
        f"{counted['num_preemptions_total']:.0f} preemptions"
    )


_COUNT = re.compile(r"^ekiden:(\w+)\{[^}\n]*\} (\S+)$", re.MULTILINE)
_OURS = ("engine_steps_run_again_total", "engine_turns_unrecorded_total")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", choices=list(ATTACKS), help="run this attack alone")
    given = parser.parse_args()
    attacks.SHRINK = False
    for name in POOLS:
        print(f"a server with a {name} pool for {given.seconds / len(POOLS):.0f} s, seed {given.seed}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            if status := _run(Path(folder), name, given.seconds / len(POOLS), given.seed, given.only):
                return status
    print("no server error, no hang, no neighbour changed, no engine ended, nothing left over")
    return 0


def _run(folder: Path, pool: str, seconds: float, seed: int, only: str | None) -> int:
    tasks_file = folder / "tasks"
    environment = {**os.environ, "XDG_STATE_HOME": str(folder), TASKS_FILE: str(tasks_file)}
    command = [sys.executable, "-u", "-m", "tests.fuzz.counted_server"]
    command += ["serve", "--port", "0", "--log-level", "error", *SETTINGS, "--kv-cache-size", POOLS[pool]]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        while "Ekiden is ready on" not in (line := server.stdout.readline()):
            assert line, "the server did not start"
        host, port = line.split()[4].removeprefix("http://").split(":")
        target = Target(host, int(port), "smollm2-135m", 49152, seconds=PATIENCE, seed=seed)
        attack(target, Server(server.pid, tasks_file), seconds, only)
        assert pool != "tiny" or ", 0 preemptions" not in _seen(target), "nothing was swapped"
    except AssertionError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    return 0


if __name__ == "__main__":
    sys.exit(main())
