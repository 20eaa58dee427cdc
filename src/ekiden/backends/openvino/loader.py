"""Makes a runner from a model's files: convert or read the graph, transform and compile it, allocate, self-test."""

import contextlib
import hashlib
import json
import logging
from pathlib import Path

import msgspec
import openvino as ov

from ekiden.backends.openvino import machine
from ekiden.backends.openvino.conversion import CONSTANTS, conversion_entry, converted
from ekiden.backends.openvino.graph import build_model
from ekiden.backends.openvino.kv_pool import BLOCK_SIZE, allocate, read_layouts
from ekiden.backends.openvino.paged import to_paged
from ekiden.backends.openvino.paged_model import CompiledPagedModel
from ekiden.backends.openvino.passes import PassLimits
from ekiden.backends.openvino.reduction import OpenVINOReducer
from ekiden.backends.openvino.runner import CHUNK_RULES, MAX_DRAFTS, PROMPT_LOGITS_LIMIT, OpenVINORunner
from ekiden.backends.openvino.self_test import SELF_TEST_VERSION, SelfTest, SelfTestResult
from ekiden.backends.openvino.sizes import PassSizes, tokens_per_change
from ekiden.backends.openvino.weights.format import WeightFormat
from ekiden.backends.openvino.weights.int8 import DYNAMIC_QUANTISATION_GROUP
from ekiden.backends.openvino.weights.table import choose_format
from ekiden.config import AUTO_WEIGHTS, Config, ConfigError, parse_size
from ekiden.models.errors import ModelError
from ekiden.models.files import replace_file
from ekiden.models.load import ModelDescription, open_checkpoint
from ekiden.sampling.sampler import Sampler
from ekiden.state.runner import RunnerInfo

log = logging.getLogger(__name__)

AS_EXPORTED = "as exported"
"""The weights of an OpenVINO folder, in whatever format they are."""


def load_runner(description: ModelDescription, config: Config) -> OpenVINORunner:
    """Load the model that ``description`` names.

    Raises:
        ModelError: the model's files are damaged, or its graph cannot be used.
        ConfigError: a setting does not fit the model or this backend.
    """
    _check(config)
    threads = config.engine.threads or machine.usable_threads()
    core, files = ov.Core(), description.files
    weights, told = _weights(config, description)
    if weights is not None:
        weights.extend(core)
    format_key = told["weights"] if weights is None else weights.key
    entry = conversion_entry(files.cache_dir, description.digests, format_key)
    graph = _paged_graph(core, description, weights, entry)
    restore = None if weights is None else weights.states(graph)
    group = DYNAMIC_QUANTISATION_GROUP
    if weights is not None and description.spec is not None:
        group = weights.group(description.spec, graph)
        told |= {"activation_group": str(group)} if group else {}
    compiled = _compile(core, description, graph, config, group, threads)
    pool = allocate(
        read_layouts(compiled),
        kv_cache_bytes=parse_size("kv_cache_size", config.cache.kv_cache_size),
        swap_bytes=parse_size("swap_size", config.cache.swap_size),
    )
    model = CompiledPagedModel(compiled, pool, restore)
    settings = {
        "openvino": ov.get_version(),
        "device": config.engine.device,
        "cpu": machine.cpu_name(core),
        "instruction_set": machine.instruction_set(compiled),
        "threads": str(threads),
        **told,
        "kv_dtype": config.cache.kv_dtype,
        **_kv_groups(config),
        "determinism": config.engine.determinism,
    }
    # The promise of the same tokens is tested for passes of up to these sizes.
    most_logits = max(config.scheduler.max_num_seqs, PROMPT_LOGITS_LIMIT)
    most = {"most_tokens": config.scheduler.max_num_batched_tokens, "most_logits": most_logits}
    test = SelfTest(model, vocab_size=description.vocab_size, **most)
    strict = config.engine.determinism == "strict"
    tested = _self_test(test, files.cache_dir, {"model": entry.name, **settings, **most}, strict)
    machine.release_file_pages(entry / CONSTANTS if description.spec else files.weights[-1])
    stored = _stored_bytes(entry if description.spec else files.root)
    info = _info(description, config, model, settings, tested, stored_bytes=stored, **most)
    tokenizer, vocab_size = description.tokenizer, description.vocab_size
    without_token = tokenizer.ids_without_token(vocab_size)
    sampler = Sampler(OpenVINOReducer(core, threads), tokenizer.eos_token_ids, without_token)
    # With drafts there may be more logits in a step than rows, and no more than the test tried are to be in a pass.
    limits = PassLimits(tested.limits.tokens, tested.limits.logits or (most_logits if strict else None))
    return OpenVINORunner(model, info, sampler, limits=limits, sizes=PassSizes(info.tokens_per_change))


