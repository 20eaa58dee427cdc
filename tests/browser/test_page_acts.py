"""The page acts in the name of the key, asks once more where nothing brings it back, and the ledger records it."""

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from ekiden.evidence.reader import LedgerReader
from tests.browser.conftest import Open
from tests.browser.serving import Served, served
from tests.unit.release.world import at_its_horizon

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def act(page: Page, button: str, *, final: bool = False, **fields: str) -> str:
    """Presses a button, fills in what its dialog asks, and returns what came of it."""
    await page.get_by_role("button", name=button, exact=True).first.click()
    dialog = page.locator("dialog.act")
    await expect(dialog).to_contain_text("You act as admin.")
    for name, value in fields.items():
        field = dialog.locator(f"[name={name}]")
        is_choice = await field.evaluate("each => each.localName === 'select'")
        await (field.select_option(value) if is_choice else field.fill(value))
    go = dialog.locator("button[type=submit]")
    await go.click()
    if final:
        await expect(dialog).to_contain_text("cannot be undone")
        await go.click()
    done = dialog.locator("[role=status] .good")
    await expect(done).to_be_visible()
    words = await done.inner_text()
    await dialog.get_by_role("button", name="Close").click()
    return words


async def recorded(server: Served, name: str) -> list[tuple[str, str, str, str]]:
    """What the ledger has of a control: value, who set it, and why."""
    path = server.core.engine.ledger_path
    assert path is not None

    def read() -> list[tuple[str, str, str, str]]:
        with LedgerReader(path) as reader:
            return [(row.value, row.set_by, row.who, row.why) for row in reader.controls_named(name)]

    async with asyncio.timeout(60):
        while len(found := await asyncio.to_thread(read)) < 2:
            await asyncio.sleep(0.05)
    return found


async def test_a_request_is_paused_resumed_and_aborted(open_live: Open, server: Served):
    with server.slow():
        call = server.send("ann", tokens=900)
        request_id = await in_flight(server)
        opened = await open_live(server, f"#/request/{request_id}")
        page = opened.page
        assert await act(page, "Pause") == "It is paused."
        await expect(page.get_by_role("button", name="Resume")).to_be_visible()
        assert await act(page, "Resume") == "It goes on."
        assert await act(page, "Abort", final=True, reason="it blocks the others") == "It is aborted."
    told = (await call).json()["error"]["message"]
    assert told == "Ended by admin: it blocks the others."
    await expect(page.locator(".lead")).to_contain_text("ended by admin: it blocks the others")
    assert [row[:3] for row in await recorded(server, f"pause {request_id}")] == [
        ("on", "person", "admin"), ("off", "person", "admin"),
    ]  # fmt: skip


async def in_flight(server: Served) -> str:
    calls = server.core.app.state.doors.generation.flight.calls
    async with asyncio.timeout(60):
        while not calls:
            await asyncio.sleep(0.01)
    return str(next(iter(calls)))


async def test_a_control_is_changed_with_a_reason_and_an_end(open_live: Open, server: Served):
    page = (await open_live(server, "#/controls")).page
    told = await act(page, "Change: max_num_seqs", value="3", expires="600", reason="<b>less</b> memory")
    assert told == "max_num_seqs is 3 now."
    assert (await recorded(server, "max_num_seqs"))[-1] == ("3", "person", "admin", "<b>less</b> memory")
    await expect(page.locator("ul.set")).to_contain_text("<b>less</b> memory")
    assert await page.locator("ul.set b", has_text="less").count() == 0
    # What cannot be is said by the server, in the dialog, and nothing is changed.
    await page.get_by_role("button", name="Change: max_num_seqs").first.click()
    dialog = page.locator("dialog.act")
    await dialog.locator("[name=value]").fill("none")
    await dialog.locator("[name=reason]").fill("x")
    await dialog.locator("button[type=submit]").click()
    await expect(dialog.locator(".bad")).to_contain_text("max_num_seqs is 'none'")
    await page.keyboard.press("Escape")
    assert server.core.engine.controls().controls.max_num_seqs == 3
    assert await act(page, "Change: max_num_seqs", value="4", reason="done") == "max_num_seqs is 4 now."


