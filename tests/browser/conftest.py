"""One real browser for all tests of pages: Chromium without a window, driven by Playwright.

The Makefile unpacks it (``make setup-browser``) with libraries and fonts of its own, so that nothing has to be
installed by hand and pages look the same everywhere. All of it runs in the event loop of the session: without one,
Playwright would leave a loop running beneath the other tests.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from tests.browser.serving import Served, served

PROGRAM = Path(__file__).parent / "program"
UNPACKED = PROGRAM / "node_modules" / ".browser"
AXE = PROGRAM / "node_modules" / "axe-core" / "axe.min.js"
expect.set_options(timeout=60_000)  # on a busy machine
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


@dataclass(slots=True)
class Opened:
    """A page, and what went on behind it."""

    page: Page
    requests: list[str] = field(default_factory=list)
    """Addresses that were asked for, the page's own and ``data:`` apart. None of them got an answer."""
    messages: list[str] = field(default_factory=list)
    """What the page wrote to the console, and its errors."""

    async def violations(self) -> list[str]:
        """What axe-core finds wrong with the page's accessibility, one line each."""
        await self.page.evaluate(AXE.read_text(encoding="utf-8") + ";undefined")
        run = (
            "rules => axe.run(document, {runOnly: rules, resultTypes: ['violations']}).then(found => found.violations)"
        )
        found: list[dict[str, Any]] = await self.page.evaluate(run, list(RULES))
        return [f"{each['id']}: {each['help']}: {node['html'][:200]}" for each in found for node in each["nodes"]]

    async def sticking_out(self) -> list[str]:
        """Elements that reach beyond the right edge of the window, those that scroll by themselves apart."""
        found: list[str] = await self.page.evaluate(
            """() => [...document.querySelectorAll('body *')]
                 .filter(each => !each.closest('.scroll') && each.getBoundingClientRect().right > innerWidth + 1)
                 .map(each => each.outerHTML.slice(0, 160))"""
        )
        if await self.page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.append("the page scrolls sideways")
        return found

    async def unfold(self) -> None:
        """Opens all that is closed."""
        await self.page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")


Open = Callable[..., Awaitable[Opened]]


class Opener:
    """Opens pages in contexts of their own, so that none knows what another was told; all end together."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[Any] = []

    async def open(
        self,
        address: str,
        own: Callable[[str], bool],
        *,
        width: int = 1440,
        height: int = 900,
        scheme: Any = "light",
        media: Any = "screen",
        language: str = "en",
        motion: Any = "reduce",
    ) -> Opened:
        """``own`` says which addresses are answered."""
        context = await self._browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, locale=language, reduced_motion=motion
        )
        self._contexts.append(context)
        context.set_default_timeout(60_000)
        found = Opened(await context.new_page())

        async def refuse(route: Any) -> None:
            found.requests.append(route.request.url)
            await route.abort()

        await context.route(lambda url: not url.startswith("data:") and not own(url), refuse)
        found.page.on("console", lambda message: found.messages.append(message.text))
        found.page.on("pageerror", lambda error: found.messages.append(str(error)))
        await found.page.emulate_media(media=media)
        await found.page.goto(address)
        return found

    async def live(self, server: Served, address: str = "", *, key: str | None = "admin", **options: Any) -> Opened:
        """The page of a running server. With ``key`` the dialog is filled in with the key of that name."""
        found = await self.open(f"{server.url}/{address}", lambda url: url.startswith(f"{server.url}/"), **options)
        if key is not None:
            await found.page.locator("dialog.key input[name=ekiden-key]").fill(server.keys[key])
            await found.page.locator("dialog.key button[type=submit]").click()
        return found

    async def close(self) -> None:
        for context in self._contexts:
            await context.close()


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """The unpacked browser, running."""
    libraries = [str(UNPACKED / "al2023" / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    environment: dict[str, str | float | bool] = {
        **os.environ,
        "FONTCONFIG_FILE": str(UNPACKED / "fonts.conf"),
        "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
    }
    async with async_playwright() as playwright:
        # Containers run tests as root, whom Chromium's sandbox refuses; only pages of our own are shown.
        launched = await playwright.chromium.launch(
            executable_path=UNPACKED / "chromium", env=environment, args=["--no-sandbox"]
        )
        yield launched
        await launched.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    if not (UNPACKED / "chromium").exists():
        pytest.fail("there is no browser to test pages with: run `make setup-browser`")
    async with chromium() as launched:
        yield launched


@pytest_asyncio.fixture(loop_scope="session")
async def open_page(browser: Browser) -> AsyncIterator[Open]:
    """``await open_page(file, width=..., height=..., scheme="dark", media="print")``; closed after the test."""
    opener = Opener(browser)

    async def opened(file: Path, **options: Any) -> Opened:
        address = file.as_uri()
        return await opener.open(address, lambda url: url == address, **options)

    yield opened
    await opener.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """One server with keys and a guard for all tests of its page; ``serving.served`` makes others."""
    async with served(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def open_live(browser: Browser) -> AsyncIterator[Open]:
    """``await open_live(server, "#/live", width=..., language="ja", key="admin")``: the page of a running server.

    With ``key`` the dialog is filled in with the key of that name first. What is asked of another host gets no answer
    and is in ``requests``.
    """
    opener = Opener(browser)

    yield opener.live
    await opener.close()
