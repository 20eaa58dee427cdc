"""Where the peers are installed: each has an environment of its own, which ``make setup-peers`` makes."""

import os
from pathlib import Path
from typing import Final

SET_UP: Final = {"genai": "make setup-bench", "vllm": "make setup-peer-vllm", "llamacpp": "make setup-peer-llamacpp"}
"""The command that installs each peer."""


class Environments:
    """The folder of environments, ``.venv-peers`` below where the command is run unless another is named."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()

    def installed(self, peer: str) -> bool:
        """Whether the environment is there and whole."""
        return (self._folder / peer / ".ready").is_file()

    def program(self, peer: str, name: str) -> Path:
        """A program of the peer's environment."""
        return self._folder / peer / "bin" / name

    def variables(self, peer: str, threads: int) -> dict[str, str]:
        """The environment of the peer's processes: no hub, no reports of use, and the same cores for all."""
        given = {name: value for name, value in os.environ.items() if not name.startswith(("EKIDEN_", "PYTHON"))}
        given |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
        programs = str(self._folder / peer / "bin")
        given["PATH"] = os.pathsep.join([programs, given.get("PATH", os.defpath)])
        if peer == "llamacpp":
            return given | {"LLAMA_CPP_LIB_PATH": programs}
        # vLLM's own advice for CPUs is Intel's OpenMP. By itself it would leave one core to its front end, also of two.
        library = self._folder / peer / "lib" / "libiomp5.so"
        preload = {"LD_PRELOAD": str(library)} if library.exists() else {}
        return (
            given
            | preload
            | {
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
                "VLLM_NO_USAGE_STATS": "1",
                "DO_NOT_TRACK": "1",
            }
        )
