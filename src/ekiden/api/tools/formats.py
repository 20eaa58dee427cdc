"""How families of models write tool calls, detected from the chat template.

- Hermes (Qwen, Hermes and many others): ``<tool_call>``, ``{"name": ..., "arguments": {...}}``, ``</tool_call>``, each
  on a line, for each call; with text before or between.
- Llama 3: the whole answer is ``{"name": ..., "parameters": {...}}``, several joined by ``;``.
- Mistral: ``[TOOL_CALLS]`` and a list of ``{"name": ..., "arguments": {...}}``, or ``[TOOL_CALLS]name{...}``.

A template without tools gets the Hermes format, explained in the system message (``prompting.py``).
"""

from dataclasses import dataclass
from enum import Enum

from ekiden.models.chat_template import ChatTemplate
from ekiden.models.tokenizer import Tokenizer

MAX_CALLS = 16
"""Most calls that a grammar allows in one answer."""


@dataclass(frozen=True, slots=True)
class Notation:
    """``opening`` and ``closing`` surround a call (Hermes) or come before all of them (Mistral)."""

    opening: str
    closing: str
    arguments: str
    """The key of a call's arguments."""
    markers: tuple[str, ...]
    """Texts that are special tokens in some vocabularies and must be decoded all the same."""


class ToolFormat(Enum):
    HERMES = Notation("<tool_call>", "</tool_call>", "arguments", ("<tool_call>", "</tool_call>"))
    LLAMA3 = Notation("<|python_tag|>", "", "parameters", ("<|python_tag|>",))
    MISTRAL = Notation("[TOOL_CALLS]", "", "arguments", ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"))


def format_of(template: ChatTemplate) -> ToolFormat | None:
    """The format of the template; None for a template without tools."""
    source = template.tool_source
    if "tools" not in source:
        return None
    if "[TOOL_CALLS]" in source:
        return ToolFormat.MISTRAL
    if "<tool_call>" in source:
        return ToolFormat.HERMES
    if "<|python_tag|>" in source or '"parameters": ' in source:
        return ToolFormat.LLAMA3
    return None


def shown_tokens(tokenizer: Tokenizer, form: ToolFormat) -> frozenset[int]:
    """Special tokens that are part of the format and so must stay in the decoded text."""
    found = (tokenizer.token_to_id(marker) for marker in form.value.markers)
    return frozenset(token for token in found if token is not None and token in tokenizer.special_ids)
