"""curl, as the documentation has it."""

import asyncio
import json

from tests.api.conftest import events
from tests.api.scripted import MODEL

MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]


async def curl(*arguments: str, body: object = None) -> str:
    data = [] if body is None else ["-H", "content-type: application/json", "-d", json.dumps(body)]
    process = await asyncio.create_subprocess_exec("curl", "-sS", *arguments, *data, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def test_whole_and_streamed(url: str):
    body = {"model": MODEL, "messages": MESSAGES}
    whole = json.loads(await curl(f"{url}/chat/completions", body=body))
    chunks = events(await curl("-N", f"{url}/chat/completions", body={**body, "stream": True}))
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"] == "The sky scatters blue light."


async def test_without_the_content_type_curl_says_that_it_sends_a_form(url: str):
    answer = await curl(f"{url}/completions", "-d", json.dumps({"model": MODEL, "prompt": "x"}))
    assert "application/json" in json.loads(answer)["error"]["message"]


async def test_http_1_0_and_expect_continue(url: str):
    """Old proxies speak 1.0, and curl asks before it sends a large body."""
    body = {"model": MODEL, "prompt": "x" * 100}
    assert json.loads(await curl("--http1.0", f"{url}/completions", body=body))["object"] == "text_completion"
    answer = await curl("-H", "Expect: 100-continue", f"{url}/completions", body=body)
    assert json.loads(answer)["object"] == "text_completion"


async def test_one_connection_for_several_requests(url: str):
    health = url.removesuffix("/v1") + "/health"
    output = await curl("-w", "%{num_connects} %{http_code}\n", health, health, health)
    assert output.split("\n")[:3] == ["1 200", "0 200", "0 200"]
