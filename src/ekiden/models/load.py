"""A model's files -> what the rest of Ekiden needs to know of it, and its weights.

:func:`describe` reads everything but the weights: it takes a fraction of a second, also for a large model.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ekiden.models.architectures.fields import Fields
from ekiden.models.architectures.hf_config import spec_from_config
from ekiden.models.architectures.spec import Checkpoint, ModelSpec
from ekiden.models.architectures.weights import check_weights
from ekiden.models.chat_template import ChatTemplate, ChatTemplateError
from ekiden.models.digests import file_digest, joined_digest, text_digest
from ekiden.models.errors import ModelError
from ekiden.models.gguf import GGUFCheckpoint
from ekiden.models.resolve import Kind, ModelFiles
from ekiden.models.safetensors import SafetensorsCheckpoint
from ekiden.models.tokenizer import Tokenizer
from ekiden.models.tokenizer_gguf import tokenizer_from_metadata
from ekiden.models.tokenizer_json import read_tokenizer

MAX_JSON = 1 << 26
_SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A model without its weights.

    ``spec`` is None for OpenVINO folders, whose graph says it all. ``generation_defaults`` are the sampling values
    that the model's makers advise. ``digests`` are SHA-256 of ``weights``, ``tokenizer``, ``config`` and ``template``.
    ``warnings`` are for the operator: things that work but may not be meant.
    """

    name: str
    kind: Kind
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
        ModelError: a file that cannot be read or understood, or an architecture that is not supported.
    """
    override = None if chat_template_path is None else _read_text(chat_template_path)
    generation = _read_json(generation_config_path or files.generation_config)
    if files.kind == "gguf":
        description = _describe_gguf(files, override, generation)
    else:
        description = _describe_folder(files, override, generation)
    return description


def open_checkpoint(files: ModelFiles) -> Checkpoint:
    """The weights of a GGUF or safetensors model, each there and of the shape that its configuration says.

    Raises:
        ModelError: an OpenVINO folder, a damaged file, or a tensor that is missing or of another shape.
    """
    if files.kind == "gguf":
        gguf = GGUFCheckpoint(files.weights[0])
        check_weights(str(files.weights[0]), gguf.spec, gguf)
        return gguf
    if files.kind == "safetensors":
        checkpoint = SafetensorsCheckpoint(files.weights)
        spec = spec_from_config(str(files.config), _read_json(files.config))
        check_weights(str(files.root), spec, checkpoint)
        return checkpoint
    raise ModelError(f"{files.root}: an OpenVINO folder has no weights apart from its graph; load the graph")


def _describe_gguf(files: ModelFiles, override: str | None, generation: dict[str, Any]) -> ModelDescription:
    path = files.weights[0]
    warnings: list[str] = []
    checkpoint = GGUFCheckpoint(path)
    metadata = checkpoint.metadata
    tokenizer = tokenizer_from_metadata(str(path), metadata, warnings)
    names = {
        f"{key}_token": _token_text(metadata.get("tokenizer.ggml.tokens"), tokenizer_id)
        for key, tokenizer_id in (
            ("bos", tokenizer.bos_token_id),
            ("eos", metadata.get("tokenizer.ggml.eos_token_id")),
        )
    }
    own = {
        "default": metadata.get("tokenizer.chat_template"),
        "tool_use": metadata.get("tokenizer.chat_template.tool_use"),
    }
    template = _chat_template(str(path), override, own, names, warnings)
    digest = file_digest(path, files.cache_dir)
    return ModelDescription(
        name=files.name,
        kind=files.kind,
        spec=checkpoint.spec,
        vocab_size=checkpoint.spec.vocab_size,
        max_position_embeddings=checkpoint.spec.max_position_embeddings,
        tokenizer=_fitting(str(path), tokenizer, checkpoint.spec.vocab_size),
        chat_template=template,
        generation_defaults=_sampling_defaults(generation, warnings),
        digests=_digests(digest, digest, digest, template),
        warnings=warnings,
    )


def _describe_folder(files: ModelFiles, override: str | None, generation: dict[str, Any]) -> ModelDescription:
    assert files.config is not None
    assert files.tokenizer is not None
    warnings: list[str] = []
    config = _read_json(files.config)
    tokenizer_config = _read_json(files.tokenizer_config)
    spec = spec_from_config(str(files.config), config) if files.kind == "safetensors" else None
    fields = Fields(str(files.config), config)
    vocab_size = fields.integer("vocab_size")
    ends = [*_ids(config.get("eos_token_id")), *_ids(_read_json(files.generation_config).get("eos_token_id"))]
    tokenizer = read_tokenizer(
        files.tokenizer,
        tokenizer_config=tokenizer_config,
        eos_token_ids=[token_id for token_id in ends if token_id < vocab_size],
    )
    if not tokenizer.eos_token_ids:
        warnings.append(f"{files.root}: names no end token, so answers end only by length or a stop string")
    names = {key: _configured_text(tokenizer_config.get(key)) for key in ("bos_token", "eos_token")}
    template = _chat_template(str(files.root), override, _own_templates(files, tokenizer_config), names, warnings)
    return ModelDescription(
        name=files.name,
        kind=files.kind,
        spec=spec,
        vocab_size=vocab_size,
        max_position_embeddings=fields.integer("max_position_embeddings"),
        tokenizer=_fitting(str(files.tokenizer), tokenizer, vocab_size),
        chat_template=template,
        generation_defaults=_sampling_defaults(generation, warnings),
        digests=_digests(
            joined_digest([file_digest(path, files.cache_dir) for path in files.weights]),
            file_digest(files.tokenizer, files.cache_dir),
            file_digest(files.config, files.cache_dir),
            template,
        ),
        warnings=warnings,
    )


def _fitting(source: str, tokenizer: Tokenizer, vocab_size: int) -> Tokenizer:
    if tokenizer.vocab_size > vocab_size:
        raise ModelError(
            f"{source}: its tokenizer has {tokenizer.vocab_size:,} tokens and the model {vocab_size:,}; "
            "they do not belong together"
        )
    return tokenizer


def _digests(weights: str, tokenizer: str, config: str, template: ChatTemplate | None) -> dict[str, str]:
    digests = {"weights": weights, "tokenizer": tokenizer, "config": config}
    if template is not None:
        digests["template"] = text_digest(template.source)
    return digests


def _own_templates(files: ModelFiles, tokenizer_config: dict[str, Any]) -> dict[str, Any]:
    """The model's templates by name: a file of their own goes before ``tokenizer_config.json``."""
    own: Any = tokenizer_config.get("chat_template")
    if files.chat_template is not None:
        if files.chat_template.suffix == ".json":
            own = _read_json(files.chat_template).get("chat_template")
        else:
            own = _read_text(files.chat_template)
    if isinstance(own, list):
        return {str(each.get("name")): each.get("template") for each in own if isinstance(each, dict)}
    return {"default": own}