def _info(
    description: ModelDescription,
    config: Config,
    model: CompiledPagedModel,
    settings: dict[str, str],
    tested: SelfTestResult,
    *,
    stored_bytes: int | None,
    most_tokens: int,
    most_logits: int,
) -> RunnerInfo:
    """What the engine must know of the model. Under strict determinism no pass may be larger than those tested."""
    strict, pool = config.engine.determinism == "strict", model.pool
    integer = "activation_group" in settings and not machine.lacks_integer_dot_products()
    return RunnerInfo(
        backend="openvino",
        vocab_size=description.vocab_size,
        max_model_len=config.model.max_model_len or description.max_position_embeddings,
        block_size=BLOCK_SIZE,
        num_blocks=pool.num_blocks,
        num_swap_blocks=pool.num_swap_blocks,
        bytes_per_block=pool.bytes_per_block,
        chunks=CHUNK_RULES,
        hidden_size=model.hidden_size,
        most_tokens=most_tokens if strict else None,
        most_rows=most_logits if strict else None,
        stored_bytes=stored_bytes,
        max_drafts=MAX_DRAFTS if tested.drafts or not strict else 0,
        tokens_per_change=tokens_per_change(description.spec, integer_products=integer),
        details={
            **settings,
            "pass_limit": str(tested.limits.tokens or "none"),
            "logit_limit": str(tested.limits.logits or "none"),
            "drafts": "exact" if tested.drafts else "inexact",
            "self_test": tested.failure or "passed",
            "cpu_flags": machine.cpu_flags(),
        },
    )


def devices() -> list[str]:
    return list(ov.Core().available_devices)


def _check(config: Config) -> None:
    if config.cache.block_size != BLOCK_SIZE:
        raise ConfigError(
            f"block_size is {config.cache.block_size}; the CPU's attention kernel works on blocks of {BLOCK_SIZE} "
            f"tokens: leave --block-size out or set it to {BLOCK_SIZE}"
        )


def _weights(config: Config, description: ModelDescription) -> tuple[WeightFormat | None, dict[str, str]]:
    """The format to convert to, and what the lineage is told of it. A graph given as such has its own."""
    asked, spec = config.model.weights, description.spec
    if spec is None:
        if asked != AUTO_WEIGHTS:
            raise ConfigError(
                f"weights is {asked}, but {description.files.name} is an OpenVINO folder, whose graph computes in the "
                "format that it was exported in: leave --weights out, or give the model's own weights (.safetensors "
                "or .gguf)"
            )
        return None, {"weights": AS_EXPORTED}
    choice = choose_format(config.model, spec)
    log.info("weights are computed as %s (%s)", choice.format.name, choice.reason)
    return choice.format, {
        "weights": choice.format.name,
        "weights_reason": choice.reason,
        **choice.format.told(),
    }


def _paged_graph(core: ov.Core, description: ModelDescription, weights: WeightFormat | None, entry: Path) -> ov.Model:
    spec, files = description.spec, description.files
    if spec is not None and weights is not None:
        graph = converted(core, entry, lambda: build_model(spec, open_checkpoint(files), weights))
    else:
        try:
            graph = core.read_model(files.weights[0])
        except RuntimeError as error:
            raise ModelError(f"{files.weights[0]}: OpenVINO cannot read it; export or fetch the model again") from error
    to_paged(graph, None if spec is None else spec.sliding_window)
    return graph


def _compile(
    core: ov.Core,
    description: ModelDescription,
    graph: ov.Model,
    config: Config,
    activation_group: int,
    threads: int,
) -> ov.CompiledModel:
    properties = {
        "KV_CACHE_PRECISION": config.cache.kv_dtype,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(activation_group),
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        **_kv_groups(config),
    }
    if config.engine.device == "CPU":
        properties |= machine.cpu_properties(threads)
    try:
        return core.compile_model(graph, config.engine.device, properties)
    except RuntimeError as error:
        raise ModelError(f"{description.files.name}: OpenVINO cannot compile it: {error}") from error


def _kv_groups(config: Config) -> dict[str, str]:
    """How integer keys are scaled: each token's by itself. The kernel reads that faster than a scale for each channel
    of a block, and no key changes when its block fills (docs/decisions/0030)."""
    return {"KEY_CACHE_QUANT_MODE": "BY_TOKEN"} if config.cache.kv_dtype == "u8" else {}


def _stored_bytes(folder: Path) -> int | None:
    """The size of a graph and its weights; None when a conversion could not be kept."""
    return sum(path.stat().st_size for path in folder.glob("*.bin")) or None


def _self_test(test: SelfTest, cache_dir: Path, settings: dict[str, str | int], strict: bool) -> SelfTestResult:
    """An earlier result for this machine and these settings, if it still holds; otherwise a new one, which is kept."""
    identity = {**settings, "flags": machine.cpu_flags(), "version": SELF_TEST_VERSION}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
    path = cache_dir / "self_test" / f"{digest}.json"
    with contextlib.suppress(OSError, msgspec.DecodeError):  # there may be no earlier result, or an unreadable one
        known = msgspec.json.decode(path.read_bytes(), type=SelfTestResult)
        if not strict or test.holds(known):
            return known
    result = test.calibrate(strict=strict)
    if result.failure is None:
        try:
            replace_file(path, msgspec.json.encode(result))
        except OSError as error:
            log.warning("the self-test's result cannot be kept in %s: %s; the next start tests again", path, error)
    elif strict:
        log.warning(
            "the determinism self-test failed: %s. A request's tokens may depend on the requests beside it, and the "
            "lineage says so; try --weights fp32 or another --kv-dtype",
            result.failure,
        )
    return result
