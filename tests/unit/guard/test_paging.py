"""Pages arrive, once, or are given up loudly; and nothing secret is told."""

import json
import sys
from pathlib import Path

import httpx
import pytest

from ekiden.guard.paging import MAX_TRIES, MAX_WAITING, Page, PageFailed, Pager, Program, Webhook, told_of
from tests.unit.guard.desk import FakeChannel

SECRET = "https://hooks.example.org/services/T0/SECRET"


def page(key: str = "k1") -> Page:
    return Page(key=key, rule="slow", owner="on-call", evidence="itl_p99 is 0.5 s", action="page", at=0.0)


class Desk:
    def __init__(self, *channels: FakeChannel) -> None:
        self.now = 0.0
        self.told: list[str] = []
        self.pager = Pager(channels, lambda: self.now, lambda page, error: self.told.append(told_of(page, error)))

    def run(self, seconds: float) -> None:
        """Work as its thread does: after each pause that it asks for."""
        end = self.now + seconds
        while self.now < end:
            self.now += max(0.05, self.pager.work())


def test_a_page_goes_through_every_channel_once() -> None:
    one, other = FakeChannel("webhook"), FakeChannel("command")
    desk = Desk(one, other)
    desk.pager.put(page())
    desk.run(10)
    assert [len(one.taken), len(other.taken)] == [1, 1]
    assert desk.told == ["page k1 through the webhook was taken", "page k1 through the command was taken"]
    assert desk.pager.waiting() == []


def test_a_page_that_fails_is_tried_again_with_growing_pauses_and_the_same_key() -> None:
    channel = FakeChannel(failing=5)
    desk = Desk(channel)
    desk.pager.put(page())
    pauses = [desk.pager.work()]
    while desk.pager.waiting():
        desk.now += pauses[-1]
        pauses.append(desk.pager.work())
    assert pauses[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert [each.key for each in channel.taken] == ["k1"]
    assert (desk.pager.sent_total, desk.pager.tries_failed_total, desk.pager.given_up_total) == (1, 5, 0)


def test_a_channel_that_fails_holds_up_no_other() -> None:
    broken, sound = FakeChannel("webhook", failing=10**9), FakeChannel("command")
    desk = Desk(broken, sound)
    for index in range(3):
        desk.pager.put(page(f"k{index}"))
    desk.run(5)
    assert len(sound.taken) == 3
    desk.run(3600 * 3)
    assert broken.tries == 3 * MAX_TRIES
    assert sum("given up: the webhook answered 500" in told for told in desk.told) == 3
    assert desk.pager.waiting() == []


def test_pages_do_not_pile_up_without_end() -> None:
    desk = Desk(FakeChannel(failing=10**9))
    for index in range(MAX_WAITING + 5):
        desk.pager.put(page(f"k{index}"))
    assert len(desk.pager.waiting()) == MAX_WAITING
    assert [told.split()[1] for told in desk.told] == [f"k{index}" for index in range(5)]


def test_pages_of_a_channel_that_there_is_no_longer_are_left_out() -> None:
    desk = Desk(FakeChannel("webhook"))
    desk.pager.put(page())
    other = Desk(FakeChannel("command"))
    other.pager.take_up(desk.pager.waiting())
    assert other.pager.waiting() == []


def test_the_webhook_gets_json_with_a_key_for_each_page() -> None:
    seen: list[httpx.Request] = []

    def receive(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(204)

    Webhook(SECRET, "token", httpx.MockTransport(receive)).send(page())
    (request,) = seen
    assert (request.method, str(request.url)) == ("POST", SECRET)
    assert request.headers["idempotency-key"] == "k1"
    assert request.headers["authorization"] == "Bearer token"
    body = json.loads(request.content)
    assert (body["rule"], body["owner"], body["evidence"]) == ("slow", "on-call", "itl_p99 is 0.5 s")


@pytest.mark.parametrize("status", [301, 400, 429, 500])
def test_what_a_webhook_refuses_is_a_failure_without_its_address(status: int) -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(status))
    with pytest.raises(PageFailed, match=f"answered {status}") as caught:
        Webhook(SECRET, "token", transport).send(page())
    assert "SECRET" not in str(caught.value)


def test_a_webhook_that_nobody_serves_is_a_failure_without_its_address() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(f"cannot reach {request.url}")

    with pytest.raises(PageFailed, match="ConnectError") as caught:
        Webhook(SECRET, None, httpx.MockTransport(refuse)).send(page())
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_program_gets_the_page_on_its_standard_input_and_no_shell_reads_its_arguments(tmp_path: Path) -> None:
    out = tmp_path / "$(touch pwned); page"
    program = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
    Program([sys.executable, "-c", program, str(out)]).send(page())
    assert json.loads(out.read_text())["key"] == "k1"


def test_a_program_that_fails_or_is_not_there_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(PageFailed, match="status 3"):
        Program([sys.executable, "-c", "import sys; sys.exit(3)"]).send(page())
    with pytest.raises(PageFailed, match="cannot be run: No such file"):
        Program([str(tmp_path / "none")]).send(page())