def _chat_template(
    source: str, override: str | None, own: dict[str, Any], names: dict[str, str], warnings: list[str]
) -> ChatTemplate | None:
    """The user's template must work; the model's own, when it does not, leaves completions usable."""
    if override is not None:
        try:
            return ChatTemplate(override, bos_token=names["bos_token"], eos_token=names["eos_token"])
        except ChatTemplateError as error:
            raise ModelError(f"{error}; give another file with --chat-template") from error
    template, tools = own.get("default"), own.get("tool_use")
    if not isinstance(template, str):
        warnings.append(f"{source}: has no chat template, so chat is refused; give one with --chat-template")
        return None
    try:
        return ChatTemplate(
            template,
            bos_token=names["bos_token"],
            eos_token=names["eos_token"],
            tool_source=tools if isinstance(tools, str) else None,
        )
    except ChatTemplateError as error:
        warnings.append(f"{source}: {error}, so chat is refused; give another with --chat-template")
        return None


def _sampling_defaults(generation: dict[str, Any], warnings: list[str]) -> dict[str, float | int]:
    defaults: dict[str, float | int] = {}
    for key in _SAMPLING_DEFAULTS:
        value = generation.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            warnings.append(f"generation_config.json: {key!r} is {value!r:.40}, not a number, and is left out")
            continue
        defaults[key] = value
    return defaults


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, int) and not isinstance(each, bool) and each >= 0]


def _token_text(tokens: Any, token_id: Any) -> str:
    if isinstance(tokens, list) and isinstance(token_id, int) and 0 <= token_id < len(tokens):
        return str(tokens[token_id])
    return ""


def _configured_text(value: Any) -> str:
    if isinstance(value, dict):  # the older form, a serialised AddedToken
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_JSON:
            raise ModelError(f"{path}: larger than {MAX_JSON >> 20} MiB, which such a file never is; check the path")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}; check the path and its rights") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: not a UTF-8 text; check the file") from error


def _read_json(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON ({str(error)[:100]}); fetch the model again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object; fetch the model again")
    return value
