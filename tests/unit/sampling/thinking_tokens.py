"""The toy tokenizer with the marks of reasoning as tokens of their own."""

from dataclasses import replace

from tokenizers import AddedToken

from ekiden.models.tokenizer import Tokenizer
from tests.api.scripted import VOCAB_SIZE, make_tokenizer

OPEN, CLOSE = VOCAB_SIZE, VOCAB_SIZE + 1
SIZE = VOCAB_SIZE + 2


def thinking_tokenizer(*, special: bool) -> Tokenizer:
    """``special``: as Mistral's models have the marks; else as Qwen3's, where they are ordinary added tokens."""
    tokenizer = make_tokenizer()
    marks = {"<think>": OPEN, "</think>": CLOSE}
    tokenizer.backend.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in marks])
    return replace(
        tokenizer,
        added={**tokenizer.added, **{token: mark for mark, token in marks.items()}},
        special={**tokenizer.special, **(marks if special else {})},
        vocab_size=SIZE,
    )
