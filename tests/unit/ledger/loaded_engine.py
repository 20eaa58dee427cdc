"""An engine under load that records to a folder and prints each turn with its time, until it is killed.

The time is what it had for its work: of a turn during which the machine had stopped the process, a moment counts.
"""

import itertools
import sys
import time
from dataclasses import replace
from pathlib import Path

from ekiden.backends.fake import FakeRunner
from ekiden.build.recording import recorded_core
from ekiden.config import LedgerConfig
from tests.unit.engine.fake_parts import make_config, make_fake_parts, make_request

MODEL_SECONDS = 0.001
"""A step of the fake model, which costs nothing, takes a tenth of a small real one's."""
MOMENT = 0.05


def main(folder: Path) -> None:
    config = replace(make_config(), ledger=LedgerConfig(ledger_dir=str(folder)))
    parts = make_fake_parts(config)
    assert isinstance(parts.runner, FakeRunner)
    parts.runner._before_step = lambda step: time.sleep(MODEL_SECONDS)
    core, writer = recorded_core(parts, config, run_id="run")
    names = itertools.count()
    worked, last = 0.0, time.monotonic()
    for turn in itertools.count(1):
        while len(core.request_ids) < 16:
            core.add_request(make_request(f"r{next(names)}", max_tokens=30))
        core.step()
        now = time.monotonic()
        worked, last = worked + min(now - last, MOMENT), now
        print(turn, worked, flush=True)
        assert writer.dropped == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
