"""What this server has under its own names is done under the names that others give it, too."""

from typing import Any

import pytest

from ekiden.state.sampling_params import GrammarKind, SamplingParams
from tests.api.conftest import Memory, application, assert_error, events, memory_client
from tests.api.scripted import END, START, ScriptedEngine, make_app, make_tokenizer, say

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture
def memory(wide: Memory) -> Memory:
    return wide


async def sampling(memory: Memory, **fields: Any) -> SamplingParams:
    """What the engine is told, by chat and by completions alike."""
    for response in (await memory.chat(**fields), await memory.complete(**fields)):
        assert response.status_code == 200, response.text
        assert "x-ekiden-ignored-fields" not in response.headers
    of_chat, of_text = (request.sampling for request in memory.engine.requests[-2:])
    assert of_chat == of_text
    return of_chat


def prompt_of(memory: Memory) -> str:
    return memory.engine.tokenizer.decode(memory.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)


async def test_limits_and_penalties(memory: Memory) -> None:
    assert (await sampling(memory, n_predict=7)).max_tokens == 7
    assert (await sampling(memory, n_predict=-1)).max_tokens is None
    assert (await sampling(memory, n_predict=7, max_tokens=9)).max_tokens == 9
    assert (await sampling(memory, repeat_penalty=1.5)).repetition_penalty == 1.5
    assert (await sampling(memory, repeat_penalty=1.5, repetition_penalty=1.25)).repetition_penalty == 1.25
    assert (await sampling(memory, min_new_tokens=3)).min_tokens == 3
    assert (await sampling(memory, random_seed=3)).seed == 3
    await memory.chat(max_completion_tokens=5, n_predict=9, max_tokens=8)
    assert memory.engine.requests[-1].sampling.max_tokens == 5


async def test_options_stand_behind_the_fields_outside(memory: Memory) -> None:
    options = {"temperature": 0.5, "top_k": 3, "stop": "x", "num_predict": 7, "repeat_penalty": 1.5}
    inside = await sampling(memory, options=options)
    assert (inside.temperature, inside.top_k, inside.stop) == (0.5, 3, ("x",))
    assert (inside.max_tokens, inside.repetition_penalty) == (7, 1.5)
    mixed = await sampling(memory, options=options, temperature=0, max_tokens=9, repeat_penalty=1.25)
    assert (mixed.temperature, mixed.top_k, mixed.max_tokens, mixed.repetition_penalty) == (0, 3, 9, 1.25)
    unlimited = await sampling(memory, options={"num_predict": -2})
    assert unlimited.max_tokens is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n_predict": 0}, "n_predict"),
        ({"n_predict": -3}, "n_predict"),
        ({"n_predict": "5"}, "n_predict"),
        ({"n_predict": True}, "n_predict"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"options": {"top_k": -2}}, "options.top_k"),
        ({"options": {"num_predict": 0}}, "options.num_predict"),
        ({"options": [1]}, "options"),
        ({"structured_outputs": {"regex": "["}}, "structured_outputs.regex"),
        ({"structured_outputs": {"zzz": 1}}, "structured_outputs.zzz"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": "["}}, "structured_outputs.json"),
        ({"guided_regex": "a", "grammar": 'root ::= "a"'}, "grammar"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"format": "xml"}, "format"),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format.schema"),
        ({"response_format": {"type": "json_object", "zzz": 1}}, "response_format.zzz"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"stop": [f"{number}" for number in range(65)]}, "stop"),
        ({"stop": ["x" * 1000] * 5}, "stop"),
    ],
    ids=str,
)
async def test_what_cannot_be_done_is_named(memory: Memory, fields: dict[str, Any], param: str) -> None:
    for response in (await memory.chat(**fields), await memory.complete(**fields)):
        assert_error(response, 400, param)
    assert memory.engine.requests == []


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"structured_outputs": {"json": SCHEMA}}, GrammarKind.JSON_SCHEMA),
        (
            {"structured_outputs": {"json": '{"type": "object"}', "disable_any_whitespace": None}},
            GrammarKind.JSON_SCHEMA,
        ),
        ({"structured_outputs": {"json_object": True}}, GrammarKind.JSON_SCHEMA),
        ({"structured_outputs": {"regex": "[0-9]+"}}, GrammarKind.REGEX),
        ({"structured_outputs": {"choice": ["a", "b"]}}, GrammarKind.LARK),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, GrammarKind.GBNF),
        ({"grammar": 'root ::= "a"'}, GrammarKind.GBNF),
        ({"json_schema": SCHEMA}, GrammarKind.JSON_SCHEMA),
        ({"format": SCHEMA}, GrammarKind.JSON_SCHEMA),
        ({"format": "json"}, GrammarKind.JSON_SCHEMA),
        ({"regex": "[0-9]+"}, GrammarKind.REGEX),
        ({"ebnf": 'root ::= "a"'}, GrammarKind.GBNF),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, GrammarKind.JSON_SCHEMA),
        ({"grammar": "", "format": "", "structured_outputs": {"json_object": False}}, None),
        ({"structured_outputs": {}}, None),
    ],
    ids=str,
)
async def test_constraints(memory: Memory, fields: dict[str, Any], kind: GrammarKind | None) -> None:
    grammar = (await sampling(memory, **fields)).grammar
    assert (None if grammar is None else grammar.kind) is kind
    if "a" in str(SCHEMA) and SCHEMA in fields.values():
        assert grammar is not None
        assert '"required":["a"]' in grammar.source


