"""Log-probability entries say of the text what was given out, and nothing of what was not."""

import itertools
from typing import Any

import pytest

from tests.api.conftest import Memory
from tests.api.scripted import END, LONG, say
from tests.known_faults.conftest import CHAT, PATHS, own, streamed, text_of, whole

TOKENS = [*say("x "), LONG["abcSTO"], LONG["Pdef"], LONG["hello"], LONG[" world"], *say("🌶️é end"), END]
WRITTEN = "x abcSTOPdefhello world🌶️é end"
STOPS = [
    ["STOP"], ["cSTOPdefhel"], ["STOPd", "STO"], ["bc"], ["x"], ["x abcSTOPde"], ["🌶"], ["\ufe0f"], ["é"], ["é "],
    ["hell"], ["end!"], ["none"],
]  # fmt: skip


def written_by(path: str, choice: dict[str, Any]) -> bytes:
    """The text that a choice's entries make."""
    told = choice["logprobs"]
    if told is None:
        return b""
    if path == CHAT:
        return bytes(itertools.chain.from_iterable(entry["bytes"] for entry in told["content"]))
    return b"".join(
        name.removeprefix("bytes:").encode().decode("unicode_escape").encode("latin-1")
        if name.startswith("bytes:")
        else name.encode()
        for name in told["tokens"]
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("stop", STOPS, ids=repr)
async def test_own_08_the_entries_of_each_piece_are_its_text(
    memory: Memory, path: str, include: bool, stop: list[str]
) -> None:
    memory.engine.script = lambda request: TOKENS
    fields: dict[str, Any] = {"stop": stop, "include_stop_str_in_output": include}
    fields |= {"logprobs": True, "top_logprobs": 1} if path == CHAT else {"logprobs": 1}
    found = min(((WRITTEN.index(each), len(each)) for each in stop if each in WRITTEN), default=(len(WRITTEN), 0))
    expected = WRITTEN[: found[0] + (found[1] if include else 0)]
    answer = (await whole(memory.http, path, **fields))["choices"][0]
    assert text_of(path, answer) == written_by(path, answer).decode() == expected
    chunks = own(await streamed(memory.http, path, **fields))
    assert "".join(text_of(path, choice) for choice in chunks) == expected
    for choice in chunks:
        assert written_by(path, choice).decode() == text_of(path, choice)
    for of in (answer, *chunks):
        assert path == CHAT or of["logprobs"] is None or names_are_among_the_best(of["logprobs"])


def names_are_among_the_best(logprobs: dict[str, Any]) -> bool:
    return all(name in best for name, best in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True))


async def test_own_08_an_answer_that_ends_inside_a_character_gives_all_its_entries(memory: Memory) -> None:
    memory.engine.script = lambda request: [*say("a"), 0xC3, 0xC3, END]
    answer = (await whole(memory.http, CHAT, logprobs=True))["choices"][0]
    assert answer["message"]["content"] == "a\ufffd\ufffd"
    assert written_by(CHAT, answer) == b"a\xc3\xc3"
    chunks = own(await streamed(memory.http, CHAT, logprobs=True))
    assert b"".join(written_by(CHAT, choice) for choice in chunks) == b"a\xc3\xc3"
    assert "".join(text_of(CHAT, choice) for choice in chunks) == "a\ufffd\ufffd"
