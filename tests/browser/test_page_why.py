"""The page explains: a request is followed from the queue to its end, found again, and compared; names stay text."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.browser.conftest import Open
from tests.browser.serving import Served, served

pytestmark = pytest.mark.asyncio(loop_scope="session")
SCRIPT = "<script>hacked=1</script>"
HOSTILE = f"{SCRIPT}<img src=x onerror=hacked=1>"
BACKWARDS = "\u202egpj.exe\u2066"
LONG = "w" * 300
VIEWS = ("#/requests", "#/compare", "#/releases", "#/try", "#/controls", "#/guard")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def flooded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Served, str]]:
    """A server whose slots one tenant takes, in order of arrival, and the id of another's request that waited."""
    folder = tmp_path_factory.mktemp("flooded")
    async with served(folder, order="fcfs", says=f"{HOSTILE} **bold** {LONG}") as server:
        flood = [server.send("flood", tokens=60) for _ in range(12)]
        waited = await server.send("ann", tokens=20, prompt="hi")
        await asyncio.gather(*flood)
        yield server, waited.headers["x-ekiden-request-id"]


def admin(server: Served) -> dict[str, str]:
    return {"authorization": f"Bearer {server.keys['admin']}"}


def run_of(server: Served) -> str:
    path = server.core.engine.ledger_path
    assert path is not None
    return path.stem


async def settled(page: Page) -> None:
    """Waits until the view has what it asked for."""
    await expect(page.locator("h1")).to_be_visible()
    await expect(page.locator(".asking [role=status]")).to_have_count(0)


async def test_a_request_is_followed_from_the_queue_to_its_end(open_live: Open, server: Served):
    tenant = "followed"  # other tests have sent requests of ann to this server
    opened = await open_live(server, f"#/requests?by=latest&tenant={tenant}")
    page = opened.page
    async with server.load(["flood"] * 6, tokens=200):
        call = server.send(tenant, tokens=40)
        link = page.locator("table a.id").first
        async with asyncio.timeout(60):
            while not await link.count():
                with contextlib.suppress(Exception):
                    await page.locator("div.row > button").last.click(timeout=1_000)
                await asyncio.sleep(0.1)
        await link.click()
        await expect(page.locator("h1")).to_contain_text("Request")
        request_id = (await call).headers["x-ekiden-request-id"]
        await expect(page.locator("h1 .id")).to_have_text(request_id)
        await expect(page.locator(".lead")).to_contain_text("Took")
    told = (await server.core.http.get(f"/v1/explain/{request_id}", headers=admin(server))).json()
    assert await page.locator(".lead").inner_text() == told["headline"]
    rows = page.locator(".waterfall tbody > tr")
    assert await rows.count() == len(told["causes"])
    assert await page.locator(".waterfall tfoot td").last.inner_text() == "100%"
    assert await page.get_by_role("button", name="Abort").count() == 0
    assert [each for each in opened.messages if "401" not in each] == []


async def test_who_is_slow_why_and_what_to_do(open_live: Open, flooded: tuple[Served, str]):
    server, request_id = flooded
    page = (await open_live(server, "#/requests?by=latest&tenant=ann")).page
    chosen = page.get_by_role("button", name="Slowest")
    await chosen.click()
    await expect(chosen).to_have_attribute("aria-pressed", "true")
    ground, ink = await chosen.evaluate(
        "each => [getComputedStyle(each).backgroundColor, getComputedStyle(document.body).color]"
    )
    assert ground == ink, "its light text can be read while the pointer is on it"
    await page.locator("table a.id").first.click()
    await settled(page)
    await expect(page.locator(".lead")).to_contain_text("waiting for a free slot")
    row = page.locator(".waterfall tbody > tr", has_text="waiting for a free slot")
    await row.locator("summary").click()
    facts = row.locator("dl.facts")
    await expect(facts).to_contain_text("by the stage refill")
    await expect(facts).to_contain_text("max_num_seqs = 4")
    await expect(page.locator(".holder").first).to_have_text("flood 100%")
    await expect(page.locator(".advice")).to_contain_text("flood held 100% of the slots")
    await page.get_by_role("button", name="Change the order").click()
    await expect(page.locator("dialog.act [name=value]")).to_have_value("fair")
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="Simulate fair").click()
    own = page.locator("tr.own", has_text="TTFT")
    await expect(own).to_be_visible()
    assert (await own.locator("td").last.inner_text()).startswith("-"), "the simulation sees that it helps"
    # Its neighbours lead to themselves, and its own bar is there.
    await expect(page.locator(".stays .own").first).to_be_attached()
    assert request_id in page.url
    await page.locator(".stays a").first.focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("h1 .id")).not_to_have_text(request_id)


