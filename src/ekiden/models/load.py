"""Reads what Ekiden needs to know of a model from its files, and opens its weights.

:func:`describe` reads everything but the weights, which takes a fraction of a second, also for a large model.
"""

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ekiden.models.architectures.fields import Fields
from ekiden.models.architectures.hf_config import spec_from_config
from ekiden.models.architectures.spec import Checkpoint, ModelSpec
from ekiden.models.architectures.weights import EMBEDDING, HEAD, check_weights
from ekiden.models.chat_template import ChatTemplate, ChatTemplateError
from ekiden.models.digests import file_digest
from ekiden.models.errors import ModelError, cut
from ekiden.models.files import read_json, read_text
from ekiden.models.gguf import GGUFCheckpoint
from ekiden.models.resolve import ModelFiles
from ekiden.models.safetensors import SafetensorsCheckpoint
from ekiden.models.tokenizer import Tokenizer
from ekiden.models.tokenizer_gguf import tokenizer_from_metadata
from ekiden.models.tokenizer_json import read_tokenizer

_SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A model without its weights.

    ``spec`` is None for OpenVINO folders, whose graph says everything. ``generation_defaults`` are the sampling values
    that the model's authors recommend. ``digests`` are the SHA-256 of ``weights``, ``tokenizer``, ``config`` and
    ``template``. ``warnings`` tell the operator of things that work but may not be intended.
    """

    files: ModelFiles
    spec: ModelSpec | None
    vocab_size: int
    max_position_embeddings: int
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    generation_defaults: dict[str, float | int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def describe(
    files: ModelFiles, *, chat_template_path: Path | None = None, generation_config_path: Path | None = None
) -> ModelDescription:
    """Read configuration, tokenizer, chat template and sampling defaults.

    Args:
        files: what :func:`ekiden.models.resolve.resolve` found.
        chat_template_path: a Jinja file that replaces the model's own template.
        generation_config_path: a JSON file that replaces the model's own sampling defaults.

    Raises:
        ModelError: a file cannot be read or understood, or the architecture is not supported.
    """
    warnings: list[str] = []
    if files.kind == "gguf":
        source = files.weights[0]
        checkpoint = GGUFCheckpoint(*files.weights)
        spec: ModelSpec | None = checkpoint.spec
        vocab_size, max_positions = checkpoint.spec.vocab_size, checkpoint.spec.max_position_embeddings
        tokenizer = tokenizer_from_metadata(str(source), checkpoint.metadata, warnings, rows=vocab_size)
        templates = {
            "default": checkpoint.metadata.get("tokenizer.chat_template"),
            "tool_use": checkpoint.metadata.get("tokenizer.chat_template.tool_use"),
        }
    else:
        assert files.config is not None
        assert files.tokenizer is not None
        source = files.root
        config, tokenizer_config = read_json(files.config), read_json(files.tokenizer_config)
        spec = None
        if files.kind == "safetensors":
            spec = _spec_of(files, config, SafetensorsCheckpoint(files.weights), warnings)
        fields = Fields(str(files.config), config)
        vocab_size, max_positions = fields.integer("vocab_size"), fields.integer("max_position_embeddings")
        ends = [*_ids(config.get("eos_token_id")), *_ids(read_json(files.generation_config).get("eos_token_id"))]
        tokenizer = read_tokenizer(
            files.tokenizer,
            tokenizer_config=tokenizer_config,
            eos_token_ids=[token_id for token_id in ends if token_id < vocab_size],
        )
        templates = _templates(files, tokenizer_config)
    if tokenizer.vocab_size > vocab_size:
        raise ModelError(
            f"{files.tokenizer or source}: the tokenizer has {tokenizer.vocab_size:,} tokens and the model "
            f"{vocab_size:,}; they do not belong together"
        )
    if not tokenizer.eos_token_ids:
        warnings.append(f"{source}: the model names no end token, so answers end only by length or a stop string")
    override = None if chat_template_path is None else read_text(chat_template_path)
    template = _chat_template(str(source), override, templates, tokenizer, warnings)
    return ModelDescription(
        files=files,
        spec=spec,
        vocab_size=vocab_size,
        max_position_embeddings=max_positions,
        tokenizer=tokenizer,
        chat_template=template,
        generation_defaults=_sampling_defaults(read_json(generation_config_path or files.generation_config), warnings),
        digests=_digests(files, template),
        warnings=warnings,
    )


def open_checkpoint(files: ModelFiles) -> Checkpoint:
    """Open the weights of a GGUF or safetensors model and check that they are those that its configuration describes.

    Raises:
        ModelError: an OpenVINO folder, a damaged file, or a tensor that is missing or has another shape.
    """
    if files.kind == "openvino":
        raise ModelError(f"{files.root}: an OpenVINO folder has no weights apart from its graph; load the graph")
    if files.kind == "gguf":
        gguf = GGUFCheckpoint(*files.weights)
        check_weights(str(files.weights[0]), gguf.spec, gguf)
        return gguf
    checkpoint = SafetensorsCheckpoint(files.weights)
    check_weights(str(files.root), _spec_of(files, read_json(files.config), checkpoint, []), checkpoint)
    return checkpoint


def _spec_of(
    files: ModelFiles, config: dict[str, Any], checkpoint: SafetensorsCheckpoint, warnings: list[str]
) -> ModelSpec:
    """The specification of a safetensors folder.

    A head that is stored beside a tied embedding and differs from it is used: somebody has trained it. ``transformers``
    does the same from version 5 on.
    """
    spec = spec_from_config(str(files.config), config)
    if not spec.tie_word_embeddings or HEAD not in checkpoint.shapes or checkpoint.same(HEAD, EMBEDDING):
        return spec
    warnings.append(
        f"{files.root}: config.json says tie_word_embeddings, but the stored {HEAD} differs from {EMBEDDING}; it is "
        "used as it is stored"
    )
    return replace(spec, tie_word_embeddings=False)


def _digests(files: ModelFiles, template: ChatTemplate | None) -> dict[str, str]:
    each = [file_digest(path, files.cache_dir) for path in files.weights]
    weights = each[0] if len(each) == 1 else _text_digest("\n".join(each))
    digests = {"weights": weights}
    for name, path in (("tokenizer", files.tokenizer), ("config", files.config)):
        # A GGUF file holds these as well.
        digests[name] = weights if path is None else file_digest(path, files.cache_dir)
    if template is not None:
        digests["template"] = _text_digest(template.source)
    return digests


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _templates(files: ModelFiles, tokenizer_config: dict[str, Any]) -> dict[str, Any]:
    """The model's chat templates by name; a separate file takes precedence over ``tokenizer_config.json``."""
    own, separate = tokenizer_config.get("chat_template"), files.chat_template
    if separate is not None:
        own = read_json(separate).get("chat_template") if separate.suffix == ".json" else read_text(separate)
    if isinstance(own, list):
        return {str(each.get("name")): each.get("template") for each in own if isinstance(each, dict)}
    return {"default": own}


