"""Conversations with several system messages, for templates that take one at the beginning only.

Some templates refuse a second system message, or one that is not the first; others leave all but one out without a
word. What a template does shows only when it renders, so it is asked first, and given all of them in one where it did
not take them as they are.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ekiden.models.chat_template import ChatTemplateError

Messages = Sequence[Mapping[str, Any]]


def rendered_whole(render: Callable[[Messages], str], messages: Messages, protect: Callable[[str], str]) -> str:
    """The conversation as the template writes it, with the text of every system message.

    Raises:
        ChatTemplateError: the template refuses the conversation, also with its system messages joined.
    """
    others = [message for message in messages[1:] if message["role"] == "system"]
    if not others:
        return render(messages)
    try:
        written = render(messages)
    except ChatTemplateError as error:
        try:
            return render(joined(messages))
        except ChatTemplateError:
            raise error from None
    systems = [message["content"] for message in messages if message["role"] == "system"]
    complete = all(protect(text).strip() in written for text in systems)
    return written if complete else render(joined(messages))


def joined(messages: Messages) -> list[Mapping[str, Any]]:
    """All system messages as one, at the beginning; the others in their order."""
    texts = [message["content"] for message in messages if message["role"] == "system"]
    rest = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(filter(None, texts))}, *rest]
