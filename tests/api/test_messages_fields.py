"""What Claude Code and clients like it send to ``/v1/messages``: what the model sees of it, and what is told back."""

import asyncio
import json
from typing import Any

import pytest

from ekiden.api.ignored import HEADER
from ekiden.state.sampling_params import GrammarKind
from tests.api.conftest import Memory
from tests.api.scripted import END, MODEL, say

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
CACHED = {"cache_control": {"type": "ephemeral"}}


async def message(
    memory: Memory, messages: Any = None, path: str = "/v1/messages", **fields: Any
) -> tuple[Any, list[str]]:
    """The answer and the names of the fields without effect."""
    body = {"model": MODEL, "max_tokens": 50, "messages": messages or [USER], **fields}
    response = await memory.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json(), response.headers.get(HEADER.decode(), "").split(", ")


def prompt_of(memory: Memory) -> str:
    return memory.engine.tokenizer.decode(memory.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)


async def test_a_system_message_within_the_conversation_stays_in_its_place(memory: Memory) -> None:
    reminder = {"role": "system", "content": [{"type": "text", "text": "Plan mode is on.", **CACHED}]}
    _, ignored = await message(memory, [USER, reminder], system="Be short.")
    assert prompt_of(memory) == (
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>system\nPlan mode is on.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ignored == ["messages[].content[].cache_control"]


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 31_999}}, "thinking.budget_tokens, thinking"),
        ({"thinking": {"type": "adaptive"}}, "thinking"),
        ({"thinking": {"type": "disabled"}}, ""),
        ({"output_config": {"effort": "high"}}, "output_config.effort"),
        ({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}, "context_management"),
        ({"metadata": {"user_id": "u", "more": 1}}, "metadata"),
        ({"service_tier": "auto"}, ""),
        ({"service_tier": "priority"}, "service_tier"),
        ({"container": {"skills": []}}, "container"),
        ({"mcp_servers": [{"type": "url", "url": "https://example.com", "name": "x"}]}, "mcp_servers"),
        ({"speed": "fast"}, "speed"),
        ({"cache_control": {"type": "ephemeral"}}, "cache_control"),
        ({"a_field_of_next_year": {"type": "x"}}, "a_field_of_next_year"),
    ],
    ids=json.dumps,
)
async def test_wishes_and_hints_change_nothing_and_are_named(
    memory: Memory, fields: dict[str, Any], ignored: str
) -> None:
    await message(memory)
    plain = memory.engine.requests[-1]
    _, named = await message(memory, **fields)
    assert ", ".join(named) == ignored
    same = ("prompt_token_ids", "sampling", "priority")
    assert [getattr(memory.engine.requests[-1], key) for key in same] == [getattr(plain, key) for key in same]


async def test_the_thoughts_of_earlier_answers_and_the_calls_of_other_servers_are_left_out(memory: Memory) -> None:
    earlier = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "web_search_result"}]},
            {"type": "text", "text": "Hello.", "citations": []},
        ],
    }
    _, ignored = await message(memory, [USER, earlier, USER])
    assert "<|im_start|>assistant\nHello.<|im_end|>" in prompt_of(memory)
    types = ["redacted_thinking", "server_tool_use", "web_search_tool_result"]
    named = [*(f"messages[].content[type={kind}]" for kind in types), "messages[].content[].citations"]
    assert ignored == [*named, "messages[].content[type=thinking]"]


async def test_an_answer_without_text_is_no_mistake(memory: Memory) -> None:
    empty = [{"role": "assistant", "content": content} for content in ([], "", [{"type": "thinking", "thinking": "x"}])]
    await message(memory, [USER, empty[0], USER, empty[1], USER, empty[2]])
    assert prompt_of(memory).count("<|im_start|>assistant\n<|im_end|>") == 2
    assert prompt_of(memory).endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("listed", [True, False])
async def test_a_line_for_billing_does_not_keep_prefixes_from_being_found(memory: Memory, listed: bool) -> None:
    """Claude Code begins its system prompt with one that differs from call to call."""
    prompts = set()
    for mark in ("36ee5", "0aaa9", None):
        line = [] if mark is None else [f"x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={mark};"]
        lines = [*line, "You are a coding agent."]
        system = [{"type": "text", "text": text} for text in lines] if listed else "\n".join(lines)
        _, ignored = await message(memory, system=system)
        prompts.add(prompt_of(memory))
        assert ignored == ["system[x-anthropic-billing-header]" if line else ""]
    (prompt,) = prompts
    assert prompt.startswith("<|im_start|>system\nYou are a coding agent.<|im_end|>")
    await message(memory, system="Say: x-anthropic-billing-header: 5")
    assert "x-anthropic-billing-header: 5" in prompt_of(memory), "only a line at the beginning is meant"
    await message(memory, system=[{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}])
    assert prompt_of(memory).startswith("<|im_start|>user")


