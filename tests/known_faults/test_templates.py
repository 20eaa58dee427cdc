"""A template is somebody's program: what it computes is bounded and holds up nobody, and its refusals are clear."""

import asyncio
import json
import os
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from ekiden.api.tools import plan
from ekiden.models import template_worker
from ekiden.models.chat_template import ChatTemplate, ChatTemplateError
from ekiden.models.files import read_json
from ekiden.sampling.grammar_limits import check_schema
from tests.api.conftest import Memory, assert_error, memory_client
from tests.api.scripted import ScriptedEngine, make_app, make_tokenizer

USER = [{"role": "user", "content": "hi"}]
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
HEAVY = {
    "repeated text": "{{ 'x' * 10**10 }}",
    "centred text": "{{ messages[0].content|center(10**10) }}",
    "formatted text": "{{ '%10000000000d' % 1 }}",
    "doubled text": "{% set n = namespace(v='xx') %}{% for i in range(60) %}{% set n.v = n.v ~ n.v %}{% endfor %}",
    "repeated list": "{{ ([0] * 10**10)|length }}",
    "indented JSON": "{{ messages|tojson(indent=10**10) }}",
    "padded date": "{{ strftime_now('%Y').ljust(10**10) }}",
}
SLOW = {"nested loops": ENDLESS, "powers": "{{ 9 ** (9 ** 9) }}"}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_worker, "CPU_SECONDS", 0.1)


def over(template: str) -> Memory:
    engine = ScriptedEngine(make_tokenizer())
    app = make_app(engine, template=template)
    return Memory(engine, app, memory_client(app))


@pytest.mark.parametrize("source", HEAVY.values(), ids=HEAVY)
def test_own_30_memory_is_bounded(source: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"memory|Overflow|too large|cannot fit"):
        ChatTemplate(source).render(USER)
    assert ChatTemplate("{{ messages[0].content }}").render(USER) == "hi"


@pytest.mark.parametrize("source", SLOW.values(), ids=SLOW)
def test_own_30_time_is_bounded(source: str, short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):  # the process that replaced the ended one is bounded too
        with pytest.raises(ChatTemplateError, match="more than 0.1 s of processor time"):
            ChatTemplate(source).render(USER)
    monkeypatch.undo()  # what is short for those is not long for this one on a slow machine
    assert ChatTemplate("{{ messages[0].content }}").render(USER) == "hi"


def test_own_30_the_text_is_bounded() -> None:
    with pytest.raises(ChatTemplateError, match="more than 67,108,864 characters"):
        ChatTemplate("{% for i in range(70) %}{{ 'x' * 10**6 }}{% endfor %}").render(USER)


def test_own_30_a_worker_that_does_not_answer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_worker, "WALL_SECONDS", 0.0)
    with pytest.raises(ChatTemplateError, match="more than 0 s"):
        ChatTemplate(ENDLESS).render(USER)
    monkeypatch.undo()
    assert ChatTemplate("{{ messages[0].content }}").render(USER) == "hi"


def test_own_30_a_worker_is_given_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKIDEN_API_KEY", "a secret")
    template_worker.end_workers()
    before = set(os.listdir("/proc"))
    assert ChatTemplate("{{ messages[0].content }}").render(USER) == "hi"
    own = [each for each in set(os.listdir("/proc")) - before if each.isdecimal() and is_worker(each)]
    assert own
    assert all(b"a secret" not in Path("/proc", each, "environ").read_bytes() for each in own)


def is_worker(process: str) -> bool:
    """Whether a process renders templates for this one."""
    try:
        parent = Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[1]
        return int(parent) == os.getpid() and b"template_worker" in Path("/proc", process, "cmdline").read_bytes()
    except OSError:
        return False  # it has ended


@pytest.mark.parametrize("source", ["{{ 'x' * 10**8 }}", "{{ 'x'|center(10**8) }}", "{{ 'x'|center(10**8)|length }}"])
def test_own_30_reading_a_template_computes_nothing_of_it(source: str) -> None:
    tracemalloc.start()
    try:
        ChatTemplate(source)
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


async def test_own_30_others_are_served_meanwhile(short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody renders before others have been served."""
    memory, served, ask = over(ENDLESS), threading.Event(), template_worker._Worker.ask

    def ask_later(self: template_worker._Worker, question: bytes, **how: bool) -> bytes:
        assert served.wait(60)
        return ask(self, question, **how)

    monkeypatch.setattr(template_worker._Worker, "ask", ask_later)
    async with memory.http:
        chats = [asyncio.create_task(memory.chat()) for _ in range(3)]
        for _ in range(5):
            assert (await memory.http.get("/health")).status_code == 200
            assert (await memory.complete()).status_code == 200
        served.set()
        for chat in chats:
            message = assert_error(await chat, 400, "messages")
            assert message.count("chat template") == 1
    assert not memory.engine.aborted


async def test_own_30_the_schemas_of_tools_are_checked_off_the_event_loop(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def check(schema: Any) -> None:
        threads.append(threading.current_thread())
        check_schema(schema)

    monkeypatch.setattr(plan, "check_schema", check)
    tools = [{"type": "function", "function": {"name": f"f{n}", "parameters": {"type": "object"}}} for n in range(3)]
    await memory.chat(tools=tools)
    assert len(threads) == 3
    assert threading.main_thread() not in threads


@pytest.mark.parametrize(("path", "param"), [("/v1/chat/completions", "messages"), ("/v1/responses", "input")])
async def test_own_29_a_refusal_of_the_template_is_one_clear_sentence(path: str, param: str) -> None:
    memory = over("{{ raise_exception('Roles must alternate') }}")
    async with memory.http:
        response = await memory.http.post(path, json={"model": "toy/model", param: USER})
    told = assert_error(response, 400, param)
    assert told == f"{param} cannot be used: the chat template refuses the conversation: Roles must alternate."


async def test_own_31_half_a_character_in_a_template_is_replaced() -> None:
    memory = over(r"{{ '<\ud800>' }}{{ '\ud83d' ~ '\ude00' }}")
    async with memory.http:
        response = await memory.http.post("/tokenize", json={"messages": USER})
        tokens = response.json()["tokens"]
        assert memory.engine.tokenizer.decode(tokens) == "<\ufffd>\N{GRINNING FACE}"
        assert (await memory.chat()).status_code == 200


async def test_own_31_half_a_character_in_what_a_template_says_is_replaced() -> None:
    memory = over(r"{{ raise_exception('bad \udfff role') }}")
    async with memory.http:
        assert "bad \ufffd role" in assert_error(await memory.chat(), 400, "messages")


@pytest.mark.parametrize("value", ["\ud800", ["a\udfff"], {"x\udbff": {"content": "y\udc00"}}])
def test_own_31_half_a_character_in_a_model_file_is_replaced(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"bos_token": value, "whole": "\N{GRINNING FACE}"}), encoding="utf-8")
    read = json.dumps(read_json(path), ensure_ascii=False)
    assert "\ufffd" in read.encode().decode()
    assert "\N{GRINNING FACE}" in read
