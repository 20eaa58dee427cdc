"""Ekiden: a continuous-batching LLM inference server that can prove what its batching does.

As a library: ``ekiden.load().generate(["Once upon a time"])``. An answer has at most 128 tokens where nobody says
otherwise (:meth:`ekiden.engine.llm.LLM.generate`), and a terminal shows how far it is.
"""

from typing import TYPE_CHECKING

from ekiden.version import __version__

if TYPE_CHECKING:
    from ekiden.engine.llm import LLM

__all__ = ["__version__", "load"]


def load(model: str = "smollm2-135m", **settings: str | int | float | bool) -> "LLM":
    """An offline engine for ``model`` (all that ``ekiden serve`` takes), with any settings by their names.

    Settings are those of ``ekiden config show``, such as ``max_num_seqs=32``. Raises
    :class:`ekiden.config.ConfigError` and :class:`ekiden.models.errors.ModelError`.
    """
    from ekiden.build.engines import load_llm  # here, so that importing the package costs nothing

    return load_llm(model, settings)
