"""What a run costs beside time: processor seconds of this process, and energy where the machine has a counter.

Linux shows the counters of the processor packages (RAPL) under ``/sys/class/powercap``, in microjoules. They wrap
around, and count the whole machine, so that a run on a busy one is charged for its neighbours too.
"""

import time
from collections.abc import Mapping
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


class Meter:
    """Measures from its making on."""

    def __init__(self, powercap: Path = POWERCAP) -> None:
        self._powercap = powercap
        self._energy = _counters(powercap)
        self._cpu = time.process_time()

    def cpu_seconds(self) -> float:
        """Processor time of this process, all its threads together."""
        return time.process_time() - self._cpu

    def joules(self) -> float | None:
        """Energy of all processor packages; None where it is not measured, or may not be read."""
        now = _counters(self._powercap)
        if not now or now.keys() != self._energy.keys():
            return None
        spent = 0
        for package, (reading, most) in now.items():
            before = self._energy[package][0]
            spent += reading - before if reading >= before else reading + most - before
        return spent / 1e6


def _counters(powercap: Path) -> Mapping[str, tuple[int, int]]:
    """The reading of each package and the value at which it wraps around."""
    found: dict[str, tuple[int, int]] = {}
    for package in sorted(powercap.glob("intel-rapl:*")):
        if package.name.count(":") == 1:  # parts of a package are counted within it
            try:
                reading, most = (int((package / name).read_text()) for name in ("energy_uj", "max_energy_range_uj"))
            except (OSError, ValueError):  # often only root may read it
                return {}
            found[package.name] = reading, most
    return found
