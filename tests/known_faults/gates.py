"""A gate before the engine's steps that is open again at the end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.api.test_admin import Gate


@asynccontextmanager
async def opened(gate: Gate) -> AsyncIterator[None]:
    """Opens the gate at the end, whatever happened: the engine could not stop behind it."""
    try:
        yield
    finally:
        gate.open.set()
