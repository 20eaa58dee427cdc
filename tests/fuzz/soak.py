"""All attacks in turn on ``ekiden serve`` with the real default model, for a set time: ``make fuzz``.

Ends with status 1 at the first answer that is our own fault, the first hang, or when work, open files, threads or
memory are left over. Loopback only; the server it starts is its own.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import attacks
from tests.fuzz.attacks import ATTACKS
from tests.fuzz.target import Target

EXAMPLES = {"bodies": 100, "leavers": 100, "http": 100, "schema": 15}
SETTINGS = ["--max-model-len", "512", "--kv-cache-size", "16MiB", "--swap-size", "16MiB", "--max-num-seqs", "16"]
GROWTH_MIB = 96
"""Memory that may be added after the first fifth of the time: allocators keep what they once had."""


@dataclass(frozen=True)
class Held:
    """What the server's processes hold."""

    memory_mib: float
    files: int
    threads: int


def held(parent: int) -> Held:
    processes = [parent, *children(parent)]
    memory = sum(_status(pid, "VmRSS") for pid in processes) / 1024
    files = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in processes)
    return Held(memory, files, sum(_status(pid, "Threads") for pid in processes))


def children(parent: int) -> list[int]:
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in found]


def _status(pid: int, key: str) -> int:
    (value,) = re.findall(rf"^{key}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(value)


def attack(target: Target, server: int, seconds: float) -> None:
    """Until the time is up; what is held may not grow after the first fifth of it."""
    start = time.monotonic()
    base: Held | None = None
    engine = children(server)
    rounds = 0
    while time.monotonic() - start < seconds or base is None:
        for name, run in ATTACKS.items():
            run(target, EXAMPLES[name])
            target.check(seconds=30.0)
        assert children(server) == engine, "the engine's process was replaced"
        rounds += 1
        now = held(server)
        spent = time.monotonic() - start
        print(f"{spent:6.0f} s  round {rounds}  {now}  {dict(sorted(target.answers.items()))}", flush=True)
        if base is None and spent >= seconds / 5:
            base = now
    last = held(server)
    assert last.memory_mib - base.memory_mib < GROWTH_MIB, f"memory grew: {base} became {last}"
    assert last.files <= base.files + 8, f"files are left open: {base} became {last}"
    assert last.threads <= base.threads + 8, f"threads are left: {base} became {last}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    seconds = parser.parse_args().seconds
    attacks.SHRINK = False
    command = [sys.executable, "-u", "-m", "ekiden.cli.main", "serve", "--port", "0", "--log-level", "error", *SETTINGS]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        while "Ekiden is ready on" not in (line := server.stdout.readline()):
            assert line, "the server did not start"
        host, port = line.split()[4].removeprefix("http://").split(":")
        attack(Target(host, int(port), "smollm2-135m", 49152), server.pid, seconds)
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