async def test_a_change_waits_for_a_second_person(open_live: Open, server: Served):
    page = (await open_live(server, "#/controls")).page
    server.guard.two_person = True
    try:
        told = await act(page, "Change: max_num_seqs", value="2", reason="less memory")
        (waiting,) = [each for each in server.guard.kept.approvals.all if each.open and each.kind == "policy"]
        assert told == f"Approval {waiting.id} now waits for a second person."
        assert server.core.engine.controls().controls.max_num_seqs != 2
        await page.goto(page.url.replace("#/controls", "#/guard"))
        await expect(page.get_by_text("max_num_seqs: 2", exact=True)).to_be_visible()
    finally:
        server.guard.two_person = False


async def test_the_door_is_closed_and_opened(open_live: Open, server: Served):
    page = (await open_live(server, "#/controls")).page
    assert (await act(page, "Close to new requests", reason="maintenance")).startswith(
        "The server takes no new requests"
    )
    assert (await server.send("ann", tokens=2)).status_code == 503
    await expect(page.get_by_role("button", name="Open again")).to_be_visible()
    assert await act(page, "Open again") == "The server takes new requests."
    assert (await server.send("ann", tokens=2)).status_code == 200
    assert ("on", "person", "admin", "maintenance") in await recorded(server, "draining")


async def test_the_guard_is_paused_and_a_rule_overridden(open_live: Open, server: Served):
    page = (await open_live(server, "#/guard")).page
    assert await act(page, "Pause the guard", expires="600", reason="a load test") == "Done."
    paused = server.guard.kept.paused
    assert paused is not None
    assert (paused.who, paused.why) == ("admin", "a load test")
    await expect(page.get_by_role("button", name="Let the guard work again")).to_be_visible()
    await act(page, "Let the guard work again", reason="done")
    assert server.guard.kept.paused is None
    await act(page, "Override", expires="60", reason="known")
    assert [each.who for each in server.guard.kept.decisions if each.what.startswith("overridden")] == ["admin"]
    await expect(page.get_by_role("button", name="End the override")).to_be_visible()


async def test_a_release_is_approved(open_live: Open, tmp_path: Path):
    at_its_horizon(tmp_path / "releases")
    async with served(tmp_path, releases=tmp_path / "releases") as server:
        page = (await open_live(server, "#/releases")).page
        await expect(page.locator("h2 .chip")).to_have_text("paused: a person's turn")
        assert await act(page, "Approve the release", reason="looks right") == "1 of 1 have approved."
        assert await act(page, "Promote", reason="approved") == "healthy: promoted"
        assert server.core.engine.controls().controls.max_num_seqs == 16
        assert await act(page, "Abort the release", final=True, reason="slow nights") == "degraded: rolled back"


async def test_a_key_without_the_scope_sees_nothing_to_press(open_live: Open, server: Served):
    opened = await open_live(server, "#/controls", key="user")
    await expect(opened.page.locator("dialog.key .bad")).to_contain_text("scope 'admin'")
    assert await opened.page.get_by_role("button", name="Change").count() == 0


async def test_another_site_cannot_act(browser, server: Served):
    """Neither with a script nor with a form, whether or not somebody has the page open with a key."""
    context = await browser.new_context()
    page = await context.new_page()
    await page.route(
        "http://evil.example/**", lambda route: route.fulfill(body="<form></form>", content_type="text/html")
    )
    await page.goto("http://evil.example/")
    before = server.core.engine.controls().controls.epoch
    for kind in ("text/plain", "application/json"):
        for path in ("admin/drain", "admin/policy", "v1/completions", "dashboard/data/config"):
            await page.evaluate(
                """([url, kind]) => fetch(url, {
                     method: 'POST', mode: kind === 'text/plain' ? 'no-cors' : 'cors', credentials: 'include',
                     headers: {'content-type': kind}, body: '{}'}).catch(() => null)""",
                [f"{server.url}/{path}", kind],
            )
    assert server.core.engine.controls().controls.epoch == before
    headers = {"authorization": f"Bearer {server.keys['admin']}", "origin": "http://evil.example"}
    told = await server.core.http.post("/admin/drain", json={}, headers=headers)
    assert (told.status_code, told.json()["error"]["code"]) == (403, "cross_site")
    await context.close()
