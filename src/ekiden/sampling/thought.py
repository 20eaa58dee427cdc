"""Grammars of answers that come after a model's reasoning."""

import json

from ekiden.models.thinking import KNOWN_MARKS
from ekiden.models.tokenizer import Tokenizer
from ekiden.state.sampling_params import Thinking


def opening_tokens(tokenizer: Tokenizer) -> set[int]:
    """The tokens of the marks that begin reasoning, in a vocabulary that has them.

    They match no text in a grammar, so that free text cannot swallow them.
    """
    found = (tokenizer.token_to_id(marks.opening) for marks in KNOWN_MARKS)
    return {token for token in found if token is not None}


def after_thinking(answer: str, thinking: Thinking, tokenizer: Tokenizer, header: str) -> str:
    """A grammar, in the library's own language, of reasoning and then ``answer``, which is a Lark grammar.

    Reasoning is any text up to the closing mark. It may be left out, unless the prompt has begun it.
    """
    opening = _text(thinking.opening)
    if (token := tokenizer.token_to_id(thinking.opening)) is not None:
        opening = f"(<[{token}]> | {opening})"
    closing = tokenizer.token_to_id(thinking.closing)
    if closing is not None and closing in tokenizer.special_ids:
        thought = f"thought: TEXT <[{closing}]>"
    else:  # as soon as the mark is complete, whichever tokens spell it
        thought = f"thought[lazy]: TEXT {_text(thinking.closing)}"
    start = f"{opening}? thought ENDS @answer" if thinking.begun else f"{opening} thought ENDS @answer | @answer"
    lines = [f"{header}start: {start}", thought, r"TEXT: /(.|\n)*/", r"ENDS: /\n{0,2}/"]
    grammars = [{"lark_grammar": "\n".join(lines)}, {"name": "answer", "lark_grammar": answer}]
    return json.dumps({"grammars": grammars})


def _text(mark: str) -> str:
    return json.dumps(mark, ensure_ascii=False)
