"""What Codex and clients like it send to ``/v1/responses``: what the model sees of it, and what is told back."""

import json
from typing import Any

import pytest

from ekiden.api.ignored import HEADER
from tests.api.conftest import Memory, assert_error
from tests.api.scripted import END, MODEL, say

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
GET = {"type": "function", "name": "get", "description": "Weather", "parameters": SCHEMA}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'},
}
CRM = {
    "type": "namespace",
    "name": "crm",
    "description": "About customers.",
    "tools": [{**GET, "description": "Finds one."}, {"type": "custom", "name": "note"}, {"type": "local_shell"}],
}


async def respond(memory: Memory, **fields: Any) -> tuple[Any, list[str]]:
    """The answer and the names of the fields without effect."""
    response = await memory.http.post("/v1/responses", json={"model": MODEL, "input": "hi", **fields})
    assert response.status_code == 200, response.text
    return response.json(), response.headers.get(HEADER.decode(), "").split(", ")


def prompt_of(memory: Memory) -> str:
    return memory.engine.tokenizer.decode(memory.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)


def calling(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"include": []}, ""),
        ({"reasoning": {"effort": "high", "summary": "auto"}}, "reasoning.summary, reasoning"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"client_metadata": {"x-codex-turn-metadata": "{}"}}, "client_metadata"),
        ({"prompt_cache_key": "k"}, "prompt_cache_key"),
        ({"store": True}, "store"),
        ({"store": False}, ""),
        ({"truncation": "auto"}, "truncation"),
        ({"truncation": "disabled"}, ""),
        ({"service_tier": "flex"}, "service_tier"),
        ({"max_tool_calls": 5}, "max_tool_calls"),
        ({"context_management": [{"type": "compaction", "compact_threshold": 5}]}, "context_management"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"access_programs": {"cyber": "standard"}}, "access_programs"),
        ({"metadata": {"k": "v"}, "user": "u"}, ""),
    ],
    ids=json.dumps,
)
async def test_wishes_and_hints_change_nothing_and_are_named(
    memory: Memory, fields: dict[str, Any], ignored: str
) -> None:
    await respond(memory)
    plain = memory.engine.requests[-1]
    answer, named = await respond(memory, **fields)
    assert ", ".join(named) == ignored
    same = ("prompt_token_ids", "sampling", "priority")
    assert [getattr(memory.engine.requests[-1], key) for key in same] == [getattr(plain, key) for key in same]
    assert (answer["store"], answer["truncation"]) == (False, "disabled"), "the response says what holds"


async def test_the_sampling_fields_of_the_other_routes_are_honoured(memory: Memory) -> None:
    fields: dict[str, Any] = {"seed": 5, "min_p": 0.1, "frequency_penalty": 0.5, "min_tokens": 1}
    await respond(memory, **fields, priority=3, stop="zzz", stop_token_ids=[7])
    request = memory.engine.requests[-1]
    assert {name: getattr(request.sampling, name) for name in fields} == fields
    assert (request.sampling.stop, request.sampling.stop_token_ids, request.priority) == (("zzz",), (7,), 3)


async def test_tools_that_another_server_would_run_are_left_out(wide: Memory) -> None:
    others: list[dict[str, Any]] = [
        {"type": "web_search", "external_web_access": True},
        {"type": "local_shell"},
        {"type": "image_generation", "output_format": "png"},
        {"type": "mcp", "server_label": "x", "server_url": "https://example.com"},
        {"type": "tool_search", "execution": "client", "description": "d", "parameters": SCHEMA},
    ]
    answer, ignored = await respond(wide, tools=[*others, GET])
    assert ignored == [f"tools[type={other['type']}]" for other in others]
    assert "<tools>\n{" in prompt_of(wide)
    assert "web_search" not in prompt_of(wide)
    assert [tool["name"] for tool in answer["tools"]] == ["get"], "the tools that the model may call"


