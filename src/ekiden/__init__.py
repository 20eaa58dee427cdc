"""Ekiden: a continuous-batching LLM inference server that can prove what its batching does.

As a library: ``ekiden.load().generate(["Once upon a time"])``.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ekiden.engine.llm import LLM

try:
    __version__ = version("ekiden")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+source"


def load(model: str = "smollm2-135m", **settings: str | int | float | bool) -> "LLM":
    """An offline engine for ``model`` (all that ``ekiden serve`` takes), with any settings by their names.

    Settings are those of ``ekiden config show``, such as ``max_num_seqs=32``. Raises
    :class:`ekiden.config.ConfigError` and :class:`ekiden.models.errors.ModelError`.
    """
    # By name, so that importing the package costs nothing and knows no backend.
    llm: LLM = import_module("ekiden.cli.compose").load_llm(model, settings)
    return llm
