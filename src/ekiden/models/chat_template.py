"""Chat templates, rendered as ``transformers`` renders them, in a sandbox.

A template is a program that came with the model. The sandbox keeps it from attributes and calls outside its
arguments; whatever it raises becomes a :class:`ChatTemplateError` of one line.

Messages are put into one form first, so that a message's content that is null, absent or empty renders the same.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]


class ChatTemplateError(ValueError):
    """A template that cannot be read, or messages that it refuses; one line."""


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's words for training; for rendering it is its content."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # Jinja's own filter escapes for HTML; models were trained on the plain form.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: Jinja text.
        bos_token: text of the BOS token, empty for none; ``eos_token`` likewise.
        tool_source: a template to take instead when tools are given, for models that carry two.
        now: the clock behind ``strftime_now``.

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
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
            self._tool_template = environment.from_string(tool_source) if tool_source else self._template
        except (TemplateError, RecursionError) as error:
            raise ChatTemplateError(f"the chat template cannot be read: {_one_line(error)}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        protect: Callable[[str], str] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt as text, special tokens included.

        Args:
            messages: ``role``, ``content`` (text, a list of text parts, or null) and what else the template knows.
            tools: function descriptions, as in the OpenAI schema.
            add_generation_prompt: end with the beginning of the assistant's turn.
            protect: applied to every text the client wrote, such as :meth:`Tokenizer.protect`, so that special
                tokens in it stay text.
            variables: handed to the template (``enable_thinking`` and the like).

        Raises:
            ChatTemplateError: the template refuses the messages, or fails on them.
        """
        template = self._tool_template if tools else self._template
        prepared = [_prepared(message) for message in messages]
        given = None if not tools else list(tools)
        if protect is not None:
            prepared = [_mapped(message, protect, keep=("role",)) for message in prepared]
            given = _mapped(given, protect)
        try:
            return template.render(
                messages=prepared,
                tools=given,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **{**self._tokens, **variables},
            )
        except Exception as error:  # a template is a program and can raise anything
            raise ChatTemplateError(f"the chat template refuses these messages: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _prepared(message: Message) -> dict[str, Any]:
    """One form for what the protocol allows in several."""
    result = {key: value for key, value in message.items() if value is not None}
    result["content"] = _content_text(message.get("content"))
    calls = result.pop("tool_calls", None)
    if calls:
        result["tool_calls"] = [_prepared_call(call) for call in calls]
    return result


def _content_text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content:
        text = part if isinstance(part, str) else part.get("text") if part.get("type") == "text" else None
        if not isinstance(text, str):
            raise ChatTemplateError(f"content part {part!r:.80} is not text; this model takes text only")
        texts.append(text)
    return "\n".join(texts)


def _prepared_call(call: Any) -> Any:
    """Templates expect a call's arguments as an object; what is not one is passed on as the text it is."""
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str) or arguments is None:
        try:
            parsed = json.loads(arguments) if arguments else {}
        except (ValueError, RecursionError):
            parsed = arguments
        function["arguments"] = {} if parsed is None else parsed if isinstance(parsed, dict) else arguments
    return {**call, "function": function}


def _mapped(value: Any, change: Callable[[str], str], keep: tuple[str, ...] = ()) -> Any:
    """``value`` with ``change`` applied to each text in it, the keys in ``keep`` apart."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        # Keys too: those of a function's parameters are the client's words. Templates' own keys do not change.
        return {
            change(key) if isinstance(key, str) else key: item if key in keep else _mapped(item, change)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value
