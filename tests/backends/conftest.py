"""Models of these tests take no more than their worker's share of the cores."""

from tests.model_threads import model_threads

__all__ = ["model_threads"]
