"""Runs OpenVINO GenAI's continuous batching on our converted weights, for ``ekiden bench peer``.

GenAI gets the graph from before the paged transformation (it applies its own), the same memory and threads, and the
prompts as token ids. Everything else keeps GenAI's defaults, or with ``tuned`` follows our runner: the graph, the
kernels' settings, the number of rows and the token budget.
"""

import tempfile
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import openvino as ov

from ekiden.backends.openvino import machine
from ekiden.backends.openvino.conversion import GRAPH, conversion_entry, converted
from ekiden.backends.openvino.graph import build_model
from ekiden.backends.openvino.loader import AS_EXPORTED
from ekiden.backends.openvino.weights.format import WeightFormat
from ekiden.backends.openvino.weights.int8 import DYNAMIC_QUANTISATION_GROUP
from ekiden.backends.openvino.weights.table import INT8, PLUGIN_FORMATS, choose_format
from ekiden.config import Config, parse_size
from ekiden.measure.figures import Figures
from ekiden.models.errors import ModelError
from ekiden.models.load import ModelDescription, open_checkpoint

NEVER = 0
"""GenAI demands an end token; the bench's answers ignore it."""


class GenAIPeer(AbstractContextManager["GenAIPeer"]):
    """A loaded pipeline; a context manager, because it holds a temporary folder of links to the model."""

    def __init__(self, description: ModelDescription, config: Config, *, tuned: bool) -> None:
        """``tuned``: use our runner's settings instead of GenAI's defaults.

        Raises :class:`ModelError` when GenAI is not installed.
        """
        try:
            import openvino_genai
        except ImportError as error:
            raise ModelError("openvino-genai is not installed; `make setup-bench` installs it") from error
        self._genai = openvino_genai
        self._folder = tempfile.TemporaryDirectory(prefix="ekiden-peer-")
        spec = description.spec
        weights, group = PLUGIN_FORMATS.get(config.model.weights, INT8), DYNAMIC_QUANTISATION_GROUP
        if tuned and spec is not None:
            weights = choose_format(config.model, spec, own_kernels=False).format
        graph = _graph(description, weights)
        if tuned and spec is not None:
            group = weights.group(spec, ov.Core().read_model(graph))
        folder = Path(self._folder.name)
        (folder / "openvino_model.xml").symlink_to(graph)
        (folder / "openvino_model.bin").symlink_to(graph.with_suffix(".bin"))
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.num_kv_blocks = 0
        scheduler.cache_size = max(1, round(parse_size("kv_cache_size", config.cache.kv_cache_size) / 2**30))
        properties = {"INFERENCE_NUM_THREADS": str(config.engine.threads or machine.usable_threads())}
        if tuned:
            scheduler.max_num_seqs = config.scheduler.max_num_seqs
            scheduler.max_num_batched_tokens = config.scheduler.max_num_batched_tokens
            properties |= {
                "KV_CACHE_PRECISION": config.cache.kv_dtype,
                "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(group),
                "INFERENCE_PRECISION_HINT": "f32",
            }
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", properties)
        self.lineage: Figures = {
            "name": "openvino-genai ContinuousBatchingPipeline",
            "version": str(openvino_genai.__version__),
            "settings": "as ours" if tuned else "its defaults",
            "weights": AS_EXPORTED if spec is None else weights.name,
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "max_num_seqs": scheduler.max_num_seqs,
            **properties,
        }

    def generate(self, prompts: list[list[int]], output_tokens: int) -> list[list[int]]:
        """Exactly ``output_tokens`` greedy tokens for each prompt; all prompts are submitted at once."""
        ends = {"ignore_eos": True, "eos_token_id": NEVER, "stop_token_ids": {NEVER}}
        wanted = self._genai.GenerationConfig(max_new_tokens=output_tokens, do_sample=False, **ends)
        tensors = [ov.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        results = self._pipeline.generate(tensors, [wanted] * len(prompts))
        return [list(result.m_generation_ids[0]) for result in results]

    def losses(self, passages: list[list[int]]) -> list[float]:
        """Nothing: its continuous batching tells the likelihoods of what it generates, not those of a prompt."""
        return []

    def __exit__(self, *_: object) -> None:
        del self._pipeline
        self._folder.cleanup()


def genai_installed() -> bool:
    """Whether the package is there, without importing it."""
    return find_spec("openvino_genai") is not None


def _graph(description: ModelDescription, weights: WeightFormat) -> Path:
    spec, files = description.spec, description.files
    if spec is None:
        return files.weights[0].resolve()
    entry = conversion_entry(files.cache_dir, description.digests, weights.key)
    converted(ov.Core(), entry, lambda: build_model(spec, open_checkpoint(files), weights))
    return (entry / GRAPH).resolve()
