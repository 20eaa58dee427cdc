"""The files of the page, read once from the package: nothing is built, and nothing is fetched from elsewhere.

What others wrote lies packed in ``vendor/`` (``make vendor``), and is sent as it lies: every browser unpacks it.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

LANGUAGES: Final = ("en", "ja")
START: Final = "index.html"
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "json": "application/json",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "woff2": "font/woff2",
    "txt": "text/plain; charset=utf-8",
    "md": "text/plain; charset=utf-8",
}
"""By the end of a file's name. A file of another kind is not served."""


@dataclass(frozen=True, slots=True)
class PageFile:
    content: bytes
    media_type: str
    etag: str
    packed: bool
    """By gzip."""


@cache
def page_files() -> dict[str, PageFile]:
    """Every file of ``page/`` by its path in it, such as ``vendor/uplot.js``."""
    return dict(_read(files("ekiden.dashboard").joinpath("page"), ""))


def _read(folder: Traversable, prefix: str) -> list[tuple[str, PageFile]]:
    found: list[tuple[str, PageFile]] = []
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            found += _read(entry, f"{name}/")
        elif (kind := _TYPES.get((plain := name.removesuffix(".gz")).rpartition(".")[2])) is not None:
            content = entry.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
            found.append((plain, PageFile(content, kind, etag, packed=plain != name)))
    return found
