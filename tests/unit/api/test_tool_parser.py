"""Reading tool calls: each format, every way of cutting the text, and what only looks like a call."""

import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekiden.api.tools.formats import ToolFormat
from ekiden.api.tools.parser import PARSERS, CallArguments, CallBegin, Text

NAMES = frozenset({"get", "add", "f.g-h_1"})
HERMES, LLAMA3, MISTRAL = ToolFormat


def read(
    form: ToolFormat, pieces: list[str], *, live: bool = False, forced: bool = False
) -> tuple[str, list[tuple[str, str]]]:
    numbers = itertools.count()
    parser = PARSERS[form](NAMES, lambda: f"id{next(numbers)}", live=live or forced, forced=forced)
    text = ""
    names: list[str] = []
    arguments: list[str] = []
    for event in [event for piece in pieces for event in parser.feed(piece)] + parser.finish():
        match event:
            case Text(piece):
                text += piece
            case CallBegin(index, call_id, name):
                assert (index, call_id) == (len(names), f"id{index}")
                names.append(name)
                arguments.append("")
            case CallArguments(index, piece):
                arguments[index] += piece
    assert parser.num_calls == len(names)
    return text, list(zip(names, arguments, strict=True))


GET = '{"name": "get", "arguments": {"city": "São {Paulo} \\"x\\" \\\\"}}'
GET_ARGUMENTS = '{"city": "São {Paulo} \\"x\\" \\\\"}'
LLAMA_GET = GET.replace("arguments", "parameters")

