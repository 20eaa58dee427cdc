"""Reasoning comes apart from the answer in the same way, however the text is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekiden.models.text import IncrementalText
from ekiden.models.thinking import ThinkingSplitter
from ekiden.state.sampling_params import Thinking
from tests.api.scripted import END, make_tokenizer, say

MAY = Thinking(opening="<think>", closing="</think>")
BEGUN = Thinking(opening="<think>", closing="</think>", begun=True)


def split(thinking: Thinking, pieces: list[str]) -> tuple[str, str]:
    splitter = ThinkingSplitter(thinking)
    parts = [*(splitter.feed(piece) for piece in pieces), splitter.finish()]
    return "".join(reasoning for reasoning, _ in parts), "".join(answer for _, answer in parts)


CASES = [
    (MAY, "<think>\nso\n</think>\n\nHello", "so", "Hello"),
    (MAY, "\n <think>so</think>Hello\n", "so", "Hello\n"),
    (MAY, "<think>\n\n</think>\n\n  Hello", "", "  Hello"),
    (MAY, "Hello <think>so</think>", "", "Hello <think>so</think>"),
    (MAY, "  Hello", "", "  Hello"),
    (MAY, "<thing>", "", "<thing>"),
    (MAY, "<thin", "", "<thin"),
    (MAY, "", "", ""),
    (MAY, "<think>a\n</thin\n", "a\n</thin", ""),
    (MAY, "<think>a < b </thi </think>c</think>", "a < b </thi ", "c</think>"),
    (MAY, "<think>a<think>b</think>c", "a<think>b", "c"),
    (BEGUN, "so\n\nit\n</think>\n\nHello", "so\n\nit", "Hello"),
    (BEGUN, "<think>so</think>Hello", "so", "Hello"),
    (BEGUN, "</think>Hello", "", "Hello"),
    (BEGUN, "so", "so", ""),
    (BEGUN, "<th", "<th", ""),
    (BEGUN, "<th</think>x", "<th", "x"),
]


@pytest.mark.parametrize(("thinking", "text", "reasoning", "answer"), CASES)
def test_cases_whole_and_cut_at_every_place(thinking: Thinking, text: str, reasoning: str, answer: str) -> None:
    assert split(thinking, [text]) == (reasoning, answer)
    assert split(thinking, list(text)) == (reasoning, answer)
    for at in range(len(text)):
        assert split(thinking, [text[:at], text[at:]]) == (reasoning, answer)


@given(st.text(alphabet="<>/think\n a", max_size=60), st.lists(st.integers(0, 60)), st.sampled_from([MAY, BEGUN]))
def test_pieces_do_not_matter(text: str, cuts: list[int], thinking: Thinking) -> None:
    whole = f"<think>{text}</think>{text}" if len(cuts) % 2 else text
    edges = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
    assert split(thinking, [whole[a:b] for a, b in pairwise(edges)]) == split(thinking, [whole])


def test_nothing_given_out_can_still_become_a_mark_or_a_line_end_before_it() -> None:
    splitter = ThinkingSplitter(BEGUN)
    given_out = ""
    for character in "abc\n\n</thinx\n</think>":
        given_out += splitter.feed(character)[0]
        assert not given_out.endswith("\n")
        assert "</thin" not in given_out or "</thinx" in given_out
    assert given_out == "abc\n\n</thinx"


class TestStops:
    """Stop strings are looked for in the answer alone."""

    def run(self, text: str, thinking: Thinking | None, stop: str = "stop") -> tuple[str, str, str | None]:
        incremental = IncrementalText(make_tokenizer(), (stop,), thinking=thinking)
        reasoning = answer = ""
        for token in say(text):
            delta = incremental.feed(token)
            reasoning, answer = reasoning + delta.reasoning, answer + delta.text
            if delta.stopped:
                return reasoning, answer, delta.stopped
        rest = incremental.rest()
        return reasoning + rest.reasoning, answer + rest.text, None

    def test_a_stop_string_in_the_reasoning_stops_nothing(self) -> None:
        assert self.run("<think>I stop here</think>Go on, stop it", MAY) == ("I stop here", "Go on, ", "stop")
        assert self.run("I stop here</think>Go on, stop it", BEGUN) == ("I stop here", "Go on, ", "stop")
        assert self.run("<think>I stop here</think>", None) == ("", "<think>I ", "stop")

    def test_a_stop_string_does_not_reach_over_the_closing_mark(self) -> None:
        assert self.run("st</think>op", BEGUN) == ("st", "op", None)
        assert self.run("x</think>y", BEGUN, stop="</think>") == ("x", "y", None)


def test_special_tokens_are_shown_only_as_marks() -> None:
    tokenizer = make_tokenizer()
    marks = Thinking(opening="<|im_start|>", closing="<|bos|>")
    text = IncrementalText(tokenizer, thinking=marks)
    tokens = [*tokenizer.encode("<|im_start|>so<|bos|>yes", add_special_tokens=False, parse_special=True), END]
    deltas = [text.feed(token) for token in tokens]
    assert "".join(delta.reasoning for delta in deltas) == "so"
    assert "".join(delta.text for delta in deltas) == "yes"
