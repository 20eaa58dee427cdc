"""Runs ``ekiden``; on SIGUSR1 it writes the number of tasks on its event loop to the file named by ``TASKS_FILE``.

That number cannot be seen from outside, and no route of the server should tell it.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final

from ekiden.cli.main import main

TASKS_FILE: Final = "FUZZ_TASKS_FILE"


def _write(number: int, frame: FrameType | None) -> None:
    """Called on the main thread, and so inside the event loop."""
    path = Path(os.environ[TASKS_FILE])
    partial = path.with_suffix(".part")
    partial.write_text(str(len(asyncio.all_tasks())))
    partial.rename(path)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _write)
    sys.exit(main())
