"""The page over the real engine core and the fake model: its files, who may read, and the stream of frames."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from ekiden.api.page_access import PAGE_POLICY
from ekiden.config import Config, LedgerConfig
from tests.api.real_core import RealCore, real_core

DATA = "/dashboard/data/"


@asynccontextmanager
async def serving(tmp_path: Path, **how: Any) -> AsyncIterator[RealCore]:
    config = how.pop("config", None) or Config(ledger=LedgerConfig(ledger_dir=str(tmp_path / "ledger")))
    async with real_core(config, record=config.ledger.ledger, live=True, **how) as core:
        yield core


async def frames(http: httpx.AsyncClient, **headers: str) -> AsyncIterator[tuple[str, Any]]:
    """The ids and the data of the frames of one stream."""
    async with http.stream("GET", f"{DATA}stream", headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        name = ""
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                name = line.removeprefix("id: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


async def until(http: httpx.AsyncClient, wanted: Any, **headers: str) -> tuple[str, Any]:
    """The first frame that is as wanted."""
    async with asyncio.timeout(10), aclosing(frames(http, **headers)) as found:
        async for name, frame in found:
            if wanted(frame):
                return name, frame
    raise AssertionError("the stream ended")


async def test_files_config_runs_and_a_frame(tmp_path: Path):
    async with serving(tmp_path) as core:
        page = await core.http.get("/")
        assert page.headers["content-security-policy"] == PAGE_POLICY
        assert page.text.startswith("<!doctype html>")
        again = await core.http.get("/", headers={"if-none-match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        config = (await core.http.get(f"{DATA}config")).json()
        assert (config["model"], config["has_keys"], config["may_act"]) == ("toy/model", False, False)
        for length in (4, 30):
            await core.complete([1, 2, 3], max_tokens=length, ignore_eos=True)
        (run,) = (await core.http.get(f"{DATA}runs")).json()["runs"]
        assert (run["readable"], run["recording"]) == (True, True)
        name, frame = await until(core.http, lambda frame: frame.get("bars"))
        assert name == f"{run['run_id']}:{frame['turn']}"