def _chat_template(
    source: str, override: str | None, own: dict[str, Any], tokenizer: Tokenizer, warnings: list[str]
) -> ChatTemplate | None:
    """The template in use. A faulty override is an error; a faulty template of the model's own only rules out chat."""
    template, tools = (own.get("default"), own.get("tool_use")) if override is None else (override, None)
    if not isinstance(template, str):
        warnings.append(f"{source}: has no chat template, so chat is refused; give one with --chat-template")
        return None
    tool_source = tools if isinstance(tools, str) else None
    try:
        return ChatTemplate(
            template, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token, tool_source=tool_source
        )
    except ChatTemplateError as error:
        if override is not None:
            raise ModelError(f"{error}; give another file with --chat-template") from error
        warnings.append(f"{source}: {error}, so chat is refused; give another with --chat-template")
        return None


def _sampling_defaults(generation: dict[str, Any], warnings: list[str]) -> dict[str, float | int]:
    given = {key: generation[key] for key in _SAMPLING_DEFAULTS if generation.get(key) is not None}
    numbers = {key: value for key, value in given.items() if type(value) in (int, float)}
    warnings += [
        f"generation_config.json: {key!r} is {cut(value)}, not a number, and is left out"
        for key, value in given.items()
        if key not in numbers
    ]
    return numbers


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, int) and not isinstance(each, bool) and each >= 0]
