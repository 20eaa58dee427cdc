"""What the API makes of models whose files lack a key; how the files are read is tested in tests/unit/models."""

from dataclasses import replace

import pytest

from tests.api import real_core as real_core_module
from tests.api.conftest import Memory, assert_error, memory_client
from tests.api.real_core import real_core
from tests.api.scripted import BOS, END, START, TEMPLATE, ScriptedEngine, make_app, make_tokenizer, say
from tests.known_faults.conftest import CHAT, PATHS, TEXT, request_of, small, whole

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


@pytest.mark.parametrize("path", PATHS)
async def test_pb_43_without_an_end_token_answers_end_by_length_or_a_stop(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No token stands in for the missing one, and an answer that would have to end by it is refused."""
    endless = replace(make_tokenizer(), eos_token_ids=frozenset())
    monkeypatch.setattr(real_core_module, "make_tokenizer", lambda: endless)
    async with real_core(small()) as core:
        answer = await whole(core.http, path, max_tokens=5, logit_bias={str(END): 100})
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 5
        stopped = await whole(core.http, path, max_tokens=5, logit_bias={str(ord("q")): 100}, stop="qqq")
        assert stopped["choices"][0]["finish_reason"] == "stop"
        response = await core.http.post(path, json=request_of(path, guided_choice=["ab"]))
        assert "end token" in assert_error(response, 400, "guided_choice", "invalid_grammar")
        await core.clean()
