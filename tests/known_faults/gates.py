"""A gate that blocks the engine's steps until a test opens it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.api.test_admin import Gate


@asynccontextmanager
async def opened(gate: Gate) -> AsyncIterator[None]:
    """A gate that opens when the test ends in any way, since the engine could not stop behind a closed one."""
    try:
        yield
    finally:
        gate.open.set()