async def test_a_custom_tool_takes_free_text(wide: Memory) -> None:
    patch = '*** Begin Patch\n+"hi" \\ ü\n'
    wide.engine.script = lambda request: [*say(calling("apply_patch", input=patch)), END]
    answer, ignored = await respond(wide, tools=[PATCH, GET])
    (item,) = answer["output"]
    assert {key: item[key] for key in ("type", "name", "input", "status")} == {
        "type": "custom_tool_call",
        "name": "apply_patch",
        "input": patch,
        "status": "completed",
    }
    assert ignored == ["tools[].format"]
    (offered,) = [json.loads(line) for line in prompt_of(wide).splitlines() if line.startswith('{"name": "apply')]
    assert offered["parameters"]["required"] == ["input"]
    assert offered["description"].startswith("Edits files.\n\n")
    assert offered["description"].endswith('start: "*** Begin Patch"')
    assert answer["tools"][0] == PATCH
    result = {"type": "custom_tool_call_output", "id": "x", "call_id": item["call_id"], "output": "Done!"}
    _, ignored = await respond(wide, input=[{"role": "user", "content": "x"}, item, result], tools=[GET])
    assert f"[apply_patch {json.dumps({'input': patch}, ensure_ascii=False)}]<|im_end|>" in prompt_of(wide)
    assert "<|im_start|>tool\nDone!<|im_end|>" in prompt_of(wide)
    assert ignored == [""]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [('{"patch": "x"}', '{"patch": "x"}'), ('{"input": 5}', '{"input": 5}'), ('{"input": "a", "b": 1}', "a")],
)
async def test_a_custom_call_without_its_input_is_told_as_it_is(wide: Memory, arguments: str, told: str) -> None:
    call = f'<tool_call>\n{{"name": "apply_patch", "arguments": {arguments}}}\n</tool_call>'
    wide.engine.script = lambda request: [*say(call), END]
    answer, _ = await respond(wide, tools=[PATCH])
    assert answer["output"][0]["input"] == told


@pytest.mark.parametrize("choice", ["required", {"type": "custom", "name": "apply_patch"}], ids=str)
async def test_a_custom_call_can_be_forced(wide: Memory, choice: Any) -> None:
    answer, _ = await respond(wide, tools=[PATCH], tool_choice=choice)
    grammar = wide.engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert "apply_patch" in grammar.source
    assert answer["tool_choice"] == choice


async def test_a_namespace_groups_functions(wide: Memory) -> None:
    wide.engine.script = lambda request: [*say(f"{calling('crm__get', a=1)}\n{calling('crm__note', input='n')}"), END]
    answer, ignored = await respond(wide, tools=[GET, CRM])
    first, second = answer["output"]
    assert [first[key] for key in ("type", "namespace", "name", "arguments")] == [
        "function_call",
        "crm",
        "get",
        '{"a": 1}',
    ]
    assert [second[key] for key in ("type", "namespace", "name", "input")] == ["custom_tool_call", "crm", "note", "n"]
    assert ignored == ["tools[].tools[type=local_shell]"]
    offered = [json.loads(line) for line in prompt_of(wide).splitlines() if line.startswith('{"name": "')]
    told = {tool["name"]: tool.get("description") for tool in offered}
    assert told.pop("the function's name", None) is None
    assert told == {"get": "Weather", "crm__get": "crm: About customers.\n\nFinds one.", "crm__note": None}
    results = [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "ok"} for item in (first, second)
    ]
    await respond(wide, input=[{"role": "user", "content": "x"}, first, second, *results], tools=[CRM])
    assert '[crm__get {"a": 1}][crm__note {"input": "n"}]' in prompt_of(wide)


async def test_tools_among_the_items_are_offered_too(wide: Memory) -> None:
    """As Codex sends them for some models: without ``tools``, and all in namespaces."""
    items = [{"type": "additional_tools", "id": "a", "role": "developer", "tools": [CRM, {"type": "web_search"}]}]
    wide.engine.script = lambda request: [*say(calling("crm__get", a=1)), END]
    answer, ignored = await respond(wide, input=[*items, {"role": "user", "content": "hi"}])
    (item,) = answer["output"]
    assert [item[key] for key in ("type", "namespace", "name")] == ["function_call", "crm", "get"]
    assert ignored == ["input[].tools[].tools[type=local_shell]", "input[].tools[type=web_search]"]
    assert [tool["name"] for tool in answer["tools"]] == ["crm"]
    for wrong, param in (
        ([{**GET, "name": "a b"}], "input[1].tools[0].name"),
        ([{**GET, "parameters": {"type": "array"}}], "input[1].tools[0].parameters.type"),
        (5, "input[1].tools"),
    ):
        body = {"model": MODEL, "input": [{"role": "user", "content": "hi"}, {**items[0], "tools": wrong}]}
        assert_error(await wide.http.post("/v1/responses", json=body), 400, param)


