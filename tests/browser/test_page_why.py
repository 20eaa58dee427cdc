"""The page explains: a request is followed from the queue to its end, found again, and compared; names stay text."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.browser.conftest import Open, Opened
from tests.browser.serving import Served, served

pytestmark = pytest.mark.asyncio(loop_scope="session")
HOSTILE = "<script>hacked=1</script><img src=x onerror=hacked=1>"
RIGHT_TO_LEFT = "\u202egpj.exe\u2066"
LONG = "w" * 300


async def followed(opened: Opened, served: Served, tenant: str, **fields: Any) -> asyncio.Task[Any]:
    """Sends a request and opens it from the list of the newest while it waits or runs."""
    call = served.send(tenant, **fields)
    await opened.page.evaluate(f"location.hash = '#/requests?by=latest&tenant={tenant}'")
    link = opened.page.locator("table a.id").first
    async with asyncio.timeout(10):
        while not await link.count():
            await opened.page.get_by_role("button", name="Ask again", exact=True).first.click()
            await asyncio.sleep(0.1)
    await link.click()
    return call


async def test_a_request_is_followed_from_the_queue_to_its_end(open_live: Open, server: Served):
    opened = await open_live(server, "#/requests")
    page = opened.page
    async with server.load(["flood"] * 6, tokens=200):
        call = await followed(opened, server, "ann", tokens=40)
        await expect(page.locator("h1")).to_contain_text("Request")
        await expect(page.get_by_role("button", name="Abort")).to_be_visible()
        request_id = (await call).headers["x-ekiden-request-id"]
        await expect(page.locator("h1 .id")).to_have_text(request_id)
        await expect(page.locator(".lead")).to_contain_text("Took", timeout=10_000)
    told = (await server.core.http.get(f"/v1/explain/{request_id}", headers=admin(server))).json()
    assert await page.locator(".lead").inner_text() == told["headline"]
    rows = page.locator(".waterfall tbody tr")
    assert await rows.count() == len(told["causes"])
    assert await page.locator(".waterfall tfoot td").last.inner_text() == "100%"
    await rows.filter(has_text="its tenant's turn").locator("summary").click()
    await expect(rows.locator("dl.facts").first).to_contain_text("refill")
    await expect(page.locator(".stays .own").first).to_be_attached()
    await expect(page.locator(".stays a").first).to_be_attached()
    assert await page.get_by_role("button", name="Abort").count() == 0
    assert opened.messages == []


def admin(server: Served) -> dict[str, str]:
    return {"authorization": f"Bearer {server.keys['admin']}"}
