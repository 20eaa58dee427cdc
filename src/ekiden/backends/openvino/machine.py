"""The machine as the kernels see it: what a self-test's result depends on, how many threads to use, what fits."""

import ctypes
import os
from pathlib import Path

import openvino as ov

_CPU_INFO = Path("/proc/cpuinfo")
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
_MEMORY_MAPS = Path("/proc/self/maps")
_DONT_NEED = 4


def usable_threads() -> int:
    """The cores this process may use, by affinity and by the control group's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CPU_QUOTA.read_text().split()
        if quota != "max":
            cores = min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores  # no control group, or one that says something else: affinity alone decides
    return cores


def memory_bytes() -> int:
    """The memory this process may use: the machine's, or the control group's limit."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(memory, int(_MEMORY_LIMIT.read_text()))
    except (OSError, ValueError):
        return memory  # no control group, or no limit


def lacks_integer_dot_products() -> bool:
    """True for a processor known to have AVX2 and nothing that multiplies and adds bytes at once."""
    flags = set(cpu_flags().split())
    return "avx2" in flags and not flags & {"avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8"}


def cpu_name(core: ov.Core) -> str:
    return str(core.get_property("CPU", "FULL_DEVICE_NAME")).strip()


def instruction_set(compiled: ov.CompiledModel) -> str:
    """The instruction set that the plugin chose, such as ``Intel AVX2``."""
    requirements = str(compiled.get_property("RUNTIME_REQUIREMENTS"))
    parts = dict(part.split("=", 1) for part in requirements.split(";") if "=" in part)
    return parts.get("isa", "unknown")


def cpu_flags() -> str:
    """The first processor's flags, or an empty string where the system does not tell."""
    try:
        lines = _CPU_INFO.read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(("flags", "Features"))), "")


def release_file_pages(path: Path) -> None:
    """Tell the system that the mapped pages of ``path`` are not needed for now; a later read brings them back.

    The kernels keep weights in a layout of their own, so after the first passes the mapped originals only fill memory.
    Where the system has no such call nothing happens.
    """
    try:
        lines = _MEMORY_MAPS.read_text().splitlines()
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return
    wanted = str(path.resolve())
    for line in lines:
        addresses, rights, *rest = line.split(maxsplit=5)
        if len(rest) == 4 and rest[3] == wanted and "w" not in rights:
            first, end = (int(part, 16) for part in addresses.split("-"))
            advise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _DONT_NEED)
