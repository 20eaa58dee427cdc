"""Scripted models that think: templates in the manner of Qwen3 and DeepSeek-R1, and a vocabulary with their marks."""

from collections.abc import Callable

import msgspec

from ekiden.config import Config
from ekiden.state.request import Request
from tests.api.conftest import Memory, memory_client
from tests.api.scripted import END, ScriptedEngine, make_app, say
from tests.unit.sampling.thinking_tokens import CLOSE, OPEN, SIZE, thinking_tokenizer

_TURNS = (
    "{% if tools %}{{ tools | tojson }} <tool_call> {% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
)
SWITCHED = (
    _TURNS
    + "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""As Qwen3's: the model opens its reasoning itself, and can be asked not to."""
OPENED = _TURNS + "<think>\n{% endif %}"
"""As DeepSeek-R1's: the prompt ends with the opening mark."""


def written(text: str) -> list[int]:
    """The tokens of an answer; the marks of reasoning are tokens of their own."""
    tokens: list[int] = []
    for index, part in enumerate(text.replace("</think>", "\0C\0").replace("<think>", "\0O\0").split("\0")):
        tokens += say(part) if index % 2 == 0 else [OPEN if part == "O" else CLOSE]
    return [*tokens, END]


def thinking_memory(
    template: str,
    script: Callable[[Request], list[int]] | str,
    config: Config | None = None,
    *,
    special: bool = False,
) -> Memory:
    """The application over a model that writes ``script``."""
    tokens = script if callable(script) else lambda request: written(script)
    engine = ScriptedEngine(thinking_tokenizer(special=special), tokens)
    engine.card = msgspec.structs.replace(engine.card, vocab_size=SIZE)
    app = make_app(engine, config, template=template)
    return Memory(engine, app, memory_client(app))
