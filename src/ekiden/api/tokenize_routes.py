"""``POST /tokenize`` and ``POST /detokenize``: what a prompt becomes, and back; ``GET /tokenizer_info``."""

from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from ekiden.api.asgi import JsonBytes
from ekiden.api.call import Conversation
from ekiden.api.doors.chat_messages import Messages, messages_of
from ekiden.api.doors.door import Doors
from ekiden.api.errors import invalid
from ekiden.api.prompts import chat_prompt, check_tokens, encode_texts
from ekiden.api.schema_base import Strict
from ekiden.api.template_fields import TemplateKwargs


class TokenizeRequest(Strict):
    """Either ``prompt`` or ``messages``."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: Annotated[list[int], Field(fail_fast=True)]


async def tokenize(doors: Doors, request: Request) -> Response:
    """``{"count", "max_model_len", "tokens"}`` of a text, or of messages as the chat template writes them."""
    text = doors.generation.text
    fields = await doors.read(TokenizeRequest, request)
    if fields.model is not None:
        doors.check_model(fields.model)
    if fields.prompt is not None and fields.messages is None:
        if fields.add_generation_prompt is not None:
            raise invalid("add_generation_prompt", "add_generation_prompt is for messages; a prompt has none.")
        special = fields.add_special_tokens is not False
        (tokens,) = await encode_texts(text, [fields.prompt], "prompt", add_special=special)
    elif fields.messages is not None and fields.prompt is None:
        if fields.add_special_tokens is not None:
            raise invalid("add_special_tokens", "add_special_tokens is for prompt; a chat template decides on its own.")
        talk = Conversation(
            messages=messages_of(fields.messages),
            add_generation_prompt=fields.add_generation_prompt is not False,
            template_kwargs=fields.chat_template_kwargs or {},
        )
        prompt = await chat_prompt(text, talk)
        tokens = list(prompt.token_ids)
    else:
        raise invalid("prompt", "Give either prompt or messages, and not both.", code="missing_parameter")
    answer: dict[str, Any] = {"count": len(tokens), "max_model_len": text.max_model_len, "tokens": tokens}
    if fields.return_token_strs:
        answer["token_strs"] = [text.tokenizer.token_bytes(token).decode(errors="replace") for token in tokens]
    return JsonBytes(answer)


async def detokenize(doors: Doors, request: Request) -> Response:
    """``{"prompt"}``: the text of token ids, special tokens included."""
    text = doors.generation.text
    fields = await doors.read(DetokenizeRequest, request)
    if fields.model is not None:
        doors.check_model(fields.model)
    check_tokens(text, fields.tokens, "tokens")
    decoded = await text.off_loop(lambda: text.tokenizer.decode(fields.tokens, skip_special_tokens=False))
    return JsonBytes({"prompt": decoded})


async def tokenizer_info(doors: Doors, request: Request) -> Response:
    """What a client needs that has no tokenizer of its own, such as lm-evaluation-harness.

    The chat template stays here: whoever runs the server may have written into it what clients should not read.
    """
    text = doors.generation.text
    tokenizer = text.tokenizer
    about = {
        "bos_token": tokenizer.bos_token or None,
        "eos_token": tokenizer.eos_token or None,
        "add_bos_token": tokenizer.adds_bos,
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": text.max_model_len,
    }
    return JsonBytes(about)
