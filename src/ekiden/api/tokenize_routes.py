"""``POST /tokenize`` and ``POST /detokenize``: what a prompt becomes, and back."""

from typing import Any

from starlette.types import Receive, Scope, Send

from ekiden.api.context import ApiContext
from ekiden.api.errors import invalid
from ekiden.api.prompts import chat_prompt, check_vocabulary, encode_texts
from ekiden.api.responses import send_json
from ekiden.api.schema_base import parse
from ekiden.api.schemas import DetokenizeRequest, TokenizeRequest


async def tokenize(context: ApiContext, scope: Scope, receive: Receive, send: Send) -> None:
    """``{"count", "max_model_len", "tokens"}`` of a text, or of messages as the chat template writes them."""
    body = await context.read_body(scope, receive)
    fields = parse(TokenizeRequest, body)
    if fields.model is not None:
        context.check_model(fields.model)
    if (fields.prompt is None) == (fields.messages is None):
        raise invalid("prompt", "Give either prompt or messages, and not both.", code="missing_parameter")
    if fields.messages is not None:
        if fields.add_special_tokens is not None:
            raise invalid("add_special_tokens", "add_special_tokens is for prompt; a chat template decides on its own.")
        generation = True if fields.add_generation_prompt is None else fields.add_generation_prompt
        prompt = await chat_prompt(context, fields.messages, add_generation_prompt=generation)
        tokens = list(prompt.token_ids)
    else:
        assert fields.prompt is not None
        if fields.add_generation_prompt is not None:
            raise invalid("add_generation_prompt", "add_generation_prompt is for messages; a prompt has none.")
        special = True if fields.add_special_tokens is None else fields.add_special_tokens
        (tokens,) = await encode_texts(context, [fields.prompt], "prompt", add_special=special)
    answer: dict[str, Any] = {
        "count": len(tokens),
        "max_model_len": context.engine.card.max_model_len,
        "tokens": tokens,
    }
    if fields.return_token_strs:
        answer["token_strs"] = [context.tokenizer.token_bytes(token).decode(errors="replace") for token in tokens]
    await send_json(send, answer)


async def detokenize(context: ApiContext, scope: Scope, receive: Receive, send: Send) -> None:
    """``{"prompt"}``: the text of token ids, special tokens included."""
    body = await context.read_body(scope, receive)
    fields = parse(DetokenizeRequest, body)
    if fields.model is not None:
        context.check_model(fields.model)
    check_vocabulary(context, fields.tokens, "tokens")
    text = await context.off_loop(lambda: context.tokenizer.decode(fields.tokens, skip_special_tokens=False))
    await send_json(send, {"prompt": text})
