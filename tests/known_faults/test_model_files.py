"""What the API makes of models whose files lack a key; how the files are read is tested in tests/unit/models."""

import pytest

from tests.api.conftest import Memory, assert_error, memory_client
from tests.api.scripted import BOS, START, TEMPLATE, ScriptedEngine, make_app, make_tokenizer, say
from tests.known_faults.conftest import CHAT, TEXT, request_of

PRINTS_BOS = "<|bos|>" + TEMPLATE


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("template", [PRINTS_BOS, TEMPLATE])
async def test_pb_43_there_is_one_bos_at_most(adds_bos: bool, template: str) -> None:
    engine = ScriptedEngine(make_tokenizer(adds_bos=adds_bos))
    async with memory_client(make_app(engine, template=template)) as http:
        chat = (await http.post(CHAT, json=request_of(CHAT))).json()
        text = (await http.post(TEXT, json=request_of(TEXT))).json()
        told = (await http.post("/tokenize", json={"messages": [{"role": "user", "content": "hi"}]})).json()["tokens"]
    of_chat, of_text = (list(request.prompt_token_ids) for request in engine.requests)
    assert of_chat.count(BOS) == (1 if adds_bos or template is PRINTS_BOS else 0)
    assert of_chat[of_chat.count(BOS)] == START
    assert of_text == [BOS] * adds_bos + say("hi")
    assert told == of_chat
    assert chat["usage"]["prompt_tokens"] == len(of_chat)
    assert text["usage"]["prompt_tokens"] == len(of_text)


async def test_pb_43_without_a_template_chat_is_refused_and_text_works() -> None:
    engine = ScriptedEngine(make_tokenizer())
    async with memory_client(make_app(engine, template=None)) as http:
        memory = Memory(engine, None, http)  # type: ignore[arg-type]  # the application is not asked
        message = assert_error(await memory.chat(), 400, "messages", "unsupported_parameter")
        assert "--chat-template" in message
        assert (await memory.complete()).status_code == 200