async def test_a_function_of_a_namespace_can_be_chosen_by_its_name(wide: Memory) -> None:
    await respond(wide, tools=[CRM], tool_choice={"type": "function", "name": "get"})
    grammar = wide.engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert "crm__get" in grammar.source
    both = [GET, CRM]
    await respond(wide, tools=both, tool_choice={"type": "function", "name": "get"})
    grammar = wide.engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert "crm__get" not in grammar.source, "the one that has this name by itself"


async def test_more_functions_than_a_list_may_have_tools(wide: Memory) -> None:
    spaces = [
        {"type": "namespace", "name": f"n{i}", "tools": [{"type": "function", "name": f"f{j}"} for j in range(100)]}
        for i in range(6)
    ]
    wide.app.state.doors.generation.text.max_model_len = 200_000
    await respond(wide, tools=spaces[:5])
    response = await wide.http.post("/v1/responses", json={"model": MODEL, "input": "hi", "tools": spaces})
    assert response.status_code == 400
    assert "600 functions" in response.json()["error"]["message"]


async def test_items_as_clients_send_them_back(wide: Memory) -> None:
    """With the keys that the SDK dumps, ids and states; thoughts and the calls of other servers are left out."""
    items = [
        {"type": "message", "id": "m", "role": "developer", "content": [{"type": "input_text", "text": "Be short."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi", "prompt_cache": {}}]},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x", "status": None},
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "x"}},
        {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "status": "completed",
            "phase": "commentary",
            "content": [
                {"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []},
                {"type": "refusal", "refusal": "Not that."},
            ],
        },
        {
            "type": "function_call",
            "id": "f",
            "call_id": "c",
            "name": "get",
            "arguments": "{}",
            "async_": None,
            "caller": None,
            "namespace": None,
            "status": "completed",
        },
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "-5"}],
            "async": False,
        },
        {
            "type": "local_shell_call",
            "call_id": "s",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"], "timeout_ms": None},
        },
        {"type": "local_shell_call_output", "id": "o", "call_id": "s", "output": "a.txt"},
        {"type": "shell_call", "call_id": "t", "action": {"commands": ["ls"]}},
        {
            "type": "shell_call_output",
            "call_id": "t",
            "output": [{"stdout": "b", "stderr": "", "outcome": {"type": "exit"}}],
        },
    ]
    _, ignored = await respond(wide, input=items)
    assert prompt_of(wide) == (
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\nLet me see.\nNot that.[get {}]<|im_end|>\n<|im_start|>tool\n-5<|im_end|>\n"
        '<|im_start|>assistant\n[local_shell {"type": "exec", "command": ["ls"], "timeout_ms": null}]<|im_end|>\n'
        "<|im_start|>tool\na.txt<|im_end|>\n"
        '<|im_start|>assistant\n[shell {"commands": ["ls"]}]<|im_end|>\n'
        '<|im_start|>tool\n[{"stdout": "b", "stderr": "", "outcome": {"type": "exit"}}]<|im_end|>\n'
        "<|im_start|>assistant\n"
    )
    assert ignored == [
        "input[].content[].prompt_cache",
        "input[type=web_search_call]",
        "input[].phase",
        "input[].async",
        "input[type=reasoning]",
    ]


async def test_the_usage_has_what_typed_clients_ask_for(memory: Memory) -> None:
    answer, _ = await respond(memory)
    usage = answer["usage"]
    assert usage["input_tokens_details"] == {"cached_tokens": 3, "cache_write_tokens": 0}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


async def test_the_output_of_a_local_shell_has_the_id_of_its_call_only(wide: Memory) -> None:
    """OpenAI's type of it has no ``call_id``."""
    call = {"type": "local_shell_call", "id": "a", "call_id": "a", "status": "completed", "action": {"command": ["ls"]}}
    output = {"type": "local_shell_call_output", "id": "a", "output": "README.md"}
    await respond(wide, input=[{"role": "user", "content": "x"}, call, output])
    assert "tool\nREADME.md<|im_end|>" in prompt_of(wide)
