"""Conversations as templates take them that are strict about roles and their order.

Some templates refuse a second system message, one that is not the first, or any; others leave all but one out without
a word. Some refuse two messages of the user in a row, or one behind a tool's result, as agents send them. What a
template does shows only when it renders, so it is asked first with the conversation as it is, and then with what
changes it the least: no text is ever left out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ekiden.models.chat_template import ChatTemplateError

Message = Mapping[str, Any]
Messages = Sequence[Message]


def rendered_whole(render: Callable[[Messages], str], messages: Messages, protect: Callable[[str], str]) -> str:
    """The conversation as the template writes it, with the text of every system message.

    Raises:
        ChatTemplateError: the template refuses the conversation, also in the other forms.
    """
    systems = [message["content"] for message in messages if message["role"] == "system"]
    others = any(message["role"] == "system" for message in messages[1:])
    refusal: ChatTemplateError | None = None
    written: str | None = None
    for form in _forms(messages):
        try:
            written = render(form)
        except ChatTemplateError as error:
            refusal = refusal or error
            continue
        if not others or all(protect(text).strip() in written for text in systems):
            return written
    if written is None:
        assert refusal is not None
        raise refusal
    return written


def _forms(messages: Messages) -> Iterator[Messages]:
    """The conversation, and what can be made of it, each further from it than the one before."""
    form: Messages = messages
    yield form
    for change in (_joined, _in_turns, _behind_results, _told_by_the_user):
        changed = change(form)
        if changed != form:
            form = changed
            yield form


def _joined(messages: Messages) -> Messages:
    """All system messages as one, at the beginning; the others in their order."""
    texts = [message["content"] for message in messages if message["role"] == "system"]
    rest = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(filter(None, texts))}, *rest] if texts else messages


def _in_turns(messages: Messages) -> Messages:
    """Messages of one role in a row as one, where they are nothing but text."""
    turns: list[Message] = []
    for message in messages:
        if turns and message["role"] in ("user", "assistant") and _is_text(turns[-1], message["role"]):
            turns[-1] = {**message, "content": _both(turns[-1], message)}
        else:
            turns.append(message)
    return turns


def _behind_results(messages: Messages) -> Messages:
    """What the user says behind a tool's result as a part of it."""
    turns: list[Message] = []
    for message in messages:
        if turns and message["role"] == "user" and turns[-1]["role"] == "tool":
            turns[-1] = {**turns[-1], "content": _both(turns[-1], message)}
        else:
            turns.append(message)
    return turns


def _told_by_the_user(messages: Messages) -> Messages:
    """The system message as the beginning of what the user says first."""
    if len(messages) > 1 and messages[0]["role"] == "system" and messages[1]["role"] == "user":
        return [{**messages[1], "content": _both(messages[0], messages[1])}, *messages[2:]]
    return messages


def _is_text(message: Message, role: str) -> bool:
    return message["role"] == role and not message.get("tool_calls")


def _both(first: Message, second: Message) -> str:
    return "\n\n".join(filter(None, (first["content"], second["content"])))
