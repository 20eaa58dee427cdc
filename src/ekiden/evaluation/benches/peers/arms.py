"""The peers that ``ekiden bench peer`` knows: how each gets the model's weights, is asked in process, and serves.

Every arm has the same room: rows, context, threads and about the same memory for keys and values. All else is as the
peer comes, unless its own documentation advises otherwise for processors.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from ekiden.config import Config
from ekiden.errors import UserError
from ekiden.evaluation.benches.peers.environments import SET_UP, Environments
from ekiden.evaluation.benches.peers.hf_folder import hf_folder
from ekiden.evaluation.benches.peers.processes import peer_program, peer_server
from ekiden.measure.figures import Figures
from ekiden.models.load import ModelDescription


class PeerEngine(Protocol):
    """A peer that has loaded the model, asked in process."""

    lineage: Figures

    def generate(self, prompts: list[list[int]], output_tokens: int) -> list[list[int]]:
        """Exactly ``output_tokens`` greedy tokens for each prompt; all prompts are given at once."""
        ...

    def losses(self, passages: list[list[int]]) -> list[float]:
        """The summed losses of each passage's tokens but the first; empty where the peer does not tell them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What every arm is given: ``rows`` sequences of at most ``context`` tokens at once, and ``threads``."""

    description: ModelDescription
    config: Config
    environments: Environments
    rows: int
    context: int
    threads: int
    tuned: bool = False
    """GenAI follows our runner's settings."""


def threads_of(config: Config) -> int:
    """The threads that our model has, and so every peer."""
    from ekiden.backends.openvino.machine import usable_threads  # heavy

    return config.engine.threads or usable_threads()


OpenEngine = Callable[[Room], AbstractContextManager[PeerEngine]]
OpenServer = Callable[[Room], AbstractContextManager[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A peer with one format of weights. ``serve`` is None for a peer without a server of its own."""

    peer: str
    about: str
    load: OpenEngine
    serve: OpenServer | None = None

    def missing(self, environments: Environments) -> str | None:
        """Why the peer cannot be run here, with the command that installs it; None where it is installed."""
        there = _genai_installed() if self.peer == "genai" else environments.installed(self.peer)
        return None if there else f"not installed; `{SET_UP[self.peer]}` installs it"


def _genai_installed() -> bool:
    from ekiden.backends.openvino.genai_peer import genai_installed

    return genai_installed()


@contextmanager
def _genai(room: Room) -> Iterator[PeerEngine]:
    from ekiden.backends.openvino.genai_peer import GenAIPeer  # heavy

    with GenAIPeer(room.description, room.config, tuned=room.tuned) as peer:
        yield peer


def _vllm(*, int8: bool) -> tuple[OpenEngine, OpenServer]:
    @contextmanager
    def load(room: Room) -> Iterator[PeerEngine]:
        where, settings = room.environments, _settings(room, hf_folder(room.description, int8=int8))
        variables = where.variables("vllm", room.threads)
        with peer_program(where.program("vllm", "python"), "vllm", settings, variables) as peer:
            yield peer

    @contextmanager
    def serve(room: Room) -> Iterator[str]:
        where = room.environments
        # Not `vllm serve`: it looks for a package called vllm, and that for processors has another name.
        command = [
            str(where.program("vllm", "python")), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(hf_folder(room.description, int8=int8)),
            "--max-num-seqs", str(room.rows), "--max-model-len", str(room.context),
        ]  # fmt: skip
        with peer_server(command, where.variables("vllm", room.threads)) as address:
            yield address

    return load, serve


def _llamacpp(*, quantise: str | None) -> tuple[OpenEngine, OpenServer]:
    @contextmanager
    def load(room: Room) -> Iterator[PeerEngine]:
        where, settings = room.environments, _settings(room, _gguf(room, quantise))
        variables = where.variables("llamacpp", room.threads)
        with peer_program(where.program("llamacpp", "python"), "llamacpp", settings, variables) as peer:
            yield peer

    @contextmanager
    def serve(room: Room) -> Iterator[str]:
        where = room.environments
        command = [
            str(where.program("llamacpp", "llama-server")), "--model", str(_gguf(room, quantise)),
            "--parallel", str(room.rows), "--ctx-size", str(room.rows * room.context),
            "--threads", str(room.threads), "--no-webui",
        ]  # fmt: skip
        with peer_server(command, where.variables("llamacpp", room.threads)) as address:
            yield address

    return load, serve


def _settings(room: Room, model: Path) -> dict[str, str | int]:
    return {"model": str(model), "rows": room.rows, "context": room.context, "threads": room.threads}


def _gguf(room: Room, quantise: str | None) -> Path:
    """The model's own GGUF file, or that file in another format, made once by llama.cpp's own program."""
    files = room.description.files
    if files.kind != "gguf" or len(files.weights) > 1:
        raise UserError("it reads a single GGUF file; give one as the model")
    if quantise is None:
        return files.weights[0]
    made = files.cache_dir / "peers" / f"{room.description.digests['weights'][:24]}-{quantise}.gguf"
    if not made.is_file():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent, prefix=".partial-") as folder:
            target = Path(folder) / made.name
            program = str(room.environments.program("llamacpp", "llama-quantize"))
            done = subprocess.run(  # noqa: S603 - a program of the peer's environment
                [program, "--allow-requantize", str(files.weights[0]), str(target), quantise],
                env=room.environments.variables("llamacpp", room.threads),
                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                raise UserError(f"llama-quantize ended with status {done.returncode}: {done.stderr.strip()[-200:]}")
            shutil.move(target, made)
    return made


def _arm(peer: str, about: str, both: tuple[OpenEngine, OpenServer]) -> Arm:
    return Arm(peer=peer, about=about, load=both[0], serve=both[1])


ARMS: Final[dict[str, Arm]] = {
    "genai": Arm(peer="genai", about="OpenVINO GenAI, our converted weights", load=_genai),
    "vllm-w8a8": _arm("vllm", "vLLM for CPUs, int8 weights and activations", _vllm(int8=True)),
    "vllm-bf16": _arm("vllm", "vLLM for CPUs, bfloat16", _vllm(int8=False)),
    "llamacpp-q8_0": _arm("llamacpp", "llama.cpp, Q8_0", _llamacpp(quantise="Q8_0")),
    "llamacpp-gguf": _arm("llamacpp", "llama.cpp, the GGUF file as it is", _llamacpp(quantise=None)),
}
