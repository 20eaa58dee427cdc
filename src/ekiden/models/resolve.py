"""Finds the files of the model that a user names."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ekiden.models.catalog import CATALOG
from ekiden.models.errors import ModelError
from ekiden.models.fetch import Progress, fetch_catalog, silent
from ekiden.models.gguf_parts import model_name, parts_of
from ekiden.models.safetensors import INDEX, shards_of

Kind = Literal["gguf", "safetensors", "openvino"]

ACCEPTED = (
    f"a catalog name ({', '.join(CATALOG)}), a .gguf file, a Hugging Face folder (config.json, *.safetensors, "
    "tokenizer.json), an OpenVINO folder (openvino_model.xml and .bin, config.json, tokenizer.json), a folder with one "
    ".gguf file or all parts of one, or org/name on a hub"
)

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model on disk. A path is None where the model has no such file; a GGUF file holds everything itself."""

    kind: Kind
    name: str
    root: Path
    weights: tuple[Path, ...]
    cache_dir: Path
    config: Path | None = None
    generation_config: Path | None = None
    tokenizer: Path | None = None
    tokenizer_config: Path | None = None
    chat_template: Path | None = None


def resolve(model: str, cache_dir: Path, *, progress: Progress | None = None) -> ModelFiles:
    """Find the files of ``model``; a model from the catalog or a hub is fetched unless the cache has it.

    Args:
        model: a catalog name, a path, or ``org/name``. A path that exists takes precedence over a hub name.
        cache_dir: the model cache.
        progress: called with the progress of a fetch.

    Raises:
        ModelError: there is no such model, its folder lacks a file, or fetching it failed.
    """
    report = progress or silent
    if model in CATALOG:
        return _gguf(fetch_catalog(CATALOG[model], cache_dir, report), model, cache_dir)
    if "\0" in model or not model:
        raise ModelError(f"{model!r} is not a model's name; give {ACCEPTED}")
    path = Path(model).expanduser()
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{path}: a model file must end in .gguf; give {ACCEPTED}")
        return _gguf(path, model_name(path), cache_dir)
    if path.is_dir():
        return files_in_folder(path, path.resolve().name, cache_dir)
    if _HUB_NAME.fullmatch(model) and path.suffix.lower() != ".gguf":
        from ekiden.models.hub import fetch_snapshot

        return files_in_folder(fetch_snapshot(model, cache_dir, report), model, cache_dir)
    raise ModelError(f"{model!r} is neither a file, nor a folder, nor a known name; give {ACCEPTED}")


def _gguf(path: Path, name: str, cache_dir: Path) -> ModelFiles:
    return ModelFiles(kind="gguf", name=name, root=path.parent, weights=parts_of(path), cache_dir=cache_dir)


def files_in_folder(folder: Path, name: str, cache_dir: Path) -> ModelFiles:
    """The model in a folder. Where it holds several, OpenVINO comes before safetensors, and that before GGUF.

    Raises:
        ModelError: the folder holds no model, or a file that the model needs is missing.
    """
    network = folder / "openvino_model.xml"
    if network.is_file():
        constants = network.with_suffix(".bin")
        if not constants.is_file():
            raise ModelError(f"{constants}: missing beside openvino_model.xml; export or fetch the model again")
        return _with_tokenizer("openvino", folder, name, (network, constants), cache_dir)
    if any(folder.glob("*.safetensors")) or (folder / INDEX).is_file():
        return _with_tokenizer("safetensors", folder, name, shards_of(folder), cache_dir)
    found = sorted(path for path in folder.glob("*.gguf") if not path.name.startswith("mmproj"))
    if found and (len(found) == 1 or set(found) <= set(parts_of(found[0]))):
        return _gguf(found[0], name, cache_dir)
    if found:
        names = ", ".join(path.name for path in found[:8])
        raise ModelError(f"{folder}: holds {len(found)} .gguf files ({names}); give the path of one")
    if any(folder.glob("*.bin")) or any(folder.glob("*.pth")):
        raise ModelError(
            f"{folder}: its weights are in PyTorch's own format, which is not supported, as loading it can run code; "
            "save them as safetensors"
        )
    raise ModelError(f"{folder}: holds no model; give {ACCEPTED}")


def _with_tokenizer(kind: Kind, folder: Path, name: str, weights: tuple[Path, ...], cache_dir: Path) -> ModelFiles:
    def optional(*names: str) -> Path | None:
        return next((folder / each for each in names if (folder / each).is_file()), None)

    for needed in ("config.json", "tokenizer.json"):
        if not (folder / needed).is_file():
            hint = ""
            if needed == "tokenizer.json" and optional("tokenizer.model", "vocab.json"):
                hint = " (save it with transformers' AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER))"
            raise ModelError(f"{folder}: {needed} is missing and needed{hint}; export or fetch the model again")
    names = ("config", "generation_config", "tokenizer", "tokenizer_config")
    found = {each: optional(f"{each}.json") for each in names}
    found["chat_template"] = optional("chat_template.jinja", "chat_template.json")
    return ModelFiles(kind=kind, name=name, root=folder, weights=weights, cache_dir=cache_dir, **found)
