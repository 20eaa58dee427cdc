"""Text to token ids and back, over the ``tokenizers`` package.

Rules of this file:

1. A special token in a text is text, unless the caller says ``parse_special``: what a user writes cannot open a turn.
   A rendered chat mixes both; :meth:`Tokenizer.protect` marks the user's part before it goes into the template.
2. Decoding is a matter of bytes: each token has its own (:meth:`Tokenizer.token_bytes`), a text is their sum read as
   UTF-8. So streamed and whole decoding agree by construction, and half a character is held, never shown.
3. Encoding goes through the batch call, which releases the GIL (the single one does not), so a huge body on one
   thread does not stop the others.
"""

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import tokenizers

from ekiden.models.errors import ModelError

# Two noncharacters, which Unicode sets aside for use inside programs.
GUARD = "\ufdd0\ufdd1"

# Tokens that end a turn wherever they are special, whatever the configuration remembers to say.
END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
)


class PieceKind(Enum):
    """How a token's text in the vocabulary stands for its bytes."""

    BYTE_LEVEL = "byte-level"
    """Every byte is one printable character (GPT-2)."""
    SENTENCEPIECE = "sentencepiece"
    """``▁`` is a space; ``<0xAB>`` is a byte where there is byte fallback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    """What a loader finds out; see `tokenizer_json.py` and `tokenizer_gguf.py`.

    ``rest`` encodes what follows a special token, where that differs from the start of a text. ``patterns`` are
    regular expressions of the special tokens in a text, with the spaces that a token takes in.
    """

    backend: tokenizers.Tokenizer
    rest: tokenizers.Tokenizer
    kind: PieceKind
    byte_fallback: bool
    strips_space: bool
    added: Mapping[int, str]
    special: Mapping[str, int]
    patterns: Mapping[str, str]
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    vocab_size: int


class Tokenizer:
    """A model's tokenizer; immutable, and safe to use from several threads at once.

    Made by :func:`ekiden.models.tokenizer_json.read_tokenizer` or
    :func:`ekiden.models.tokenizer_gguf.tokenizer_from_metadata`.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._parts = parts
        for backend in (parts.backend, parts.rest):
            backend.encode_special_tokens = True  # special tokens are found here, and only when asked for
            backend.no_truncation()
            backend.no_padding()
        self.vocab_size = parts.vocab_size
        self.bos_token_id = parts.bos_token_id
        self.eos_token_ids = parts.eos_token_ids
        self.special_ids = frozenset(parts.special.values())
        self.adds_bos = parts.bos_token_id is not None and parts.bos_token_id in parts.prefix
        self._added_bytes = {token_id: text.encode() for token_id, text in parts.added.items()}
        self._split, self._start = _special_patterns(parts)

    def encode(self, text: str, *, add_special_tokens: bool, parse_special: bool = False) -> list[int]:
        """Token ids of ``text``.

        Args:
            add_special_tokens: begin and end as the model's own tokenizer does (BOS, for models that take one). A
                BOS that the text already begins with (``parse_special``) is not doubled.
            parse_special: text such as ``<|im_end|>`` becomes that token, except where :meth:`protect` marked it.
        """
        ids = self._encode_parsed(text) if parse_special else _encode(self._parts.backend, [text])[0]
        if add_special_tokens:
            ids = self._with_prefix(ids)
        return ids

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool, parse_special: bool = False
    ) -> list[list[int]]:
        """:meth:`encode` of each text, on several cores where the texts are plain."""
        if parse_special:
            return [self.encode(text, add_special_tokens=add_special_tokens, parse_special=True) for text in texts]
        batch = _encode(self._parts.backend, list(texts))
        return [self._with_prefix(ids) for ids in batch] if add_special_tokens else batch

    def protect(self, text: str) -> str:
        """``text`` with a mark before each special token in it, so that ``parse_special`` leaves it as text.

        The mark is two noncharacters (U+FDD0 U+FDD1); encoding takes it out again. Use it on what users wrote
        before a chat template joins it with the template's own special tokens.
        """
        return text if self._start is None else self._start.sub(GUARD, text)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True, continuation: bool = False) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD.

        Args:
            skip_special_tokens: leave the text of special tokens out.
            continuation: the ids continue a text, so that a leading space of SentencePiece models is kept.
        """
        skipped = self.special_ids if skip_special_tokens else frozenset()
        data = b"".join(self.token_bytes(token_id) for token_id in ids if token_id not in skipped)
        text = data.decode("utf-8", "replace")
        if self._parts.strips_space and not continuation:
            return text.removeprefix(" ")
        return text

    def decode_stream(self, skip_special_tokens: bool = True, shown: frozenset[int] = frozenset()) -> "DecodeStream":
        """A decoder of generated ids, one at a time; its pieces joined are ``decode(ids, continuation=True)``.

        Special tokens that are among ``shown`` are not skipped.
        """
        return DecodeStream(self, skip_special_tokens, shown)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token adds to a text; empty for an id without a token (a padded vocabulary)."""
        added = self._added_bytes.get(token_id)
        if added is not None:
            return added
        if not 0 <= token_id < self.vocab_size:
            return b""
        piece = self._parts.backend.id_to_token(token_id)
        if piece is None:
            return b""
        if self._parts.kind is PieceKind.BYTE_LEVEL:
            return _byte_level_bytes(piece)
        if self._parts.byte_fallback and _BYTE_TOKEN.fullmatch(piece):
            return bytes([int(piece[3:5], 16)])
        return piece.replace("▁", " ").encode()

    def token_to_id(self, text: str) -> int | None:
        """The id of the token whose text in the vocabulary is ``text``."""
        return self._parts.backend.token_to_id(text)

    def _with_prefix(self, ids: list[int]) -> list[int]:
        prefix = list(self._parts.prefix)
        if prefix and ids[: len(prefix)] == prefix:
            prefix = []
        return [*prefix, *ids, *self._parts.suffix]

    def _encode_parsed(self, text: str) -> list[int]:
        """Special tokens by their ids, and what is between them as plain text, as the package itself splits."""
        ids: list[int] = []
        backend = self._parts.backend
        for piece, special_id in self._pieces(text):
            if piece:
                ids += _encode(backend, [piece])[0]
                backend = self._parts.rest
            if special_id is not None:
                ids.append(special_id)
                backend = self._parts.rest
        return ids

    def _pieces(self, text: str) -> Iterator[tuple[str, int | None]]:
        position = 0
        if self._split is not None:
            for match in self._split.finditer(text):
                yield text[position : match.start()].replace(GUARD, ""), self._special_id(match)
                position = match.end()
        yield text[position:].replace(GUARD, ""), None

    def _special_id(self, match: re.Match[str]) -> int:
        found = match.group()
        exact = self._parts.special.get(found)
        return exact if exact is not None else self._parts.special[found.strip()]


