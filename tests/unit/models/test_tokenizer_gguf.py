"""Tokenizers built from GGUF metadata: what is built is exact, and what cannot be is refused."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekiden.models.errors import ModelError
from ekiden.models.load import describe
from ekiden.models.resolve import resolve
from ekiden.models.tokenizer import Tokenizer
from ekiden.models.tokenizer_gguf import tokenizer_from_metadata
from tests.unit.models.gguf_files import metadata, write_gguf


def loaded(tmp_path, **changes):
    return describe(resolve(str(write_gguf(tmp_path / "m.gguf", metadata(**changes))), tmp_path / "cache"))


def byte_level(pre: str | None, **changes: object) -> Tokenizer:
    keys = metadata(tokenizer__ggml__pre=pre, **changes)
    keys["tokenizer.ggml.token_type"] = np.array(keys["tokenizer.ggml.token_type"])
    return tokenizer_from_metadata("m.gguf", keys, [])


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    """The pieces into which the splitting rule cuts a text, with byte stand-ins turned back."""
    splitter = tokenizer.backend.pre_tokenizer
    return [text[begin:end] for _, (begin, end) in splitter.pre_tokenize_str(text)]


class TestSplitting:
    """The published rules, on texts that tell them apart."""

    TEXT = "I'LL pay 12345 yen\n\n  now!\r\nABCdef  "

    @pytest.mark.parametrize(
        ("pre", "pieces"),
        [
            ("gpt-2", "I|'|LL| pay| 12345| yen|\n\n | now|!|\r|\n|ABCdef|  "),
            ("smollm", "I|'|LL| pay| |1|2|3|4|5| yen|\n\n | now|!|\r|\n|ABCdef|  "),
            ("llama-bpe", "I|'LL| pay| |123|45| yen|\n\n| | now|!\r\n|ABCdef|  "),
            ("qwen2", "I|'LL| pay| |1|2|3|4|5| yen|\n\n| | now|!\r\n|ABCdef|  "),
            ("tekken", "I|'LL| pay| |1|2|3|4|5| yen|\n\n| | now|!\r\n|ABCdef|  "),
        ],
    )
    def test_rule(self, pre, pieces):
        assert "|".join(words(byte_level(pre), self.TEXT)) == pieces

    def test_tekken_splits_where_case_turns(self):
        assert words(byte_level("tekken"), "fooBar") == ["foo", "Bar"]
        assert words(byte_level("qwen2"), "fooBar") == ["fooBar"]

    @pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken"])
    @given(text=st.text(max_size=30))
    def test_nothing_is_lost(self, pre, text):
        import unicodedata

        tokenizer = byte_level(pre)
        wanted = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == wanted

    def test_unknown_rule_is_refused_with_the_way_out(self):
        with pytest.raises(ModelError, match=r"'klingon' is not known here; .*tokenizer\.json"):
            byte_level("klingon")

    @pytest.mark.parametrize(
        ("changes", "assumed"), [({}, "gpt-2"), ({"general__architecture": "qwen2"}, "qwen2")], ids=["llama", "qwen2"]
    )
    @pytest.mark.parametrize("named", [None, "default"])
    def test_without_the_key_a_rule_is_assumed_and_said(self, changes, assumed, named):
        keys = metadata(tokenizer__ggml__pre=named, **changes)
        keys["tokenizer.ggml.token_type"] = np.array(keys["tokenizer.ggml.token_type"])
        warnings: list[str] = []
        tokenizer = tokenizer_from_metadata("m.gguf", keys, warnings)
        assert words(tokenizer, "12") == (["12"] if assumed == "gpt-2" else ["1", "2"])
        assert any("tokenizer.ggml.pre" in warning and repr(assumed) in warning for warning in warnings)

    def test_llama3_takes_whole_words_before_merging(self):
        """``ignore_merges``: a word that is a token is that token, whatever merging would make of it."""
        tokens = [*metadata()["tokenizer.ggml.tokens"], "xy"]
        changes = {
            "tokenizer__ggml__tokens": tokens,
            "tokenizer__ggml__token_type": [*metadata()["tokenizer.ggml.token_type"], 1],
        }
        assert byte_level("llama-bpe", **changes).encode("xy", add_special_tokens=False) == [264]
        assert byte_level("qwen2", **changes).encode("xy", add_special_tokens=False) == [ord("x"), ord("y")]


class TestBeginningAndEnd:
    """PB-43: exactly one BOS where there is one, and never one that the file does not name."""

    CHAT = ({"role": "user", "content": "hi"},)

    def ids(self, description):
        assert description.chat_template is not None
        text = description.chat_template.render(self.CHAT)
        chat = description.tokenizer.encode(text, add_special_tokens=False, parse_special=True)
        return chat, description.tokenizer.encode("hi", add_special_tokens=True)

    def test_adding_bos_and_a_template_that_prints_it(self, tmp_path):
        chat, completion = self.ids(loaded(tmp_path, tokenizer__ggml__add_bos_token=True))
        assert chat.count(256) == 1
        assert chat[0] == 256
        assert completion == [256, 260]

    def test_not_adding_bos_and_the_same_template(self, tmp_path):
        chat, completion = self.ids(loaded(tmp_path))
        assert chat.count(256) == 1
        assert completion == [260]

    def test_no_bos_key(self, tmp_path):
        description = loaded(tmp_path, tokenizer__ggml__bos_token_id=None, tokenizer__ggml__add_bos_token=True)
        chat, completion = self.ids(description)
        assert description.tokenizer.bos_token_id is None
        assert not description.tokenizer.adds_bos
        assert chat[0] == 257
        assert completion == [260]
        assert any("BOS" in warning for warning in description.warnings)

    def test_no_end_key(self, tmp_path):
        tokens = [text.replace("<|im_end|>", "<|other|>") for text in metadata()["tokenizer.ggml.tokens"]]
        description = loaded(tmp_path, tokenizer__ggml__eos_token_id=None, tokenizer__ggml__tokens=tokens)
        assert description.tokenizer.eos_token_ids == frozenset()
        assert any("end only by length" in warning for warning in description.warnings)

    def test_no_template(self, tmp_path):
        description = loaded(tmp_path, tokenizer__chat_template=None)
        assert description.chat_template is None
        assert any("--chat-template" in warning for warning in description.warnings)

    def test_end_tokens(self, tmp_path):
        description = loaded(tmp_path, tokenizer__ggml__eos_token_id=259, tokenizer__ggml__eot_token_id=263)
        assert description.tokenizer.eos_token_ids == {258, 259, 263}  # <|im_end|> by its name

    def test_end_token_added_where_asked(self):
        assert byte_level("smollm", tokenizer__ggml__add_eos_token=True).encode("hi", add_special_tokens=True) == [
            260,
            258,
        ]

    @pytest.mark.parametrize("key", ["bos", "eos", "eot"])
    def test_an_id_outside_the_vocabulary(self, key):
        with pytest.raises(ModelError, match=f"{key}_token_id is 264, outside the vocabulary"):
            byte_level("smollm", **{f"tokenizer__ggml__{key}_token_id": 264})


class TestTokenTypes:
    def test_user_defined_tokens_are_found_in_text_and_control_tokens_are_not(self):
        tokenizer = byte_level("smollm")
        ids = tokenizer.encode("a<tool><s>", add_special_tokens=False)
        assert ids == [ord("a"), 261, *b"<s>"]
        assert tokenizer.decode(ids) == "a<tool><s>"
        assert 261 not in tokenizer.special_ids

    def test_named_tokens_are_special_without_types(self):
        keys = metadata(tokenizer__ggml__token_type=None)
        tokenizer = tokenizer_from_metadata("m.gguf", keys, [])
        assert tokenizer.special_ids == {256, 258}

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"tokenizer__ggml__tokens": None}, "no vocabulary"),
            ({"tokenizer__ggml__merges": None}, "no merges"),
            ({"tokenizer__ggml__merges": ["hi"]}, "not a pair"),
            ({"tokenizer__ggml__merges": ["q zz"]}, "merges needs .zz. and 1 more, not to be found among the 264"),
            ({"tokenizer__ggml__model": "bert"}, r"'bert' is not supported \(gpt2 and llama are\)"),
            ({"tokenizer__ggml__model": None}, "None is not supported"),
        ],
    )
    def test_refused(self, changes, words):
        with pytest.raises(ModelError, match=words):
            byte_level("smollm", **changes)

    def test_types_that_do_not_match_the_tokens(self):
        keys = metadata()
        keys["tokenizer.ggml.token_type"] = np.array([1, 2])
        with pytest.raises(ModelError, match="token_type has 2 entries for 264 tokens"):
            tokenizer_from_metadata("m.gguf", keys, [])


def sentencepiece(pieces: list[str], types: list[int], scores: list[float], **changes: object) -> Tokenizer:
    keys = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    keys |= {name.replace("__", "."): value for name, value in changes.items()}
    return tokenizer_from_metadata("m.gguf", keys, [])


def vocabulary(words: list[str]) -> tuple[list[str], list[int], list[float]]:
    """A Llama-like vocabulary: control tokens, all bytes, then pieces with falling scores."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    types = [2, 3, 3, *[6] * 256, *[1] * len(words)]
    return pieces, types, [0.0] * 259 + [-float(i) for i in range(len(words))]


