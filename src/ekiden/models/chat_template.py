"""Chat templates, rendered as ``transformers`` renders them, in a sandbox.

A template is a program that comes with the model. It is read here and run elsewhere (`template_worker.py`), within
limits of time and memory; whatever it raises becomes a :class:`ChatTemplateError` of one line.

Messages are normalised first, so that content which is null, absent or empty renders the same.
"""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from jinja2 import TemplateError

from ekiden.models.errors import one_line
from ekiden.models.template_program import read_template
from ekiden.models.template_worker import RenderingError, render_apart

Message = Mapping[str, Any]

RESERVED: Final = frozenset(
    {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "strftime_now", "raise_exception"}
    | {"chat_template", "tokenize", "continue_final_message"}
)
"""Names that a caller cannot give a template: they have their values from elsewhere, or mean something else in the
clients that send them."""


class ChatTemplateError(ValueError):
    """The template cannot be read, or it refuses the messages; the text is one line."""


class ChatTemplate:
    """A chat template.

    Args:
        source: Jinja text.
        bos_token: text of the BOS token, empty for none; ``eos_token`` likewise.
        tool_source: the template to use when tools are given, for models that have two.
        now: the clock that ``strftime_now`` reads.

    ``variables`` has the names that it reads from outside.

    Raises:
        ChatTemplateError: the text is not a Jinja template.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        tool_source: str | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self.tool_source = tool_source or source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._now = now
        try:
            self.variables = read_template(source) | read_template(self.tool_source)
        except (TemplateError, RecursionError) as error:
            raise ChatTemplateError(f"the chat template cannot be read: {one_line(error)}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        protect: Callable[[str], str] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text, special tokens included.

        Args:
            messages: ``role``, ``content`` (text, a list of text parts, or null) and whatever else the template uses.
            tools: function descriptions in the OpenAI schema.
            add_generation_prompt: end with the beginning of the assistant's turn.
            protect: applied to every text that the client wrote; :meth:`Tokenizer.protect` keeps the names of special
                tokens in it plain text.
            variables: passed on to the template (``enable_thinking``, for example), none of them :data:`RESERVED`.

        Raises:
            ChatTemplateError: the template refuses the messages, or fails on them.
        """
        change = protect or str
        written = {
            "messages": [_mapped(_prepared(message), change, keep=("role",)) for message in messages],
            "tools": _mapped(list(tools), change) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._tokens,
            **_mapped(variables or {}, change),
        }
        try:
            return render_apart(self.tool_source if tools else self.source, written, self._now())
        except RenderingError as error:
            raise ChatTemplateError(f"the chat template refuses the conversation: {error}") from error


def _prepared(message: Message) -> dict[str, Any]:
    """The message in its normal form: no null values, content as one text, tool calls with parsed arguments."""
    result = {key: value for key, value in message.items() if value is not None and key != "tool_calls"}
    result["content"] = _content_text(message.get("content"))
    if calls := message.get("tool_calls"):
        result["tool_calls"] = [_prepared_call(call) for call in calls]
    return result


def _content_text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for part in content:
        text = part if isinstance(part, str) else part.get("text") if part.get("type") == "text" else None
        if not isinstance(text, str):
            raise ChatTemplateError(f"content part {part!r:.80} is not text; this model takes text only")
        texts.append(text)
    return "\n".join(texts)


def _prepared_call(call: Any) -> Any:
    """Parse a call's arguments, since templates expect an object; text that is no object is passed on unchanged."""
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str | None):
        with contextlib.suppress(ValueError, RecursionError):
            parsed = json.loads(arguments or "null")
            if parsed is None or isinstance(parsed, dict):
                function["arguments"] = parsed or {}
    return {**call, "function": function}


def _mapped(value: Any, change: Callable[[str], str], keep: tuple[str, ...] = ()) -> Any:
    """``value`` with ``change`` applied to each text in it, except the values of the keys in ``keep``."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        # Keys change too, since the client wrote the names of a function's parameters.
        return {_mapped(key, change): item if key in keep else _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value
