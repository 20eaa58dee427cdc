"""The pictures of the page in ``docs/pictures``: `make pictures`.

A server with the fake model is given a planted flood: one tenant sends far more than the others, first to a server that
is fair between tenants, then to one that serves in order of arrival. What the model says is written here.
"""

import argparse
import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path

from playwright.async_api import Page

from tests.browser.conftest import Opener, chromium
from tests.browser.serving import Served, served

SAYS = (
    "An ekiden is a relay race. The next runner starts the moment the last one hands over the sash. So it is with the "
    "slots here: one that a request leaves is taken by the next one in the same step."
)
FLOOD = (*("flood",) * 14, "ann", "bob", "carol")
PROMPT = "Tell me about relay races, please. " * 4


async def settled(page: Page) -> None:
    """What was asked for is there, as far as it comes within a time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(30):
            while await page.locator(".asking [role=status]").count():
                await asyncio.sleep(0.2)
    await asyncio.sleep(1.5)


async def main(folder: Path, seconds: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        here = Path(made)
        for name in ("fair", "fcfs"):
            (here / name).mkdir()
        load = {"tokens": 90, "prompt": PROMPT}
        async with (
            served(here / "fair", slots=8, step_seconds=0.02, order="fair", ledger=here / "ledger") as server,
            server.load(FLOOD, **load),
        ):
            await asyncio.sleep(seconds)
        async with (
            chromium() as browser,
            served(
                here / "fcfs", slots=8, step_seconds=0.02, order="fcfs", says=SAYS, ledger=here / "ledger"
            ) as server,
        ):
            opener = Opener(browser)
            async with server.load(FLOOD, **load):
                await asyncio.sleep(seconds)
                slow = (await server.send("ann", tokens=40, prompt=PROMPT)).headers["x-ekiden-request-id"]
                await under_load(opener, server, folder, slow)
            await at_rest(opener, server, folder, slow)
            await opener.close()
    for path in sorted(folder.glob("*.png")):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


async def under_load(opener: Opener, server: Served, folder: Path, slow: str) -> None:
    wide = (await opener.live(server, "#/live", width=1280, height=900)).page
    await asyncio.sleep(12)
    await wide.screenshot(path=folder / "live.png")
    phone = (await opener.live(server, "#/live", width=390, height=844, scheme="dark", language="ja")).page
    await asyncio.sleep(8)
    await phone.screenshot(path=folder / "live-phone-ja-dark.png")
    await wide.evaluate("location.hash = '#/requests?by=latest&tenant=ann'")
    await settled(wide)
    await wide.screenshot(path=folder / "requests.png")
    await wide.evaluate("location.hash = '#/controls'")
    await settled(wide)
    await wide.get_by_role("button", name="Change: scheduling_policy").first.click()
    await wide.locator("dialog.act [name=value]").select_option("fair")
    await wide.locator("dialog.act [name=reason]").fill("flood takes the slots of the others")
    await asyncio.sleep(1)
    await wide.screenshot(path=folder / "act.png")


async def at_rest(opener: Opener, server: Served, folder: Path, slow: str) -> None:
    page = (await opener.live(server, f"#/request/{slow}", width=1280, height=1250)).page
    await settled(page)
    await page.locator(".waterfall summary", has_text="waiting for a free slot").first.click()
    await page.screenshot(path=folder / "request.png")
    with suppress(Exception):  # the picture is taken without an answer, too
        await page.get_by_role("button", name="Simulate fair").click(timeout=2_000)
        await page.locator("tr.own").first.wait_for(timeout=40_000)
    await page.locator("section", has=page.locator("form.row")).last.screenshot(path=folder / "what-if.png")
    other = (await opener.live(server, "#/compare", width=1280, height=1100)).page
    await settled(other)
    await other.get_by_role("button", name="Compare", exact=True).click()
    await settled(other)
    await other.screenshot(path=folder / "compare.png")
    talk = (await opener.live(server, "#/try", width=1280, height=800, scheme="dark")).page
    await talk.locator(".say textarea").fill("What is an ekiden?")
    await talk.locator(".say textarea").press("Enter")
    await talk.locator(".turn.assistant a").wait_for(timeout=30_000)
    await asyncio.sleep(8)
    await talk.screenshot(path=folder / "try.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/pictures"))
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each run is loaded first")
    given = parser.parse_args()
    asyncio.run(main(given.folder, given.seconds))
