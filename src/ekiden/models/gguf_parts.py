"""Split GGUF files: ``NAME-00001-of-00003.gguf`` and its like, of which the first has the metadata.

`llama-gguf-split` writes them, and large models are published so. Each part is a GGUF file with some of the tensors and
the keys ``split.no`` (from 0), ``split.count`` and ``split.tensors.count`` (of all parts together).
"""

import re
from collections.abc import Sequence
from pathlib import Path

from ekiden.models.errors import ModelError
from ekiden.models.gguf_file import GGUFFile, MetadataValue

MAX_PARTS = 999
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)


def model_name(path: Path) -> str:
    """The name of a GGUF file without what tells its part."""
    found = _PART.fullmatch(path.name)
    return path.stem if found is None else found[1]


def parts_of(path: Path) -> tuple[Path, ...]:
    """All parts of the model of which ``path`` is one, in order; only itself when they are not all there."""
    named = _named_parts(path)
    return named if all(part.is_file() for part in named) else (path,)


def _named_parts(path: Path) -> tuple[Path, ...]:
    found = _PART.fullmatch(path.name)
    if found is None or not 1 <= int(found[2]) <= int(found[3]) <= MAX_PARTS:
        return (path,)
    name, count, suffix = found[1], int(found[3]), path.name[-len(".gguf") :]
    return tuple(path.with_name(f"{name}-{part:05}-of-{count:05}{suffix}") for part in range(1, count + 1))


def check_parts(parts: Sequence[GGUFFile]) -> None:
    """Raises :class:`ModelError` when these files are not all parts of one model, in order."""
    first = parts[0]
    count = _number(first, "split.count", 1)
    if count != len(parts):
        missing = [part.name for part in _named_parts(first.path) if not part.is_file()]
        wanting = ", ".join(missing[:3]) or f"NAME-00001-of-{count:05}.gguf and so on"
        raise ModelError(
            f"{first.path}: this is one of {count} parts of a split GGUF, and {wanting} cannot be found beside it; put "
            "all parts into one folder under their own names, or join them with `llama-gguf-split --merge`"
        )
    for number, part in enumerate(parts):
        told = _number(part, "split.no", 0), _number(part, "split.count", 1)
        if told != (number, count):
            raise ModelError(
                f"{part.path}: by its name part {number + 1} of {count}, by its content part {told[0] + 1} of "
                f"{told[1]}; fetch the parts again"
            )
    tensors = sum(len(part.tensors) for part in parts)
    if (wanted := _number(first, "split.tensors.count", tensors)) != tensors:
        raise ModelError(f"{first.path}: its {count} parts hold {tensors} tensors of {wanted}; fetch the parts again")


def _number(part: GGUFFile, key: str, default: int) -> int:
    value: MetadataValue = part.metadata.get(key, default)
    return value if isinstance(value, int) else default
