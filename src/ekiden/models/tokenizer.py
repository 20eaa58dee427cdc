"""Text to token ids and back, with the ``tokenizers`` package.

Rules of this file:

1. The name of a special token in a text is plain text unless the caller says ``parse_special``, so that what a user
   writes cannot begin a turn. A rendered chat holds special tokens and users' text: :meth:`Tokenizer.protect` marks
   the users' text before the template renders it.
2. Decoding works on bytes: each token has its own (:meth:`Tokenizer.token_bytes`), and a text is their concatenation
   read as UTF-8. Streamed and whole decoding therefore agree, and a stream holds an unfinished character back.
3. Encoding uses the package's batch call, which releases the GIL (the single call does not), so that encoding a huge
   body on one thread does not stop the others.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import tokenizers

from ekiden.models.errors import ModelError, one_line

# Two noncharacters, which Unicode reserves for use inside programs.
GUARD = "\ufdd0\ufdd1"

# These tokens end a turn in every model where they are special, also when its configuration does not say so.
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>")


_NOTHING = "(?!)"
"""A regular expression that matches nowhere."""
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + index): byte for index, byte in enumerate(sorted(set(range(256)).difference(_PRINTABLE)))
}
"""The printable character that GPT-2 uses for a byte -> that byte."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokenizer:
    """A model's tokenizer, as `tokenizer_json.py` or `tokenizer_gguf.py` reads it; safe to use from several threads.

    ``rest`` encodes the text after a special token; it differs from ``backend`` where a model treats the start of a
    text in another way. ``byte_level`` says how the vocabulary writes bytes: each as one printable character (GPT-2);
    otherwise as SentencePiece does, with ``▁`` for a space and, with ``byte_fallback``, ``<0xAB>`` for a byte.
    ``added`` maps the ids of added tokens to their text, ``special`` the text of special tokens to their ids.
    ``patterns`` are regular expressions that find the special tokens in a text, with the spaces that a token absorbs.
    ``bos_token`` and ``eos_token`` are their texts for chat templates, empty where the model has none.
    """

    backend: tokenizers.Tokenizer
    rest: tokenizers.Tokenizer
    byte_level: bool = False
    byte_fallback: bool = False
    strips_space: bool = False
    added: Mapping[int, str]
    special: Mapping[str, int]
    patterns: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    bos_token_id: int | None = None
    eos_token_ids: frozenset[int]
    vocab_size: int
    bos_token: str = ""
    eos_token: str = ""

    def __post_init__(self) -> None:
        for backend in (self.backend, self.rest):
            backend.encode_special_tokens = True  # this class finds special tokens itself, and only when asked to
            backend.no_truncation()
            backend.no_padding()

    @cached_property
    def special_ids(self) -> frozenset[int]:
        return frozenset(self.special.values())

    @property
    def adds_bos(self) -> bool:
        return self.bos_token_id is not None and self.bos_token_id in self.prefix

    @cached_property
    def _special_token(self) -> re.Pattern[str]:
        """Finds the special tokens that no mark precedes, the longest first."""
        names = sorted(self.special, key=lambda name: (-len(name), name))
        found = (f"(?<!{GUARD})(?:{self.patterns.get(name, re.escape(name))})" for name in names)
        return re.compile("|".join(found) or _NOTHING)

    @cached_property
    def _special_name(self) -> re.Pattern[str]:
        """Finds where the name of a special token begins."""
        names = "|".join(map(re.escape, self.special))
        return re.compile(f"(?=(?:{names or _NOTHING}))")

    def encode(self, text: str, *, add_special_tokens: bool, parse_special: bool = False) -> list[int]:
        """The token ids of ``text``.

        Args:
            add_special_tokens: add what the model's own tokenizer adds at the beginning and the end (BOS, for models
                that use one). A BOS that the text already begins with (``parse_special``) is not repeated.
            parse_special: text such as ``<|im_end|>`` becomes that token, except where :meth:`protect` marked it.
        """
        return self.encode_batch([text], add_special_tokens=add_special_tokens, parse_special=parse_special)[0]

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool, parse_special: bool = False
    ) -> list[list[int]]:
        """As :meth:`encode` for each text; plain texts (without ``parse_special``) are encoded on several cores."""
        batch = [self._encode_parsed(text) for text in texts] if parse_special else _encode(self.backend, texts)
        return [self._with_surroundings(ids) for ids in batch] if add_special_tokens else batch

    def protect(self, text: str) -> str:
        """``text`` with a mark before each special token in it, so that ``parse_special`` leaves it as text.

        The mark is two noncharacters (U+FDD0 U+FDD1), which encoding removes. Use it on what users wrote, before a
        chat template joins that with its own special tokens.
        """
        return self._special_name.sub(GUARD, text)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True, continuation: bool = False) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD.

        Args:
            skip_special_tokens: leave out the text of special tokens.
            continuation: the ids continue a text, so a SentencePiece model's leading space is kept.
        """
        skipped = self.special_ids if skip_special_tokens else frozenset()
        data = b"".join(self.token_bytes(token_id) for token_id in ids if token_id not in skipped)
        text = data.decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_space and not continuation else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token adds to a text; empty for an id without a token (a padded vocabulary)."""
        added = self.added.get(token_id)
        if added is not None:
            return added.encode()
        piece = self.backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        if piece is None:
            return b""
        if self.byte_level:
            # A token with other characters stands for its own text.
            own = _BYTE_OF.keys() >= set(piece)
            return bytes(map(_BYTE_OF.__getitem__, piece)) if own else piece.encode()
        if self.byte_fallback and _BYTE_TOKEN.fullmatch(piece):
            return bytes([int(piece[3:5], 16)])
        return piece.replace("▁", " ").encode()

    def ids_without_token(self, num_ids: int) -> list[int]:
        """Those of the ids below ``num_ids`` that stand for no token. A model's head may have more rows than its
        vocabulary has entries, and a vocabulary may have gaps."""
        tail = list(range(self.vocab_size, num_ids))
        if self.backend.get_vocab_size(with_added_tokens=True) == self.vocab_size:
            return tail
        known = {*self.backend.get_vocab(with_added_tokens=True).values(), *self.added}
        return [token for token in range(min(self.vocab_size, num_ids)) if token not in known] + tail

    def token_to_id(self, text: str) -> int | None:
        """The id of the token whose text in the vocabulary is ``text``."""
        return self.backend.token_to_id(text)

    def _with_surroundings(self, ids: list[int]) -> list[int]:
        prefix = () if ids[: len(self.prefix)] == list(self.prefix) else self.prefix
        return [*prefix, *ids, *self.suffix]

    def _encode_parsed(self, text: str) -> list[int]:
        """The ids of special tokens, and of the plain text between them, split as the package itself splits."""
        ids: list[int] = []
        backend = self.backend
        for piece, special_ids in self._pieces(text):
            if piece:
                ids += _encode(backend, [piece])[0]
            if piece or special_ids:
                backend = self.rest
            ids += special_ids
        return ids

    def _pieces(self, text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Each plain text, without marks, with the id of the special token after it, if one follows."""
        position = 0
        for match in self._special_token.finditer(text):
            name = match.group()
            special_id = self.special[name if name in self.special else name.strip()]
            yield text[position : match.start()].replace(GUARD, ""), (special_id,)
            position = match.end()
        yield text[position:].replace(GUARD, ""), ()


def _encode(backend: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in backend.encode_batch_fast(list(texts), add_special_tokens=False)]


def failure(source: str, error: Exception) -> ModelError:
    """The error for any exception of the ``tokenizers`` package, which raises ``Exception`` itself."""
    return ModelError(f"{source}: the tokenizer cannot be built: {one_line(error)}; fetch or convert the model again")