async def test_fields_that_ask_for_what_happens_anyway(memory: Memory) -> None:
    fine = {
        "skip_special_tokens": True,
        "use_beam_search": False,
        "store": False,
        "cache_prompt": True,
        "bad_words": [],
    }
    await sampling(memory, **fine, service_tier="auto", stop=[f"<{number}>" for number in range(64)])
    for fields in ({"logprobs": False, "top_logprobs": 0}, {"reasoning_effort": "none"}, {"modalities": ["text"]}):
        response = await memory.chat(**fields, add_generation_prompt=True, function_call="auto")
        assert response.status_code == 200
        assert "x-ekiden-ignored-fields" not in response.headers
    assert_error(await memory.chat(logprobs=False, top_logprobs=1), 400, "top_logprobs")


async def test_usage_in_every_chunk(memory: Memory) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for response in (
        await memory.chat(stream=True, stream_options=options, n=2),
        await memory.complete(stream=True, stream_options=options, n=2),
    ):
        chunks = events(response.text)
        whole = chunks.pop()
        assert whole["choices"] == []
        for index in (0, 1):
            counts = [chunk["usage"] for chunk in chunks if chunk["choices"][0]["index"] == index]
            done = [count["completion_tokens"] for count in counts]
            assert done == sorted(done)
            assert done[-1] == 3
            assert {count["prompt_tokens"] for count in counts} == {whole["usage"]["prompt_tokens"]}
            assert all(count["total_tokens"] == count["prompt_tokens"] + count["completion_tokens"] for count in counts)
        assert whole["usage"]["completion_tokens"] == 6
    alone = await memory.chat(stream=True, stream_options={"continuous_usage_stats": True})
    assert all("usage" not in chunk for chunk in events(alone.text)), "only together with include_usage"


async def test_the_answer_goes_on_from_the_last_message(memory: Memory) -> None:
    begun = [USER, {"role": "assistant", "content": "Well,"}]
    whole = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    for fields in ({"continue_final_message": True, "add_generation_prompt": False}, {"continue_final_message": True}):
        assert (await memory.chat(begun, **fields)).status_code == 200
        assert prompt_of(memory) == f"{whole}Well,"
    assert (await memory.chat([USER, {**begun[1], "prefix": True}])).status_code == 200
    assert prompt_of(memory) == f"{whole}Well,"
    assert (await memory.chat([USER], add_generation_prompt=False)).status_code == 200
    assert prompt_of(memory) == "<|im_start|>user\nhi<|im_end|>\n"
    wrong = {"continue_final_message": True}
    for messages in ([USER], [begun[1]]):
        assert_error(await memory.chat(messages, **wrong), 400, "continue_final_message")
    assert_error(await memory.chat(begun, **wrong, add_generation_prompt=True), 400, "continue_final_message")
    assert_error(await memory.chat([{**USER, "prefix": True}]), 400, "messages[0].prefix")


