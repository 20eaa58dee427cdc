"""Faults reported of other servers, tried on ours. Each test's name has its entry's id; docs/known-faults.md lists all.

The fake model runs under the real engine core and the real API, unless a test needs scripted text.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from ekiden.config import CacheConfig, Config, LedgerConfig, SchedulerConfig
from tests.api.conftest import Memory, events, memory
from tests.api.real_core import BLOCK, RealCore, real_core
from tests.api.scripted import MODEL

__all__ = ["memory"]

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PATHS = (CHAT, TEXT)


def small(**scheduler: Any) -> Config:
    """A configuration with small steps, so that requests share many of them; no ledger."""
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 8 + 4 * BLOCK, **scheduler}
    return Config(
        scheduler=SchedulerConfig(**settings),
        cache=CacheConfig(block_size=BLOCK),
        ledger=LedgerConfig(ledger=False),
    )


@pytest.fixture
async def core() -> AsyncIterator[RealCore]:
    async with real_core(small()) as core:
        yield core
        await core.clean()


def request_of(path: str, text: str = "hi", **fields: Any) -> dict[str, Any]:
    what: dict[str, Any] = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    return {"model": MODEL, "temperature": 0, **what, **fields}


async def whole(http: httpx.AsyncClient, path: str, **fields: Any) -> dict[str, Any]:
    """An answer that is not streamed."""
    response = await http.post(path, json=request_of(path, **fields))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def streamed(http: httpx.AsyncClient, path: str, **fields: Any) -> list[dict[str, Any]]:
    """The chunks of a stream, after checking that it is one."""
    response = await http.post(path, json=request_of(path, stream=True, **fields))
    assert response.status_code == 200, response.text
    chunks: list[dict[str, Any]] = events(response.text)
    return chunks


def text_of(path: str, choice: dict[str, Any]) -> str:
    """The text of a choice, streamed or not."""
    if path == TEXT:
        return str(choice["text"])
    return str((choice.get("message") or choice.get("delta") or {}).get("content") or "")


def own(chunks: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    """The choices of one answer, in order."""
    return [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


async def alive(core: RealCore) -> str:
    """Check that the server still answers; returns the text, which must not change."""
    assert (await core.http.get("/health")).status_code == 200
    return text_of(TEXT, (await whole(core.http, TEXT, text="1 2 3", max_tokens=4))["choices"][0])


def assert_shape(response: httpx.Response) -> str:
    """Check that the response is an error in the API's shape; returns its message."""
    error = json.loads(response.text)["error"]
    assert set(error) - {"estimate"} == {"message", "type", "param", "code"}
    return str(error["message"])


__all__ += ["Memory"]
