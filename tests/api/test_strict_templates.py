"""Conversations of agents on templates that are strict about roles and their order: nothing is refused or lost."""

from typing import Any

import pytest

from tests.api.conftest import Memory, assert_error, memory_client
from tests.api.scripted import MODEL, ScriptedEngine, make_app, make_tokenizer

_TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}!{{ c.function.name }}{% endfor %}{% endfor %}"  # noqa: E501
FIRST_SYSTEM = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}"  # noqa: E501
ALTERNATING = "{% set ns = namespace(i=0) %}{% for m in messages if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}{% if (m.role == 'user') != (ns.i % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{% set ns.i = ns.i + 1 %}{% endfor %}"  # noqa: E501
NO_SYSTEM = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% endfor %}"  # noqa: E501
QWEN = FIRST_SYSTEM + _TURNS
MISTRAL = FIRST_SYSTEM + ALTERNATING + _TURNS
GEMMA = NO_SYSTEM + ALTERNATING + _TURNS

CODEX: Any = [
    {"role": "developer", "content": "Rules."},
    {"role": "developer", "content": "More."},
    {"role": "user", "content": "The folder is /project."},
    {"role": "user", "content": "Hi."},
]
REMINDER = {"type": "text", "text": "Stay."}
CLAUDE_CODE: Any = [
    {"role": "user", "content": "Hi."},
    {"role": "system", "content": "No agents."},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "get", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "-5"}, REMINDER]},
]


async def prompt(template: str, path: str, body: dict[str, Any]) -> str:
    engine = ScriptedEngine(make_tokenizer())
    async with memory_client(make_app(engine, template=template)) as http:
        response = await http.post(path, json={"model": MODEL, **body})
    assert response.status_code == 200, response.text
    return engine.tokenizer.decode(engine.requests[-1].prompt_token_ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("template", "written"),
    [
        (_TURNS, "[system]Rules.[system]More.[user]The folder is /project.[user]Hi."),
        (QWEN, "[system]Rules.\n\nMore.[user]The folder is /project.[user]Hi."),
        (MISTRAL, "[system]Rules.\n\nMore.[user]The folder is /project.\n\nHi."),
        (GEMMA, "[user]Rules.\n\nMore.\n\nThe folder is /project.\n\nHi."),
    ],
    ids=["any order", "one system", "alternating", "no system"],
)
async def test_several_messages_of_one_role_in_a_row(template: str, written: str) -> None:
    assert await prompt(template, "/v1/responses", {"input": CODEX}) == written
    assert await prompt(template, "/v1/chat/completions", {"messages": CODEX}) == written


@pytest.mark.parametrize(
    ("template", "written"),
    [
        (_TURNS, "[system]Rules.[user]Hi.[system]No agents.[assistant]!get[tool]-5[user]Stay."),
        (QWEN, "[system]Rules.\n\nNo agents.[user]Hi.[assistant]!get[tool]-5[user]Stay."),
        (MISTRAL, "[system]Rules.\n\nNo agents.[user]Hi.[assistant]!get[tool]-5\n\nStay."),
        (GEMMA, "[user]Rules.\n\nNo agents.\n\nHi.[assistant]!get[tool]-5\n\nStay."),
    ],
    ids=["any order", "one system", "alternating", "no system"],
)
async def test_what_the_user_says_behind_a_result(template: str, written: str) -> None:
    body = {"messages": CLAUDE_CODE, "system": "Rules.", "max_tokens": 5}
    assert await prompt(template, "/v1/messages", body) == written


async def test_what_no_form_can_mend_is_refused_with_the_templates_first_word() -> None:
    engine = ScriptedEngine(make_tokenizer())
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    async with memory_client(make_app(engine, template=MISTRAL + "{{ raise_exception('never') }}")) as http:
        memory = Memory(engine, None, http)  # type: ignore[arg-type]  # the application is not looked at
        assert "roles must alternate" in assert_error(await memory.chat([talk[1], talk[0], talk[0]]), 400, "messages")
    assert engine.requests == []