ALL = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
FIRST_ONLY = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"  # noqa: E501
LAST_WINS = "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.s = m.content %}{% endif %}{% endfor %}<{{ ns.s | trim }}>{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"  # noqa: E501


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        (ALL, "[system]A [user]hi[system]B[user]yo"),
        (FIRST_ONLY, "[system]A \n\nB[user]hi[user]yo"),
        (LAST_WINS, "<A \n\nB>[user]hi[user]yo"),
    ],
    ids=["takes several", "refuses a second", "drops the first"],
)
async def test_no_system_message_is_lost(template: str, prompt: str) -> None:
    messages = [
        {"role": "system", "content": "A "},
        USER,
        {"role": "developer", "content": "B"},
        {"role": "user", "content": "yo"},
    ]
    async with application(template=template, context=4000) as memory:
        response = await memory.chat(messages)
        assert response.status_code == 200, response.text
        assert prompt_of(memory) == prompt
        assert (await memory.chat([messages[2], USER])).status_code == 200
        assert prompt_of(memory) in ("[system]B[user]hi", "<B>[user]hi")


async def test_special_tokens_around_a_text_can_be_left_out() -> None:
    engine = ScriptedEngine(make_tokenizer(adds_bos=True))
    app = make_app(engine)
    async with memory_client(app) as http:
        memory = Memory(engine, app, http)
        for fields, tokens in (({}, 3), ({"add_special_tokens": True}, 3), ({"add_special_tokens": False}, 2)):
            assert (await memory.complete(**fields)).json()["usage"]["prompt_tokens"] == tokens


async def test_any_is_another_word_for_required(memory: Memory) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    for choice in ("required", "any"):
        assert (await memory.chat(tools=tools, tool_choice=choice)).status_code == 200
    of_required, of_any = (request.sampling.grammar for request in memory.engine.requests)
    assert of_any == of_required
    assert of_any is not None


async def test_parts_of_text_under_their_newer_names(memory: Memory) -> None:
    kinds = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
    for kind, key in kinds.items():
        assert (await memory.chat([{"role": "user", "content": [{"type": kind, key: "Hello"}]}])).status_code == 200
    assert len({request.prompt_token_ids for request in memory.engine.requests}) == 1
    for kind in ("image_url", "input_audio", "file", "input_image", "video_url"):
        response = await memory.chat([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": kind}]}])
        assert_error(response, 400, "messages[0].content[1].type")


async def test_arguments_may_be_an_object(memory: Memory) -> None:
    def turn(arguments: Any) -> list[Any]:
        return [USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]

    for arguments in ('{"a": "é"}', {"a": "é"}):
        assert (await memory.chat(turn(arguments))).status_code == 200
    assert memory.engine.requests[0].prompt_token_ids == memory.engine.requests[1].prompt_token_ids
    assert_error(await memory.chat(turn(5)), 400, "messages[1].tool_calls[0].function.arguments")


@pytest.mark.parametrize("stream", [False, True])
async def test_special_tokens_are_part_of_the_text_where_a_client_wants_them(memory: Memory, stream: bool) -> None:
    memory.engine.script = lambda request: [*say("a"), START, *say("b"), END]
    for wanted, text in ((False, "a<|im_start|>b"), (True, "ab"), (None, "ab")):
        asked = {"skip_special_tokens": wanted, "stream": stream}
        for response in (await memory.chat(**asked, logprobs=True), await memory.complete(**asked, logprobs=0)):
            assert response.status_code == 200, response.text
            answers = events(response.text) if stream else [response.json()]
            choices = [choice for answer in answers for choice in answer["choices"]]
            parts = [choice.get("delta", choice.get("message", choice)) for choice in choices]
            assert "".join(part.get("content") or part.get("text") or "" for part in parts) == text
            assert choices[-1]["finish_reason"] == "stop"
        offsets = [at for choice in choices for at in (choice["logprobs"] or {}).get("text_offset", ())]
        assert offsets == [0, 1, text.index("b")]
