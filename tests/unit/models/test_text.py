"""Stop strings and held-back text, against the whole text as the oracle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekiden.models.text import IncrementalText, TextDelta
from ekiden.models.tokenizer import Tokenizer
from ekiden.models.tokenizer_json import read_tokenizer

TEXTS = st.text(alphabet="ab\n é日🌶️👩\u200d", max_size=40)


@pytest.fixture(scope="module")
def tokenizer(reference_dir) -> Tokenizer:
    """One token a byte, so that every character of more than one byte spans tokens."""
    return read_tokenizer(reference_dir / "llama" / "tokenizer.json")


class Pieces:
    """A tokenizer whose tokens are given texts: token ``i`` is ``pieces[i]``."""

    special_ids: frozenset[int] = frozenset()

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]


def run(
    pieces: list[str] | list[bytes], stop: tuple[str, ...], include_stop: bool = False, min_tokens: int = 0
) -> tuple[list[str], str | None]:
    """The deltas given out, and the stop that ended the text."""
    data = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    text = IncrementalText(Pieces(data), stop, include_stop, min_tokens=min_tokens)  # type: ignore[arg-type]
    deltas = []
    for token_id in range(len(data)):
        delta = text.feed(token_id)
        deltas.append(delta.text)
        if delta.stopped is not None:
            return deltas, delta.stopped
    return [*deltas, text.finish()], None


def oracle(pieces: list[str], stop: tuple[str, ...], include_stop: bool, min_tokens: int = 0) -> tuple[str, str | None]:
    """The same rules over the whole text, token by token, by plain searching."""
    whole = ""
    free = len("".join(pieces[:min_tokens]))
    for piece in pieces:
        whole += piece
        found = [
            (begin, len(text), text)
            for text in stop
            for begin in range(max(0, free + 1 - len(text)), len(whole))
            if whole.startswith(text, begin)
        ]
        if found:
            begin, length, text = min(found)
            return whole[: begin + length if include_stop else begin], text
    return whole, None


@given(
    pieces=st.lists(st.text(alphabet="abc", min_size=0, max_size=4), max_size=12),
    stop=st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4).map(tuple),
    include_stop=st.booleans(),
    min_tokens=st.integers(0, 8),
)
def test_deltas_joined_are_the_whole_text_up_to_the_stop(pieces, stop, include_stop, min_tokens):
    deltas, stopped = run(pieces, stop, include_stop, min_tokens)
    assert ("".join(deltas), stopped) == oracle(pieces, stop, include_stop, min_tokens)


def test_stops_before_min_tokens_are_passed_over():
    """As vLLM: no stop ends in the text of the first ``min_tokens`` tokens, but one may begin there."""
    assert run(["a", "X", "b", "X", "c"], ("X",), min_tokens=2) == (["a", "X", "b", ""], "X")
    assert run(["a", "S", "T", "OP", "c"], ("STOP",), min_tokens=3) == (["a", "", "", ""], "STOP")
    assert run(["STOP", "x"], ("STOP",), min_tokens=1) == (["STOP", "x", ""], None)
    assert run(["aba", "ba"], ("aba",), min_tokens=1) == (["ab", ""], "aba")
    assert run(["STOP"], ("STOP",), min_tokens=9) == (["STOP", ""], None)


@given(
    pieces=st.lists(st.text(alphabet="ab", min_size=0, max_size=4), max_size=12),
    stop=st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=3).map(tuple),
)
def test_nothing_given_out_can_still_become_part_of_a_stop(pieces, stop):
    text = IncrementalText(Pieces([piece.encode() for piece in pieces]), stop)  # type: ignore[arg-type]
    given_out, whole = "", ""
    for token_id, piece in enumerate(pieces):
        delta = text.feed(token_id)
        given_out, whole = given_out + delta.text, whole + piece
        if delta.stopped is not None:
            break
        held = whole[len(given_out) :]
        assert whole == given_out + held
        longest = max((size for each in stop for size in range(len(each)) if whole.endswith(each[:size])), default=0)
        assert len(held) == longest  # exactly what may begin a stop, and no more


@given(text=TEXTS, stop=st.lists(st.text(alphabet="ab é日🌶", min_size=1, max_size=4), max_size=3).map(tuple))
def test_stops_match_characters_that_span_tokens(tokenizer, text, stop):
    incremental = IncrementalText(tokenizer, stop)
    deltas, stopped = [], None
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        delta = incremental.feed(token_id)
        deltas.append(delta.text)
        stopped = delta.stopped
        if stopped is not None:
            break
    else:
        deltas.append(incremental.finish())
    assert ("".join(deltas), stopped) == oracle(list(text), stop, False)
    assert not any("\ufffd" in delta for delta in deltas)


class TestKnownFaults:
    """PB-21: no part of a stop is ever sent; overlapping and mid-token stops."""

    def test_stop_over_three_tokens(self):
        assert run(["Hello wor", "ld, he", "re"], ("rld, h",)) == (["Hello wo", ""], "rld, h")

    def test_stop_is_a_whole_token(self):
        assert run(["a", "END", "b"], ("END",)) == (["a", ""], "END")

    def test_stop_ends_mid_token(self):
        assert run(["xx", "yEzz"], ("yE",)) == (["xx", ""], "yE")

    def test_stop_at_the_very_start(self):
        assert run(["Hi"], ("H",)) == ([""], "H")

    def test_one_stop_is_the_beginning_of_another(self):
        assert run(["a", "b", "c"], ("abc", "ab")) == (["", ""], "ab")
        assert run(["abc"], ("abc", "ab")) == ([""], "ab")

    def test_the_stop_that_begins_first_wins_within_a_token(self):
        assert run(["xaby"], ("ab", "xaby")) == ([""], "xaby")

    def test_emoji_stop(self):
        pieces = ["a🌶️b".encode()[i : i + 1] for i in range(len("a🌶️b".encode()))]
        deltas, stopped = run(pieces, ("🌶",))
        assert ("".join(deltas), stopped) == ("a", "🌶")

    def test_a_beginning_that_comes_to_nothing_is_given_out(self):
        assert run(["ST", "O", "x"], ("STOP",)) == (["", "", "STOx", ""], None)
        assert run(["a", "ST"], ("STOP",)) == (["a", "", "ST"], None)

    def test_included_stop(self):
        assert run(["abcd"], ("bc",), include_stop=True) == (["abc"], "bc")

    def test_after_a_stop_nothing_comes(self):
        text = IncrementalText(Pieces([b"ab", b"c"]), ("b",))  # type: ignore[arg-type]
        assert text.feed(0) == TextDelta(text="a", stopped="b")
        assert text.feed(1) == TextDelta(text="", stopped="b")
        assert text.finish() == ""

    def test_an_empty_stop_is_refused(self):
        with pytest.raises(ValueError, match="empty string"):
            run(["a"], ("a", ""))

    def test_a_stop_of_the_replacement_character_is_not_sent_either(self):
        assert run([b"a", "é".encode()[:1]], ("\ufffd",)) == (["a", "", ""], None)


def test_an_unfinished_character_comes_at_the_end_as_a_replacement():
    assert run([b"a", "日".encode()[:2]], ()) == (["a", "", "\ufffd"], None)


def test_long_repetitive_stop_costs_its_length_once():
    stop = "a" * 10_000 + "b"
    deltas, stopped = run(["a" * 100] * 150, (stop,))
    assert stopped is None
    assert len("".join(deltas)) == 15_000