CASES = [
    (HERMES, "Just text.\n", "Just text.\n", []),
    (HERMES, f"<tool_call>\n{GET}\n</tool_call>", "", [("get", GET_ARGUMENTS)]),
    (HERMES, f"Let me see.\n\n<tool_call>{GET}</tool_call>\n", "Let me see.", [("get", GET_ARGUMENTS)]),
    (
        HERMES,
        f'<tool_call>\n{GET}\n</tool_call>\n<tool_call>\n{{"name":"add","arguments":{{"a":[1,{{"b":2}}]}}}}\n</tool_call>',
        "",
        [("get", GET_ARGUMENTS), ("add", '{"a":[1,{"b":2}]}')],
    ),
    (HERMES, f"a <tool_call>{GET}</tool_call> b", "a b", [("get", GET_ARGUMENTS)]),
    (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>', "", [("add", '{"a": 1}')]),
    (HERMES, '<tool_call>{"name": "add"}</tool_call>', "", [("add", "{}")]),
    (HERMES, '<tool_call>{"name": "add", "arguments": null}</tool_call>', "", [("add", "{}")]),
    (HERMES, '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("add", '{"a": 1}')]),
    (HERMES, '<tool_call>{"id": 7, "name": "add", "arguments": {}, "x": true}</tool_call>', "", [("add", "{}")]),
    (HERMES, '<tool_call>{"name": "add", "arguments": {"a": 1}', "", [("add", '{"a": 1}')]),
    *[
        (
            HERMES,
            f'<tool_call>{{"name": "add", "arguments": {bad}',
            f'<tool_call>{{"name": "add", "arguments": {bad}',
            [],
        )
        for bad in (
            '{"a": "cut o',
            '{"a": 1,}}</tool_call>',
            "{a: 1}}</tool_call>",
            '"text"}</tool_call>',
            "[1]}</tool_call>",
            "5}</tool_call> then",
            '{"a": NaN}}',
            '{"a": 1 "b": 2}}\n</tool_call>',
            "{'a': 1}}",
            '{"a": 01}}',
            '"{\\"a\\": 1"}</tool_call>',
        )
    ],
    (HERMES, '<tool_call>{"name": "add", "arguments": {"a": 1}</tool_call>', "", [("add", '{"a": 1}')]),
    (HERMES, '<tool_call>{"name": "add", "arguments": {"a": "1\n2"}}</tool_call>', "", [("add", '{"a": "1\\n2"}')]),
    (
        HERMES,
        f'<tool_call>{GET}</tool_call>\n<tool_call>{{"name": "add", "arguments": {{a}}}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {a}}</tool_call>',
        [("get", GET_ARGUMENTS)],
    ),
    (
        HERMES,
        f'<tool_call>{{"name": "add", "arguments": {{a}}}}</tool_call>\n<tool_call>{GET}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {a}}</tool_call>',
        [("get", GET_ARGUMENTS)],
    ),
    (HERMES, f"<tool_call>{GET}</tool_call>\n<tool_c", "", [("get", GET_ARGUMENTS)]),
    (HERMES, f"<tool_call>{GET}</tool", "", [("get", GET_ARGUMENTS)]),
    (HERMES, '<tool_call>{"name": "ad', '<tool_call>{"name": "ad', []),
    (HERMES, "<tool_call>{broken}</tool_call> x", "<tool_call>{broken}</tool_call> x", []),
    (HERMES, "<tool_call>not json</tool_call>", "<tool_call>not json</tool_call>", []),
    (
        HERMES,
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        [],
    ),
    (HERMES, '<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
    (HERMES, "<tool_call", "<tool_call", []),
    (HERMES, "if a <b and <tool c", "if a <b and <tool c", []),
    (HERMES, "  spaced  \n", "  spaced  \n", []),
    (LLAMA3, "Just text.\n", "Just text.\n", []),
    (LLAMA3, LLAMA_GET, "", [("get", GET_ARGUMENTS)]),
    (LLAMA3, f"\n<|python_tag|>{LLAMA_GET}", "", [("get", GET_ARGUMENTS)]),
    (
        LLAMA3,
        LLAMA_GET + '; {"name": "add", "parameters": {"a": 1}}',
        "",
        [("get", GET_ARGUMENTS), ("add", '{"a": 1}')],
    ),
    (LLAMA3, '{"type": "function", "name": "add", "parameters": {"a": 1}}', "", [("add", '{"a": 1}')]),
    (LLAMA3, '{"name": "Bob", "age": 5}', '{"name": "Bob", "age": 5}', []),
    (LLAMA3, '{"name": "add", "parameters": {a}}', '{"name": "add", "parameters": {a}}', []),
    (LLAMA3, LLAMA_GET + '; {"name": "add", "param', '; {"name": "add", "param', [("get", GET_ARGUMENTS)]),
    (LLAMA3, '{"age": 5, "x": {"name": "get"}}', '{"age": 5, "x": {"name": "get"}}', []),
    (LLAMA3, f"It is {LLAMA_GET}", f"It is {LLAMA_GET}", []),
    (LLAMA3, "<|python_tag|>print(1)", "print(1)", []),
    (LLAMA3, "{", "{", []),
    (MISTRAL, "Just text.\n", "Just text.\n", []),
    (MISTRAL, f"[TOOL_CALLS] [{GET}]", "", [("get", GET_ARGUMENTS)]),
    (
        MISTRAL,
        f'Sure. [TOOL_CALLS][{GET}, {{"name": "add", "arguments": {{"a": 1}}}}]',
        "Sure.",
        [("get", GET_ARGUMENTS), ("add", '{"a": 1}')],
    ),
    (MISTRAL, '[TOOL_CALLS]add{"a": "}"}', "", [("add", '{"a": "}"}')]),
    (
        MISTRAL,
        '[TOOL_CALLS]f.g-h_1[ARGS]{"a": 1}[TOOL_CALLS]add[CALL_ID]abc[ARGS]{}',
        "",
        [("f.g-h_1", '{"a": 1}'), ("add", "{}")],
    ),
    (MISTRAL, '[TOOL_CALLS]other{"a": 1}', '[TOOL_CALLS]other{"a": 1}', []),
    (MISTRAL, "[TOOL_CALLS] and no more", "[TOOL_CALLS] and no more", []),
    (MISTRAL, '[TOOL_CALLS]add{"a": 1', '[TOOL_CALLS]add{"a": 1', []),
    (MISTRAL, "[TOOL_CALLS]add{a: 1} x", "[TOOL_CALLS]add{a: 1} x", []),
    (MISTRAL, f'[TOOL_CALLS] [{GET}, {{"name": "add"', ', {"name": "add"', [("get", GET_ARGUMENTS)]),
    (
        MISTRAL,
        '[TOOL_CALLS] [{"name": "add", "arguments": [1]}]',
        '[TOOL_CALLS] [{"name": "add", "arguments": [1]}]',
        [],
    ),
    (MISTRAL, "[1, 2]", "[1, 2]", []),
]


@pytest.mark.parametrize(("form", "written", "text", "calls"), CASES, ids=lambda value: str(value)[:50])
def test_every_way_of_cutting_the_text_reads_the_same(form, written, text, calls):
    assert read(form, [written]) == (text, calls)
    assert read(form, list(written)) == (text, calls)
    for seed in range(20):
        cuts = sorted(random.Random(seed).choices(range(len(written) + 1), k=4))
        assert read(form, [written[a:b] for a, b in itertools.pairwise([0, *cuts, len(written)])]) == (text, calls)


@pytest.mark.parametrize(
    ("form", "whole", "arguments"),
    [
        (HERMES, f"<tool_call>\n{GET}\n</tool_call>\n<tool_call>\n{GET}\n</tool_call>", GET_ARGUMENTS),
        (LLAMA3, f"{LLAMA_GET}; {LLAMA_GET}", GET_ARGUMENTS),
        (MISTRAL, f"[TOOL_CALLS][{GET}, {GET}]", GET_ARGUMENTS),
    ],
    ids=["hermes", "llama 3", "mistral"],
)
def test_wherever_a_forced_answer_is_cut_it_holds_no_text(form, whole, arguments):
    for length in range(len(whole) + 1):
        text, calls = read(form, list(whole[:length]), forced=True)
        assert text == ""
        assert len(calls) <= 2
        assert all(arguments.startswith(given) for _, given in calls)
        assert read(form, [whole[:length]], forced=True) == (text, calls)
    assert calls == [("get", arguments)] * 2


@pytest.mark.parametrize(("form", "written", "text", "calls"), CASES, ids=lambda value: str(value)[:50])
def test_a_whole_call_reads_the_same_while_it_is_written(form, written, text, calls):
    if calls and not text:
        assert [call for call in read(form, list(written), live=True)[1] if "\n" not in call[1]] == [
            call for call in calls if "\\n" not in call[1]
        ]


MARKS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", '{"name": "get"', '"arguments": ']
WORDS = ['"name"', '"parameters"', '"add"', "1", "null", "é", "get", *'{}[]"\\,:;\n ']
FRAGMENTS = st.lists(st.sampled_from(MARKS + WORDS), max_size=25)


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(list(ToolFormat)), FRAGMENTS, st.randoms(use_true_random=False))
def test_no_text_breaks_a_parser_and_pieces_do_not_matter(form, fragments, chance):
    written = "".join(fragments)
    whole = read(form, [written])
    assert read(form, list(written)) == whole
    cuts = sorted(chance.choices(range(len(written) + 1), k=5))
    assert read(form, [written[a:b] for a, b in itertools.pairwise([0, *cuts, len(written)])]) == whole
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in whole[1]), "calls are whole"
    if not whole[1] and form is ToolFormat.HERMES:
        assert whole[0] == written, "without calls the text is left as it is"


@settings(deadline=None)
@given(
    st.sampled_from(list(ToolFormat)),
    st.dictionaries(st.text(max_size=5), st.recursive(st.none() | st.integers() | st.text(), st.lists), max_size=4),
    st.booleans(),
)
def test_any_arguments_come_back(form, arguments, compact):
    written = json.dumps(
        {"name": "get", form.value.arguments: arguments},
        ensure_ascii=compact,
        separators=(",", ":") if compact else None,
    )
    surrounded = {
        ToolFormat.HERMES: f"<tool_call>{written}</tool_call>",
        ToolFormat.LLAMA3: written,
        ToolFormat.MISTRAL: f"[TOOL_CALLS][{written}]",
    }[form]
    text, calls = read(form, list(surrounded))
    assert text == ""
    ((name, given_arguments),) = calls
    assert name == "get"
    assert json.loads(given_arguments) == arguments
