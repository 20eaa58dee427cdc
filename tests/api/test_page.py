"""The page over the real engine core and the fake model: its files, who may read, the stream, and the data."""

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ekiden.api import page_stream
from ekiden.api.keys import new_key
from ekiden.api.page_access import PAGE_POLICY
from ekiden.config import Config, LedgerConfig, ServerConfig
from ekiden.dashboard.files import page_files
from tests.api.conftest import Memory, assert_error
from tests.api.real_core import RealCore, real_core

DATA = "/dashboard/data/"
PATHS = ["config", "runs", "stream", "period", "changes", "requests", "request?id=x", "what-if?id=x",
         "compare?a=x&b=y", "releases", "evaluations"]  # fmt: skip
LOCAL = {"host": "localhost:8000"}


@asynccontextmanager
async def serving(tmp_path: Path, config: Config | None = None, **how: Any) -> AsyncIterator[RealCore]:
    config = config or Config(ledger=LedgerConfig(ledger_dir=str(tmp_path / "ledger")))
    async with real_core(config, record=config.ledger.ledger, live=True, **how) as core:
        yield core


@asynccontextmanager
async def with_keys(tmp_path: Path, **server: Any) -> AsyncIterator[tuple[RealCore, dict[str, dict[str, str]]]]:
    """A server with keys; the headers of each."""
    headers, path = {}, tmp_path / "keys.toml"
    with path.open("w") as file:
        for name, scopes in (("anna", '["admin"]'), ("user", '["inference"]')):
            key, digest = new_key()
            headers[name] = {"authorization": f"Bearer {key}"}
            file.write(f'[[keys]]\nname = "{name}"\nhash = "{digest}"\nscopes = {scopes}\n')
    config = Config(
        server=ServerConfig(api_keys_file=str(path), **server), ledger=LedgerConfig(ledger_dir=str(tmp_path / "l"))
    )
    async with serving(tmp_path, config) as core:
        yield core, headers


