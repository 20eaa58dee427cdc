"""Finds and loads models for commands, and shows the progress of what must be fetched."""

from collections.abc import Mapping

from ekiden.build import model
from ekiden.build.progress import byte_progress
from ekiden.config import Config
from ekiden.engine.parts import EngineParts
from ekiden.models.load import ModelDescription
from ekiden.models.resolve import ModelFiles


def find_model(config: Config) -> ModelFiles:
    with byte_progress() as report:
        return model.find_model(config, report)


def describe_model(config: Config) -> ModelDescription:
    """Raises :class:`~ekiden.errors.UserError`, as the others here do."""
    return model.describe_model(config, find_model(config))


def load_model(config: Config, sources: Mapping[str, str] | None = None) -> EngineParts:
    return model.load_described(config, describe_model(config), sources)
