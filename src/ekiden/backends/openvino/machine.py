"""Properties of the machine: its processor, on which a self-test's result depends, its cores and its memory."""

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
    """The number of cores this process may use: its affinity, limited by the control group's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CPU_QUOTA.read_text().split()
        return min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores  # there is no control group, it sets no quota ("max"), or its file has another form


def cpu_properties(threads: int) -> dict[str, str]:
    """OpenVINO's properties for ``threads`` threads on the CPU.

    OpenVINO binds threads to cores, the caller's too, and always to the first ones. Two models with fewer threads than
    there are cores would share these, and leave the others idle, so theirs go where the system puts them.
    """
    cores = os.cpu_count() or 1
    free = {"ENABLE_CPU_PINNING": "NO"} if threads < cores else {}
    return {"INFERENCE_NUM_THREADS": str(threads), **free}


def memory_bytes() -> int:
    """The bytes this process may use: the machine's memory, or the control group's limit if that is lower."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(memory, int(_MEMORY_LIMIT.read_text()))
    except (OSError, ValueError):
        return memory  # there is no control group, or it sets no limit


def lacks_integer_dot_products() -> bool:
    """True for a processor that has AVX2 but no instruction to multiply and add bytes in one step."""
    flags = set(cpu_flags().split())
    return "avx2" in flags and not flags & {"avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8"}


def multiplies_matrices() -> bool:
    """True for a processor with an instruction that multiplies tiles of bytes (AMX)."""
    return "amx_int8" in cpu_flags().split()


def cpu_name(core: ov.Core) -> str:
    return str(core.get_property("CPU", "FULL_DEVICE_NAME")).strip()


def instruction_set(compiled: ov.CompiledModel) -> str:
    """The instruction set that OpenVINO chose, such as ``Intel AVX2``; ``unknown`` for a device that does not say."""
    try:
        requirements = str(compiled.get_property("RUNTIME_REQUIREMENTS"))
    except RuntimeError:
        return "unknown"
    parts = dict(part.split("=", 1) for part in requirements.split(";") if "=" in part)
    return parts.get("isa", "unknown")


def cpu_flags() -> str:
    """The flags of the first processor; empty where the system does not list them."""
    try:
        lines = _CPU_INFO.read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(("flags", "Features"))), "")


def release_file_pages(path: Path) -> None:
    """Let the system free the mapped pages of ``path``; a later read brings them back.

    The kernels copy weights into a layout of their own, so after the first passes the mapped originals only take up
    memory. On systems without ``madvise`` this does nothing.
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
