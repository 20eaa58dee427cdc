"""Copies of the live requests for another server: each once, bounded, and what fails is counted."""

import json
import threading

import httpx
import pytest

from ekiden.release.mirror import Mirror
from tests.unit.release.world import World


def mirror(world: World, handler, **options) -> Mirror:
    client = httpx.Client(transport=httpx.MockTransport(handler))
    return Mirror(world.ledger, client, "http://other/v1", "small", **options)


@pytest.mark.parametrize("kept", [True, False])
def test_each_request_is_copied_once(tmp_path, kept):
    world, got = World(tmp_path, keep_prompts=kept), []

    def handler(request):
        got.append(json.loads(request.content))
        return httpx.Response(200 if len(got) != 3 else 503)

    copies = mirror(world, handler)
    world.advance(5.0)
    copies.look()  # from here on
    with world.ledger() as reader:
        before = reader.requests_newest()
    world.advance(5.0)
    copies.look()
    copies.look()
    copies.close()
    with world.ledger() as reader:
        came = reader.requests_newest() - before
    report = copies.report()
    assert came > 5
    if kept:
        assert (report.sent, report.answered, report.failed) == (came, came - 1, 1)
        assert {(body["model"], body["temperature"], len(body["prompt"])) for body in got} == {("small", 0.0, 40)}
        assert all(2 <= body["max_tokens"] <= 6 for body in got)
    else:
        assert (report.sent, report.without_prompt, got) == (0, came, [])
    copies._client.close()
    world.close()


def test_a_slow_server_gets_no_more_than_it_has_room_for(tmp_path):
    world, go = World(tmp_path, keep_prompts=True), threading.Event()

    def handler(request):
        go.wait(60)
        raise httpx.ConnectError("gone")

    copies = mirror(world, handler, most=2)
    world.advance(2.0)
    copies.look()
    world.advance(6.0)
    copies.look()
    go.set()
    copies.close()
    report = copies.report()
    assert (report.sent, report.failed) == (2, 2)
    assert report.left_out > 3
    copies._client.close()
    world.close()
