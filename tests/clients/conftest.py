"""A real server over the scripted engine, for real client packages."""

import msgspec
import pytest

from tests.api.conftest import Live, live
from tests.api.scripted import END, say

__all__ = ["Live", "live"]


@pytest.fixture
def url(live: Live) -> str:
    """The base URL for clients. Answers repeat the last letters of the prompt's text."""
    live.engine.script = lambda request: [*say("The sky scatters blue light."), END]
    return f"{live.url}/v1"


@pytest.fixture
def wide(live: Live) -> None:
    """A context that is long enough for tools: each byte is a token here."""
    live.engine.card = msgspec.structs.replace(live.engine.card, max_model_len=10_000)
    live.app.state.doors.generation.text.max_model_len = 10_000
