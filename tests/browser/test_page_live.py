"""The live view in a real browser, on a real server under load: it shows the engine at work, stops, goes back, fits
everywhere, can be read by anybody, and never shows old figures as new."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import Open, Opened
from tests.browser.serving import Served, served

pytestmark = pytest.mark.asyncio(loop_scope="session")
REFUSED = "Failed to load resource"
"""The browser says so of each answer 401 and 403: what the page does before it has a key."""


async def seen(opened: Opened) -> Page:
    """The page, once it shows figures."""
    await expect(opened.page.locator(".tile").first).to_be_visible()
    return opened.page


async def until_bars(page: Page) -> None:
    """Until the chart says, in either language, that it has some."""
    await expect(page.locator(".slots-keys")).to_have_attribute(
        "aria-label", re.compile(r"(: | )[1-9][\d,]* (bars|本の帯)")
    )


async def test_it_asks_for_a_key_and_keeps_it_nowhere(open_live: Open, server: Served):
    opened = await open_live(server, key="user")
    page = opened.page
    await expect(page.locator("dialog.key [role=alert]")).to_contain_text("scope")  # why this key does not do
    assert await page.locator(".tile").count() == 0
    await page.locator("dialog.key input[name=ekiden-key]").fill(server.keys["admin"])
    await page.keyboard.press("Enter")
    await seen(opened)
    kept = await page.evaluate(
        "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
    )
    assert server.keys["admin"] not in kept
    assert server.keys["user"] not in kept
    assert opened.requests == []
    assert [message for message in opened.messages if REFUSED not in message] == []
    await page.reload()
    await expect(page.locator("dialog.key")).to_be_visible()


async def test_the_engine_is_seen_at_work(open_live: Open, server: Served):
    async with server.load(["ann", "bob", *["flood"] * 10]):
        page = await seen(await open_live(server))
        await until_bars(page)
        await asyncio.to_thread(server.guard.look)
        await expect(page.locator(".tile").first).to_contain_text("4 / 4")
        await expect(page.locator(".tenants")).to_contain_text("flood")
        await expect(page.locator(".tenants")).to_contain_text("of the bound")
        ann = page.locator(".tenants tbody tr", has_text="ann")
        await expect(ann.locator("td").first).to_contain_text(re.compile(r"\d m?s"))  # its time to first token
        await expect(page.locator(".queue tbody tr").first).to_contain_text(re.compile("tenant's turn|free slot"))
        await expect(page.locator(".guard")).to_contain_text("watches only")
        assert await page.locator(".chart canvas").count() == 7
        await page.get_by_text("Slots now, as a table").click()
        await expect(page.locator(".chart-of-slots tbody tr")).to_have_count(4)
        await expect(page.locator(".connection")).to_contain_text("Live")


async def test_it_stops_goes_back_and_its_address_shows_the_same(open_live: Open, server: Served):
    async with server.load():
        page = await seen(await open_live(server))
        await until_bars(page)
        await page.locator(".slots-keys").focus()
        await page.keyboard.press("Space")
        await expect(page).to_have_url(re.compile(r"#/live\?run=[\w-]+&from=[\d.]+&to=[\d.]+$"))
        paused = page.url
        await page.keyboard.press("+")
        await expect(page).not_to_have_url(paused)
        when = await page.locator(".when b").inner_text()
        other = await seen_period(await open_live(server, page.url.partition("/#")[2].join(["#", ""])))
        assert await other.locator(".when b").inner_text() == when
        await until_bars(other)
        await page.keyboard.press("ArrowLeft")  # the newest bar, in words
        await expect(page.locator(".chosen")).to_contain_text(
            re.compile("tenant (ann|bob|flood), slot [0-3] · .*decode")
        )
        request = await page.locator(".chosen strong").inner_text()
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(re.compile(f"#/request/{request}"))


async def seen_period(opened: Opened) -> Page:
    await expect(opened.page.locator(".when b")).to_be_visible()
    return opened.page


async def test_a_period_is_drawn_and_a_bar_clicked(open_live: Open, server: Served):
    async with server.load():
        page = await seen(await open_live(server, width=1280))
        await until_bars(page)
        box: Any = await page.locator(".slots canvas").bounding_box()
        right = box["x"] + box["width"]
        await page.mouse.move(right - 500, box["y"] + 20)
        await page.mouse.down()
        await page.mouse.move(right - 4, box["y"] + 30, steps=3)
        await page.mouse.up()
        await expect(page).to_have_url(re.compile(r"from="))
        box = await page.locator(".slots canvas").bounding_box()
        for share in range(20, 2, -1):  # from the newest on, until there is a bar under the pointer
            await page.mouse.move(box["x"] + box["width"] * share / 21, box["y"] + box["height"] / 4)
            await page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
            if await page.locator(".told").count():
                break
        await page.mouse.down()
        await page.mouse.up()
        await expect(page).to_have_url(re.compile("#/request/"))


@pytest.mark.parametrize(("language", "scheme"), [("en", "light"), ("ja", "dark")])
async def test_anybody_can_read_it(open_live: Open, server: Served, language, scheme):
    async with server.load():
        opened = await open_live(server, language=language, scheme=scheme)
        page = await seen(opened)
        assert await page.locator("html").get_attribute("lang") == language
        await until_bars(page)
        await opened.unfold()
        assert await opened.violations() == []
        for view in ("guard", "controls"):
            await page.goto(f"{server.url}/#/{view}")
            await expect(page.locator("main h1")).to_be_visible()
            assert await opened.violations() == []


async def test_language_and_theme_are_switched_and_kept(open_live: Open, server: Served):
    page = (await open_live(server)).page
    light = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    await page.get_by_label("Language").select_option("ja")
    await expect(page.locator("html")).to_have_attribute("lang", "ja")
    await page.get_by_label("配色").select_option("dark")
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    await page.reload()
    await expect(page.locator("html")).to_have_attribute("lang", "ja")
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")


async def test_what_a_word_means_comes_up_on_focus_and_goes_with_escape(open_live: Open, server: Served):
    page = await seen(await open_live(server))
    word = page.locator(".tile .help button").nth(3)
    await word.focus()
    meaning = page.locator(".tile [role=tooltip]").nth(3)
    await expect(meaning).to_be_visible()
    assert "first token − arrival" in await meaning.inner_text()
    await page.keyboard.press("Escape")
    await expect(meaning).to_be_hidden()


async def test_4_and_64_slots_fit_a_phone_and_a_wall(open_live: Open, server: Served, tmp_path: Path):
    async with server.load():
        await fits(await open_live(server))
    async with served(tmp_path, slots=64, keys=False) as larger, larger.load(["a", "b"] * 32):
        await fits(await open_live(larger, key=None))


async def fits(opened: Opened) -> None:
    page = await seen(opened)
    await until_bars(page)
    for width, height in ((390, 844), (2560, 1440)):
        await page.set_viewport_size({"width": width, "height": height})
        await page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 100)))")
        assert await opened.sticking_out() == []
        chart: Any = await page.locator(".slots canvas").bounding_box()
        assert chart["height"] <= height  # all slots at one glance
        assert int(await page.locator(".slots canvas").get_attribute("data-row") or 0) >= 5  # each can be hit


async def test_old_figures_are_never_shown_as_new(open_live: Open, tmp_path: Path):
    async with served(tmp_path, keys=False) as server, server.load():
        page = (await open_live(server, key=None)).page
        await page.clock.install()
        await page.reload()
        await expect(page.locator(".connection")).to_contain_text("Live")
        await until_bars(page)
    await expect(page.locator(".connection")).to_contain_text("No connection")  # the server is gone
    await page.clock.fast_forward(4_000)
    await expect(page.locator(".connection")).to_contain_text(re.compile(r"Figures of \d+ s ago \(as of "))
    await expect(page.locator(".live")).to_have_class(re.compile(r"\bold\b"))
    await page.clock.set_system_time("2001-09-09")  # somebody puts the date back
    await page.clock.fast_forward(61_000)
    await expect(page.locator(".connection")).to_contain_text(re.compile(r"Figures of ([6-9]\d|\d{3,}) s ago"))


async def test_without_a_ledger_it_says_what_it_knows(open_live: Open, tmp_path: Path):
    async with served(tmp_path, keys=False, record=False) as server, server.load(["a"] * 8):
        page = await seen(await open_live(server, key=None))
        await expect(page.locator(".connection")).to_contain_text("No ledger")
        await expect(page.locator(".tile").first).to_contain_text("Running")