def by_scores(text: str, pieces: list[str], types: list[int], scores: list[float]) -> list[int]:
    """SentencePiece's own algorithm: join the neighbours whose union scores highest, leftmost first among equals."""
    table = {piece: i for i, (piece, kind) in enumerate(zip(pieces, types, strict=True)) if kind == 1}
    symbols: list[str | None] = list(text.replace(" ", "▁"))

    def following(index: int) -> int | None:
        return next((i for i in range(index + 1, len(symbols)) if symbols[i] is not None), None)

    while True:
        queue: list[tuple[float, int, int]] = []
        for left in range(len(symbols)):
            right = following(left)
            if symbols[left] is None or right is None:
                continue
            union = str(symbols[left]) + str(symbols[right])
            if union in table:
                heapq.heappush(queue, (-scores[table[union]], left, right))
        if not queue:
            break
        _, left, right = queue[0]
        symbols[left], symbols[right] = str(symbols[left]) + str(symbols[right]), None
    ids: list[int] = []
    for symbol in symbols:
        if symbol is not None:
            ids += [table[symbol]] if symbol in table else [3 + byte for byte in symbol.encode()]
    return ids


class TestSentencePiece:
    WORDS = ["▁t", "he", "▁the", "in", "er", "▁a", "re", "▁there", "ing", "th", "▁", "t", "h", "e", "i", "n", "r", "a"]

    @given(text=st.text(alphabet="thernia 日", max_size=24))
    def test_merges_as_the_scores_say(self, text):
        parts = vocabulary(self.WORDS)
        tokenizer = sentencepiece(*parts)
        wanted = by_scores(" " + text, *parts) if text else []
        assert tokenizer.encode(text, add_special_tokens=False) == wanted
        assert tokenizer.decode(wanted) == text

    @given(
        words=st.lists(st.text(alphabet="abc▁", min_size=2, max_size=4), unique=True, max_size=14),
        text=st.text(alphabet="abc ", min_size=1, max_size=20),
    )
    def test_merges_as_the_scores_say_for_any_vocabulary(self, words, text):
        parts = vocabulary([*words, "▁", "a", "b", "c"])
        assert sentencepiece(*parts).encode(text, add_special_tokens=False) == by_scores(" " + text, *parts)

    def test_bos_by_default_and_the_prefix_space_after_it(self):
        tokenizer = sentencepiece(*vocabulary(self.WORDS))
        the = 259 + self.WORDS.index("▁the")
        assert tokenizer.encode("the", add_special_tokens=True) == [1, the]
        assert tokenizer.encode("<s>the", add_special_tokens=True, parse_special=True) == [1, the]
        assert tokenizer.decode([1, the]) == "the"

    def test_without_the_prefix_space(self):
        tokenizer = sentencepiece(*vocabulary(self.WORDS), tokenizer__ggml__add_space_prefix=False)
        ids = tokenizer.encode("the", add_special_tokens=False)
        assert tokenizer.decode(ids) == "the"
        assert b"".join(map(tokenizer.token_bytes, ids)) == b"the"

    def test_pieces_of_equal_score_cannot_be_ranked(self):
        pieces, types, scores = vocabulary(["ab", "bc", "a", "b", "c"])
        scores[260] = scores[259]
        with pytest.raises(ModelError, match="'ab' and 'bc' have the same score"):
            sentencepiece(pieces, types, scores)

    def test_equal_scores_of_pieces_that_merging_never_makes_are_no_matter(self):
        pieces, types, scores = vocabulary(["ab", "xyz", "pqr", "a", "b"])
        scores[260] = scores[261] = scores[259]
        assert sentencepiece(pieces, types, scores).encode("ab", add_special_tokens=False)[-1] == 259

    def test_some_bytes_missing(self):
        pieces, types, scores = vocabulary(["a"])
        types[10] = 1
        with pytest.raises(ModelError, match="255 byte tokens of 256"):
            sentencepiece(pieces, types, scores)

    def test_no_scores(self):
        pieces, types, _ = vocabulary(["a"])
        with pytest.raises(ModelError, match="scores has 1 entries for 260 tokens"):
            sentencepiece(pieces, types, [0.0])
