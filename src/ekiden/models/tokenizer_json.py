"""Builds a :class:`Tokenizer` from ``tokenizer.json`` and ``tokenizer_config.json``."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from ekiden.models.errors import ModelError
from ekiden.models.files import read_text
from ekiden.models.tokenizer import END_OF_TURN, Tokenizer, failure


def read_tokenizer(
    path: Path, *, tokenizer_config: Mapping[str, Any] | None = None, eos_token_ids: Iterable[int] = ()
) -> Tokenizer:
    """Read a ``tokenizer.json``.

    Args:
        path: the file.
        tokenizer_config: the content of ``tokenizer_config.json``: the BOS and EOS tokens, ``add_bos_token``.
        eos_token_ids: further ids that end a turn, from ``generation_config.json`` or ``config.json``.

    Raises:
        ModelError: the file cannot be read, or its tokens cannot be decoded exactly.
    """
    config = tokenizer_config or {}
    text = read_text(path)
    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the package raises Exception itself
        raise failure(str(path), error) from error
    byte_level, byte_fallback, strips_space = _piece_kind(path, backend)
    added = backend.get_added_tokens_decoder()
    special = {token.content: token_id for token_id, token in added.items() if token.special and token.content}
    names = [_token_text(config.get(key)) for key in ("bos_token", "eos_token")]
    bos, eos = (backend.token_to_id(name) if name else None for name in names)
    prefix, suffix = _surroundings(backend)
    adds_bos = config.get("add_bos_token")
    if isinstance(adds_bos, bool) and bos is not None and adds_bos != (bos in prefix):
        # The configuration overrides the file's post-processor.
        prefix = (bos, *prefix) if adds_bos else tuple(token_id for token_id in prefix if token_id != bos)
    ends = (eos, *eos_token_ids, *map(special.get, END_OF_TURN))
    if bos is None and prefix and prefix[0] in special.values():
        bos = prefix[0]
    return Tokenizer(
        backend=backend,
        rest=_for_the_rest(backend, text),
        byte_level=byte_level,
        byte_fallback=byte_fallback,
        strips_space=strips_space,
        added={token_id: token.content for token_id, token in added.items()},
        special=special,
        patterns={token.content: _pattern(token) for token in added.values() if token.special and token.content},
        prefix=prefix,
        suffix=suffix,
        bos_token_id=bos,
        eos_token_ids=frozenset(token_id for token_id in ends if token_id is not None),
        vocab_size=max(backend.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1),
        bos_token=names[0],
        eos_token=names[1],
    )


def _parts_of(component: Any) -> list[dict[str, Any]]:
    """A component's description as a list: the members of a Sequence, or the component itself."""
    if component is None:
        return []
    described = json.loads(component.__getstate__())
    if described["type"] != "Sequence":
        return [described]
    members = described.get("decoders") or described.get("pretokenizers") or described.get("normalizers") or []
    return [part for part in members if isinstance(part, dict)]


def _piece_kind(path: Path, backend: tokenizers.Tokenizer) -> tuple[bool, bool, bool]:
    """How pieces become bytes: ``byte_level``, ``byte_fallback`` and ``strips_space`` of :class:`Tokenizer`."""
    parts = _parts_of(backend.decoder)
    names = {part["type"] for part in parts}
    if "ByteLevel" in names:
        return True, False, False
    spaces = [part for part in parts if part["type"] in ("Replace", "Metaspace")]
    if spaces and names <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        strips = any(
            part["type"] == "Strip" or (part["type"] == "Metaspace" and part.get("prepend_scheme") != "never")
            for part in parts
        )
        return False, "ByteFallback" in names, strips
    raise ModelError(
        f"{path}: its decoder ({', '.join(sorted(names)) or 'none'}) is not supported; "
        "byte-level and SentencePiece tokenizers are"
    )


def _for_the_rest(backend: tokenizers.Tokenizer, text: str) -> tokenizers.Tokenizer:
    """The tokenizer for text after a special token: ``backend``, unless it puts a space before a text's start only."""
    parts = _parts_of(backend.pre_tokenizer)
    if not any(part["type"] == "Metaspace" and part.get("prepend_scheme") == "first" for part in parts):
        return backend
    described = json.loads(text)
    before = described["pre_tokenizer"]
    for part in before.get("pretokenizers", [before]):
        if part["type"] == "Metaspace":
            part["prepend_scheme"] = "never"
    return tokenizers.Tokenizer.from_str(json.dumps(described))


def _pattern(token: tokenizers.AddedToken) -> str:
    escaped = re.escape(token.content)
    if token.single_word:
        escaped = rf"(?<!\w){escaped}(?!\w)"
    # White space is matched from its beginning only: tried from each of its characters, long runs would take for ever.
    return (r"(?:(?<!\s)\s*)?" if token.lstrip else "") + escaped + (r"\s*" if token.rstrip else "")


def _surroundings(backend: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the file's post-processor puts before and after a text."""
    bare = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    return (), ()


def _token_text(value: Any) -> str:
    if isinstance(value, dict):  # older files hold a serialised AddedToken
        value = value.get("content")
    return value if isinstance(value, str) else ""