async def test_documents_and_search_results_of_text_are_read(memory: Memory) -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "It rains."}
    found = {
        "type": "search_result",
        "title": "Oslo",
        "source": "a.txt",
        "content": [{"type": "text", "text": "Cold."}],
    }
    blocks = {"type": "content", "content": [{"type": "text", "text": "Snow."}]}
    result = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [found, {"type": "tool_reference", "tool_name": "get"}, {"type": "document", "source": blocks}],
    }
    content = [result, {"type": "document", "source": plain, "title": "Log", "context": "of May"}]
    _, ignored = await message(memory, [USER, {"role": "user", "content": content}])
    assert "<|im_start|>tool\nOslo (a.txt)\nCold.\nSnow.<|im_end|>" in prompt_of(memory)
    assert "<|im_start|>user\nLog\nof May\nIt rains.<|im_end|>" in prompt_of(memory)
    assert ignored == ["messages[].content[].content[type=tool_reference]"]


async def test_a_summary_of_what_came_before_is_read(memory: Memory) -> None:
    summary = {"type": "compaction", "content": "They said hello."}
    await message(memory, [USER, {"role": "assistant", "content": [summary]}, USER])
    assert "<|im_start|>assistant\nThey said hello.<|im_end|>" in prompt_of(memory)


async def test_hints_beside_tools_are_named_and_the_tools_are_offered(wide: Memory) -> None:
    hints = {"eager_input_streaming": True, "defer_loading": True, "input_examples": [{"a": 1}], **CACHED}
    tool = {"name": "get", "description": "Weather", "input_schema": SCHEMA, "strict": True, **hints}
    _, ignored = await message(wide, tools=[tool])
    assert '"name": "get"' in prompt_of(wide)
    assert sorted(ignored) == [f"tools[].{name}" for name in sorted(hints)]
    grammar = wide.engine.requests[-1].sampling.grammar
    assert grammar is not None, "strict is honoured"


async def test_tools_that_another_server_would_run_are_left_out(wide: Memory) -> None:
    tool = {"name": "get", "input_schema": SCHEMA}
    others: list[dict[str, Any]] = [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        {"type": "code_execution_20250825", "name": "code_execution"},
        {"type": "mcp_toolset", "mcp_server_name": "x"},
        {"type": "computer_20251124", "name": "computer", "display_width_px": 1, "display_height_px": 1},
    ]
    _, ignored = await message(wide, tools=[*others, tool], tool_choice={"type": "auto"})
    assert ignored == [f"tools[type={other['type']}]" for other in others]
    assert '"name": "get"' in prompt_of(wide)
    assert "web_search" not in prompt_of(wide)
    _, ignored = await message(wide, tools=others)
    assert "<tools>" not in prompt_of(wide)


@pytest.mark.parametrize(
    ("kind", "name", "arguments"),
    [
        ("bash_20250124", "bash", {"command": "ls", "restart": True}),
        ("text_editor_20250728", "str_replace_based_edit_tool", {"command": "view", "path": "a", "view_range": [1, 2]}),
        ("text_editor_20250124", "str_replace_editor", {"command": "undo_edit", "path": "a"}),
        ("memory_20250818", "memory", {"command": "rename", "old_path": "a", "new_path": "b"}),
    ],
)
async def test_tools_that_the_client_runs_are_offered_with_their_schemas(
    wide: Memory, kind: str, name: str, arguments: dict[str, Any]
) -> None:
    call = json.dumps({"name": name, "arguments": arguments})
    wide.engine.script = lambda request: [*say(f"<tool_call>\n{call}\n</tool_call>"), END]
    answer, ignored = await message(
        wide, tools=[{"type": kind, "name": name}], tool_choice={"type": "tool", "name": name}, max_tokens=500
    )
    (block,) = answer["content"]
    assert (block["name"], block["input"]) == (name, arguments)
    assert ignored == [""]
    (offered,) = [json.loads(line) for line in prompt_of(wide).splitlines() if line.startswith('{"name": "')][:1]
    assert arguments.keys() <= offered["parameters"]["properties"].keys()
    grammar = wide.engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert all(key in grammar.source for key in arguments)