async def frames(http: httpx.AsyncClient, **headers: str) -> AsyncGenerator[tuple[str, Any], None]:
    """The ids and the data of the frames of one stream."""
    async with http.stream("GET", f"{DATA}stream", headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        name = ""
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                name = line.removeprefix("id: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


async def until(http: httpx.AsyncClient, wanted: Any, **headers: str) -> tuple[str, Any]:
    """The first frame that is as wanted."""
    async with asyncio.timeout(60), aclosing(frames(http, **headers)) as found:
        async for name, frame in found:
            if wanted(frame):
                return name, frame
    raise AssertionError("the stream ended")


# --- files


async def test_the_page_and_its_files(memory: Memory):
    page = await memory.http.get("/", headers=LOCAL)
    assert page.headers["content-security-policy"] == PAGE_POLICY
    assert "unsafe" not in PAGE_POLICY
    assert (page.headers["x-content-type-options"], page.headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert page.text.startswith("<!doctype html>")
    again = await memory.http.get("/", headers={**LOCAL, "if-none-match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for name, file in page_files().items():
        response = await memory.http.get(f"/dashboard/{name}", headers=LOCAL)
        content = gzip.decompress(file.content) if file.packed else file.content
        assert (response.status_code, response.content) == (200, content)
        assert response.headers["content-security-policy"] == PAGE_POLICY
    for name in ("", "nothing.js", "../config.py", "%2e%2e/config.py", "data/nothing", "vendor/../../files.py"):
        response = await memory.http.get(f"/dashboard/{name}", headers=LOCAL)
        assert response.status_code == 404
    assert_error(await memory.http.post("/", headers=LOCAL), 405)
    for path in PATHS:  # nothing changes by GET, and nothing here is done by POST
        assert_error(await memory.http.post(DATA + path, headers=LOCAL), 405)


# --- who may read


async def test_without_keys_it_is_open_by_names_of_the_loopback_address_alone(memory: Memory):
    for host in ("localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "127.9.9.9", "page.localhost:1"):
        for path in ("/", f"{DATA}config"):
            assert (await memory.http.get(path, headers={"host": host})).status_code == 200, host
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1",
                 "0.0.0.0:8000", "[::2]", "", "localhost@evil.example", "[broken", "a b"):  # fmt: skip
        for path in ("/", f"{DATA}config", f"{DATA}stream", "/dashboard/index.html"):
            response = await memory.http.get(path, headers={"host": host})
            assert "API keys" in assert_error(response, 403, code="wrong_host")


@pytest.mark.parametrize(
    ("headers", "may"),
    [
        ({}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"origin": "http://localhost:8000"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),  # another port of this machine
        ({"sec-fetch-site": "cross-site", "origin": "http://localhost:8000"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "http://localhost:9000"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://[broken"}, False),
        ({"origin": ""}, False),
    ],
)
async def test_data_are_for_the_page_of_this_server(memory: Memory, headers: dict[str, str], may: bool):
    for path in PATHS:
        if path == "stream" and may:
            continue
        response = await memory.http.get(DATA + path, headers=LOCAL | headers)
        if may:
            assert response.status_code != 403
        else:
            assert_error(response, 403, code="cross_site")
    assert (await memory.http.get("/", headers=LOCAL | headers)).status_code == 200, "a link may lead to the page"


async def test_with_keys_data_need_one_of_scope_admin(tmp_path: Path):
    async with with_keys(tmp_path) as (core, headers):
        assert (await core.http.get("/", headers={"host": "page.example.org"})).status_code == 200
        assert (await core.http.get("/dashboard/index.html")).status_code == 200
        for path in PATHS:
            assert_error(await core.http.get(DATA + path), 401, code="invalid_api_key")
            response = await core.http.get(DATA + path, headers=headers["user"])
            assert "need a key of scope 'admin'" in assert_error(response, 403, code="insufficient_scope")
        response = await core.http.get(f"{DATA}config", headers=headers["anna"])
        assert response.headers["cache-control"] == "no-store"
        told = response.json()
        assert (told["who"], told["may_act"], told["can_act"], told["has_keys"]) == ("anna", True, True, True)
        foreign = headers["anna"] | {"origin": "http://evil.example"}
        assert_error(await core.http.get(f"{DATA}config", headers=foreign), 403, code="cross_site")
        _, frame = await until(core.http, lambda frame: True, **headers["anna"])
        assert frame["state"] == "ok"


async def test_a_page_of_another_site_cannot_act(tmp_path: Path):
    """Even with the key, and whatever it claims; one that ``cors_origins`` names may."""
    allowed = "https://desk.example.org"
    async with with_keys(tmp_path, cors_origins=allowed) as (core, headers):
        body = {"set": {"max_num_seqs": 5}, "reason": "x"}
        for foreign in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}):
            response = await core.http.post("/admin/policy", json=body, headers=headers["anna"] | foreign)
            assert_error(response, 403, code="cross_site")
        assert core.engine.controls().controls.max_num_seqs == 64
        for origin in ({"origin": core.url}, {"origin": allowed, "sec-fetch-site": "cross-site"}, {}):
            response = await core.http.post("/admin/policy", json=body, headers=headers["anna"] | origin)
            assert response.status_code == 200
        assert core.engine.controls().controls.max_num_seqs == 5
        response = await core.http.get(f"{DATA}config", headers=headers["anna"] | {"origin": allowed})
        assert_error(response, 403, code="cross_site")


# --- the stream


async def test_a_frame_tells_what_the_engine_did_and_a_stream_resumes(tmp_path: Path):
    async with serving(tmp_path) as core:
        config = (await core.http.get(f"{DATA}config")).json()
        assert (config["model"], config["has_keys"], config["may_act"], config["ledger"]) == (
            "toy/model", False, False, True,
        )  # fmt: skip
        ids = []
        for length in (4, 30):
            answer = await core.complete([1, 2, 3], max_tokens=length, ignore_eos=True)
            ids.append(answer.headers["x-ekiden-request-id"])
        await until(core.http, lambda frame: frame["ended"] == {"length": 2})  # the ledger is a little behind
        name, frame = await until(core.http, lambda frame: True)
        assert name == f"{config['run_id']}:{frame['turn']}"
        assert [bar["request_id"].startswith(ids[at]) for at, bar in enumerate(frame["bars"])] == [True, True]
        assert [phase for phase, _, _ in frame["bars"][1]["segments"]] == ["prefill", "decode"]
        assert frame["reset"]
        await core.complete([5], max_tokens=3, ignore_eos=True)
        _, frame = await until(core.http, lambda frame: frame["bars"], **{"last-event-id": name})
        assert (len(frame["bars"]), frame["reset"]) == (1, False)
        assert (await core.http.get(f"{DATA}stream?run={config['run_id']}x")).status_code == 404


async def test_a_viewer_that_goes_away_is_forgotten_and_the_reader_ends(tmp_path: Path):
    async with serving(tmp_path) as core:
        page: Any = core.app.state.page
        streams = [frames(core.http) for _ in range(3)]
        for each in streams:
            await anext(each)
        assert (page.viewers, page.frames.watched_by) == (3, 3)
        for each in streams:
            await each.aclose()
        async with asyncio.timeout(60):
            while page.viewers or page.frames.watched_by:
                await asyncio.sleep(0.01)
        await core.clean()


async def test_too_many_pages_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(page_stream, "MOST_VIEWERS", 1)
    async with serving(tmp_path) as core, aclosing(frames(core.http)) as first:
        await anext(first)
        assert_error(await core.http.get(f"{DATA}stream"), 503, code="too_many_pages")


async def test_the_server_ends_with_pages_open(tmp_path: Path):
    """They would hold it up for ``shutdown_timeout`` otherwise."""
    async with serving(tmp_path) as core:
        open_page = frames(core.http)
        await anext(open_page)
        core.app.state.doors.generation.flight.draining = True
        async with asyncio.timeout(60):
            async for _ in open_page:
                pass


async def test_a_stream_ends_so_that_the_key_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with serving(tmp_path) as core, aclosing(frames(core.http)) as found, asyncio.timeout(60):
        await anext(found)  # however long that takes; then its time has come
        monkeypatch.setattr(page_stream, "STREAM_SECONDS", 0.0)
        async for _ in found:
            pass


async def test_without_a_ledger_it_says_so(tmp_path: Path):
    async with serving(tmp_path, Config(ledger=LedgerConfig(ledger=False))) as core:
        _, frame = await until(core.http, lambda frame: True)
        assert frame["state"] == "no_ledger"
        assert frame["engine"]["kv_blocks_total"] > 0
        assert (await core.http.get(f"{DATA}config")).json()["ledger"] is False
        for path in ("runs", "period", "requests", "request?id=x", "compare?a=x&b=y", "what-if?id=x&max_num_seqs=2"):
            assert_error(await core.http.get(DATA + path), 404, code="ledger_off")


# --- what is asked


async def test_period_requests_and_a_story(tmp_path: Path):
    async with serving(tmp_path) as core:
        answers = [await core.complete([1, 2, 3 + n], max_tokens=4 + n, ignore_eos=True) for n in range(3)]
        ids = [answer.headers["x-ekiden-request-id"] for answer in answers]
        run = (await core.http.get(f"{DATA}config")).json()["run_id"]
        await until(core.http, lambda frame: frame["ended"] == {"length": 3})
        period = (await core.http.get(f"{DATA}period?from=0")).json()
        assert len(period["bars"]) == 3
        assert period["recording"]
        lines = (await core.http.get(f"{DATA}requests?by=slowest&limit=2")).json()
        assert (len(lines["requests"]), lines["matching"], lines["tenants"]) == (2, 3, {"default": 3})
        story = (await core.http.get(f"{DATA}request?id={ids[1]}&run={run}")).json()
        (one,) = story["stories"]
        assert (one["line"]["tokens"], one["line"]["end"], story["in_flight"]) == (5, "length", [])
        assert sum(cause["seconds"] for cause in one["explanation"]["causes"]) == pytest.approx(one["line"]["e2e"])
        told = (await core.http.get(f"{DATA}what-if?id={ids[1]}&max_num_seqs=1&scheduling_policy=fair")).json()
        assert told["changed"] == {"max_num_seqs": 1, "scheduling_policy": "fair"}
        assert told["followed"]["recorded"]["reason"] == "length"
        compared = (await core.http.get(f"{DATA}compare?a={run}&b={run}")).json()
        assert compared["a"]["requests"] == 3
        assert compared["pictures"][0].startswith("<svg")
        assert (await core.http.get(f"{DATA}releases")).json() == {"releases": []}
        assert (await core.http.get(f"{DATA}evaluations")).json() == {"evaluations": []}


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("period?from=x", 400, "from is 'x'; it must be a number from 0"),
        ("period?from=nan", 400, "from is 'nan'"),
        ("period?from=-1", 400, "from is '-1'"),
        ("period?from=1e99", 400, "from"),
        ("period?from=5&to=5", 400, "a period ends after it begins"),
        ("period?run=never", 404, "no run 'never'"),
        ("changes?run=never", 404, "no run 'never'"),
        ("period?run=%2fetc%2fpasswd", 404, "no run '/etc/passwd'"),
        ("requests?by=colour", 400, "by is 'colour'; it must be one of slowest, refused, latest"),
        ("requests?limit=1000", 400, "limit is '1000'"),
        ("requests?limit=0", 400, "limit is '0'"),
        ("request", 400, "id is missing"),
        ("request?id=nobody", 404, "no request 'nobody'"),
        (f"request?id={'x' * 300}", 400, "it may have 200 characters"),
        ("compare?a=x", 400, "b is missing"),
        ("compare?a=x&b=y", 404, "no run 'x'"),
        ("what-if?id=x", 400, "no setting is changed"),
        ("what-if?id=x&colour=red", 400, "colour is no setting"),
        ("what-if?id=x&max_num_seqs=2", 404, "no request 'x'"),
        ("stream?run=never", 404, "no run 'never'"),
    ],
)
async def test_what_cannot_be_answered_is_told(asked_of: RealCore, path: str, status: int, text: str):
    message = assert_error(await asked_of.http.get(DATA + path), status)
    assert text in message


@pytest.fixture
async def asked_of(tmp_path: Path) -> AsyncIterator[RealCore]:
    async with serving(tmp_path) as core:
        yield core
