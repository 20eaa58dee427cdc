"""Ekiden: a continuous-batching LLM inference server that can prove what its batching does."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("ekiden")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+source"