class DecodeStream:
    """Text of a growing row of ids. Holds back at most the three bytes of an unfinished character."""

    def __init__(
        self, tokenizer: Tokenizer, skip_special_tokens: bool = True, shown: frozenset[int] = frozenset()
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped: frozenset[int] = tokenizer.special_ids - shown if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def step(self, token_id: int) -> str:
        """The text that ``token_id`` completes; empty while a character is unfinished."""
        if token_id in self._skipped:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """What is left when no token follows: the unfinished character as U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)


_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


def _special_patterns(parts: TokenizerParts) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
    """Two expressions: special tokens not preceded by the mark (longest first), and the places where one begins."""
    if not parts.special:
        return None, None
    names = sorted(parts.special, key=lambda name: (-len(name), name))
    guarded = f"(?<!{GUARD})"
    split = "|".join(f"{guarded}(?:{parts.patterns.get(name, re.escape(name))})" for name in names)
    start = "|".join(re.escape(name) for name in names)
    return re.compile(split), re.compile(f"(?=(?:{start}))")


def _encode(backend: tokenizers.Tokenizer, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte -> the byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_level_alphabet()


def _byte_level_bytes(piece: str) -> bytes:
    try:
        return bytes(_ALPHABET[character] for character in piece)
    except KeyError:
        return piece.encode()  # a token outside the alphabet is its own text


def failure(source: str, error: Exception) -> ModelError:
    """The package raises bare exceptions; here they get the file's name and one line."""
    return ModelError(f"{source}: the tokenizer cannot be built: {' '.join(str(error).split())[:200]}")