async def test_two_runs_are_compared(open_live: Open, tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    async with served(tmp_path / "a", ledger=tmp_path / "ledger", order="fair") as first:
        first_id, first_run = (await first.send("ann", tokens=5)).headers["x-ekiden-request-id"], run_of(first)
    async with served(tmp_path / "b", ledger=tmp_path / "ledger", order="fcfs") as second:
        await asyncio.gather(*(second.send("ann", tokens=20) for _ in range(6)))
        opened = await open_live(second, "#/compare")
        page = opened.page
        await page.get_by_label("Run A").select_option(first_run)
        await page.get_by_label("Run B").select_option(run_of(second))
        await page.get_by_role("button", name="Compare", exact=True).click()
        await expect(page.locator(".slots svg")).to_have_count(2)
        await expect(page.locator("table").first).to_contain_text("scheduling_policy")
        await expect(page.locator("tbody th", has_text="TTFT p50")).to_be_visible()
        assert await opened.violations() == []
        await page.locator(".slots a").first.click()
        await expect(page.locator("h1 .id")).to_have_text(first_id)


async def test_a_talk_by_keyboard_alone(open_live: Open, flooded: tuple[Served, str]):
    server, _ = flooded
    opened = await open_live(server, "#/try")
    page = opened.page
    await page.locator(".say textarea").focus()
    await page.keyboard.type("hello")
    await page.keyboard.press("Enter")
    answer = page.locator(".turn.assistant").first
    await expect(answer.locator("a")).to_have_text("Why so?")
    await expect(answer.locator(".figures")).not_to_contain_text("still talking")
    # What it said is text, its marks too.
    assert await answer.locator(".text").inner_text() == f"{HOSTILE} **bold** {LONG}"
    assert await page.evaluate("typeof hacked") == "undefined"
    figures = await answer.locator(".figures").inner_text()
    assert all(word in figures for word in ("TTFT", "Tokens a second", "Cached"))
    aborted = server.core.engine.stats().finished_total.get("abort", 0)
    with server.slow():
        await page.keyboard.type("again")
        await page.keyboard.press("Enter")
        await expect(page.locator(".turn.assistant").nth(1).locator("a")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.locator(".turn.assistant").nth(1).locator(".figures")).to_contain_text("stopped by you")
        async with asyncio.timeout(60):
            while server.core.engine.stats().finished_total.get("abort", 0) == aborted:
                await asyncio.sleep(0.02)
    assert await page.evaluate("JSON.stringify(localStorage) + JSON.stringify(sessionStorage)") == "{}{}"
    assert await opened.violations() == []
    await answer.locator("a").click()
    await expect(page.locator(".lead")).to_contain_text("Took")


async def test_what_others_wrote_is_text(open_live: Open, flooded: tuple[Served, str]):
    server, _ = flooded
    body = {"set": {"max_overtakes": 7}, "reason": f"{HOSTILE} {BACKWARDS} {LONG}"}
    await server.core.http.post("/admin/policy", json=body, headers=admin(server))
    call = await server.core.http.post(
        "/v1/completions",
        json={"model": "toy/model", "prompt": "x", "max_tokens": 1},
        headers={**admin(server), "x-request-id": SCRIPT},
    )
    opened = await open_live(server, "#/controls", width=390)
    page = opened.page
    reason = page.locator("ul.set q").first
    await expect(reason).to_contain_text(SCRIPT)
    shown = await reason.inner_text()
    assert "\u202e" not in shown
    assert "\ufffdgpj.exe" in shown
    assert await opened.sticking_out() == []
    await page.evaluate(f"location.hash = '#/request/{call.headers['x-ekiden-request-id']}'")
    await settled(page)
    await expect(page.locator("dl.cards")).to_contain_text(SCRIPT)
    await page.evaluate(
        "location.hash = '#/request/' + encodeURIComponent('<img src=x onerror=hacked=1>' + 'w'.repeat(150))"
    )
    await expect(page.locator("h1")).to_contain_text("<img src=x")
    await expect(page.locator(".asking .bad")).to_be_visible()
    assert await opened.sticking_out() == []
    assert await page.evaluate("typeof hacked") == "undefined"
    assert await page.locator("main script, main img").count() == 0


@pytest.mark.parametrize(
    ("language", "scheme", "width"),
    [("en", "light", 1280), ("ja", "dark", 390), *([("ja", "light", 2560)] if "SOAK_FORMATS" in os.environ else [])],
)
async def test_anybody_can_use_every_view(
    open_live: Open, flooded: tuple[Served, str], language: str, scheme: str, width: int
):
    server, request_id = flooded
    opened = await open_live(server, "#/requests", language=language, scheme=scheme, width=width)
    for view in (*VIEWS, f"#/request/{request_id}"):
        await opened.page.evaluate(f"location.hash = '{view}'")
        await settled(opened.page)
        await opened.unfold()
        assert await opened.violations() == [], view
        assert await opened.sticking_out() == [], view
    assert await opened.page.locator("html").get_attribute("lang") == language
    assert opened.requests == []
