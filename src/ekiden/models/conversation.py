"""A conversation as token ids, for callers that have nothing but a tokenizer and a chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

from ekiden.errors import UserError
from ekiden.models.chat_template import ChatTemplate, ChatTemplateError
from ekiden.models.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, Any]]


def chat_token_ids(tokenizer: Tokenizer, template: ChatTemplate | None, messages: Messages) -> list[int]:
    """The conversation as the model's template writes it, up to the start of the assistant's turn.

    Special tokens in what people wrote stay text. Raises :class:`UserError` when there is no template or it refuses.
    """
    if template is None:
        raise UserError("this model has no chat template; give one with --chat-template, or use plain prompts")
    try:
        text = template.render(messages, protect=tokenizer.protect)
    except ChatTemplateError as error:
        raise UserError(str(error)) from error
    token_ids = tokenizer.encode(text, add_special_tokens=False, parse_special=True)
    bos = tokenizer.bos_token_id
    if tokenizer.adds_bos and bos is not None and token_ids[:1] != [bos]:
        token_ids.insert(0, bos)
    return token_ids