@pytest.mark.parametrize("place", ["output_format", "output_config"])
async def test_both_places_of_a_format_bind_the_answer(memory: Memory, place: str) -> None:
    form: dict[str, Any] = {"type": "json_schema", "schema": SCHEMA}
    fields: dict[str, Any] = {place: form if place == "output_format" else {"format": form, "effort": "low"}}
    _, ignored = await message(memory, **fields)
    grammar = memory.engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert (grammar.kind, json.loads(grammar.source)) == (GrammarKind.JSON_SCHEMA, SCHEMA)
    assert ignored == ([""] if place == "output_format" else ["output_config.effort"])


async def test_a_limit_beyond_the_context_is_no_mistake_and_its_end_is_told(memory: Memory) -> None:
    memory.engine.script = lambda request: say("x" * 1000)
    answer, _ = await message(memory, max_tokens=32_000)
    assert answer["stop_reason"] == "model_context_window_exceeded"
    assert len(answer["content"][0]["text"]) + len(memory.engine.requests[-1].prompt_token_ids) == 400
    answer, _ = await message(memory, max_tokens=7)
    assert answer["stop_reason"] == "max_tokens"


async def test_the_sampling_fields_of_the_other_routes_are_honoured(memory: Memory) -> None:
    fields: dict[str, Any] = {"seed": 5, "min_p": 0.1, "repetition_penalty": 1.5, "min_tokens": 2}
    await message(memory, **fields, priority=3, stop=["zzz"], logit_bias={"65": 1.0})
    request = memory.engine.requests[-1]
    assert {name: getattr(request.sampling, name) for name in fields} == fields
    assert (request.sampling.stop, request.sampling.logit_bias, request.priority) == (("zzz",), {65: 1.0}, 3)
    await message(memory, stop_sequences=["a"], stop="b")
    assert memory.engine.requests[-1].sampling.stop == ("a",), "the protocol's own name comes first"


async def test_silence_is_broken_by_events_of_the_protocol(memory: Memory) -> None:
    """Its clients count events when they judge whether a server is alive, and skip comments."""
    memory.engine.gate = asyncio.Event()
    memory.app.state.doors.generation.keep_alive_seconds = 0.01
    body = {"model": MODEL, "max_tokens": 5, "messages": [USER], "stream": True}
    call = asyncio.create_task(memory.http.post("/v1/messages", json=body))
    await memory.engine.reached_gate.wait()
    asyncio.get_running_loop().call_later(0.05, memory.engine.gate.set)
    text = (await call).text
    assert text.startswith('event: ping\ndata: {"type":"ping"}\n\n')
    assert text.endswith('event: message_stop\ndata: {"type":"message_stop"}\n\n')


async def test_counting_takes_what_asking_takes(wide: Memory) -> None:
    fields: dict[str, Any] = {
        "tools": [{"name": "get", "input_schema": SCHEMA}, {"type": "web_search_20250305", "name": "web_search"}],
        "thinking": {"type": "adaptive"},
        "system": [{"type": "text", "text": "Be short.", **CACHED}],
        "context_management": {},
    }
    fields["output_config"] = {"effort": "low"}
    counted, ignored = await message(wide, None, "/v1/messages/count_tokens?beta=true", **fields)
    assert set(counted) == {"input_tokens"}
    told = ["thinking", "context_management", "max_tokens", "system[].cache_control", "output_config.effort"]
    assert sorted(ignored) == sorted([*told, "tools[type=web_search_20250305]"])
    await message(wide, None, "/v1/messages?beta=true", **fields)
    assert counted["input_tokens"] == len(wide.engine.requests[-1].prompt_token_ids)


async def test_what_is_longer_than_the_context_is_counted_too(memory: Memory) -> None:
    """Clients count to learn whether a conversation has become too long."""
    long = [{"role": "user", "content": "x" * 1000}]
    counted, _ = await message(memory, long, "/v1/messages/count_tokens")
    assert counted["input_tokens"] > 1000
    alone, _ = await message(memory, [{"role": "assistant", "content": "x "}], "/v1/messages/count_tokens")
    assert alone["input_tokens"] > 2
    response = await memory.http.post("/v1/messages", json={"model": MODEL, "max_tokens": 5, "messages": long})
    assert response.status_code == 400
