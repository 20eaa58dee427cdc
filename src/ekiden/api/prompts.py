"""From a request's text to token ids, refusing early what cannot fit and never holding up the event loop.

A prompt's BOS token: completions take what the tokenizer adds. A chat template usually prints it, so the rendered text
is encoded without special tokens and BOS is put in front only when the tokenizer adds one and it is not there yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from ekiden.api.context import ApiContext
from ekiden.api.errors import context_length_exceeded, invalid, unsupported
from ekiden.api.schemas import ChatMessage
from ekiden.api.tools.formats import format_of
from ekiden.api.tools.prompting import explained, written_out
from ekiden.models.chat_template import ChatTemplateError

INLINE_CHARACTERS: Final = 4096
"""Text up to this size is encoded on the event loop: it takes less time than a change of threads is worth."""

SHRINK: Final = 3
"""Unicode normalisation makes text at most three times shorter in bytes (Hangul syllables)."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: its tokens, and the text that ``echo`` gives back."""

    token_ids: tuple[int, ...]
    text: str


async def encode_texts(context: ApiContext, texts: list[str], param: str, *, add_special: bool) -> list[list[int]]:
    """Token ids of each text. Raises ``context_length_exceeded`` without encoding what is certainly too long."""
    for text in texts:
        await _refuse_certainly_too_long(context, text, param)
    tokenizer = context.tokenizer

    def encode() -> list[list[int]]:
        return tokenizer.encode_batch(texts, add_special_tokens=add_special, parse_special=True)

    return encode() if sum(map(len, texts)) <= INLINE_CHARACTERS else await context.off_loop(encode)


async def _refuse_certainly_too_long(context: ApiContext, text: str, param: str) -> None:
    limit = context.engine.card.max_model_len
    if len(text) < limit * SHRINK:
        return
    if context.max_token_bytes is None:
        tokenizer = context.tokenizer
        context.max_token_bytes = await context.off_loop(
            lambda: max(len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size))
        )
    least = len(text) // (context.max_token_bytes * SHRINK)
    if least >= limit:
        context.metrics.reject("context_length_exceeded")
        raise context_length_exceeded(param, least, limit, at_least=True)


def check_length(context: ApiContext, token_ids: Sequence[int], param: str) -> None:
    """Raise when the prompt is empty or leaves no room for an answer."""
    limit = context.engine.card.max_model_len
    if not token_ids:
        context.metrics.reject("prompt_empty")
        raise invalid(param, f"{param} has no tokens; it must have at least one.", code="prompt_empty")
    if len(token_ids) >= limit:
        context.metrics.reject("context_length_exceeded")
        raise context_length_exceeded(param, len(token_ids), limit)


def check_vocabulary(context: ApiContext, token_ids: Sequence[int], param: str) -> None:
    size = context.engine.card.vocab_size
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= size):
        index = next(i for i, token in enumerate(token_ids) if not 0 <= token < size)
        context.metrics.reject("token_out_of_vocabulary")
        raise invalid(
            param,
            f"{param}[{index}] is {token_ids[index]}; token ids are between 0 and {size - 1}.",
            code="token_out_of_vocabulary",
        )


async def completion_prompts(
    context: ApiContext, prompt: str | list[int] | list[str] | list[list[int]], *, echo: bool
) -> list[Prompt]:
    """The prompts of a completions call, in order."""
    # The schema has seen to it that all entries are alike.
    texts: list[str] | None = None
    lists: list[list[int]] = []
    single = isinstance(prompt, str) or isinstance(prompt[0], int)
    if isinstance(prompt, str):
        texts = [prompt]
    elif isinstance(prompt[0], str):
        texts = prompt
    else:
        lists = [cast("list[int]", prompt)] if single else cast("list[list[int]]", prompt)
    if texts is not None:
        encoded = await encode_texts(context, texts, "prompt", add_special=True)
    else:
        encoded = lists
        texts = [context.tokenizer.decode(tokens, skip_special_tokens=False) for tokens in lists] if echo else []
    prompts: list[Prompt] = []
    for index, tokens in enumerate(encoded):
        param = "prompt" if single else f"prompt[{index}]"
        check_vocabulary(context, tokens, param)
        check_length(context, tokens, param)
        prompts.append(Prompt(tuple(tokens), texts[index] if texts else ""))
    return prompts


async def chat_prompt(
    context: ApiContext,
    messages: list[ChatMessage],
    *,
    add_generation_prompt: bool = True,
    tools: list[dict[str, Any]] | None = None,
    beginning: str = "",
) -> Prompt:
    """The conversation as the model's chat template writes it, with the tools that the model may call.

    ``beginning`` is the beginning of the answer, which the model goes on from.
    """
    template = context.chat_template
    if template is None:
        raise unsupported(
            "messages",
            "This model has no chat template; use /v1/completions, or start the server with --chat-template FILE.",
        )
    prepared = [template_message(message, index) for index, message in enumerate(messages)]
    size = len(beginning) + sum(map(_size, prepared))

    def render() -> str:
        written, offered = prepared, tools
        if "tool_calls" not in template.tool_source:
            written = written_out(written)
        if offered and format_of(template) is None:
            written, offered = explained(written, offered), None
        # What clients wrote stays text: it cannot open a turn with the model's special tokens.
        protect = context.tokenizer.protect
        text = template.render(written, tools=offered, add_generation_prompt=add_generation_prompt, protect=protect)
        return text + protect(beginning)

    try:
        text = await context.off_loop(render) if tools or size > INLINE_CHARACTERS else render()
    except ChatTemplateError as error:
        raise invalid("messages", f"These messages cannot be used: {error}.") from None
    (tokens,) = await encode_texts(context, [text], "messages", add_special=False)
    bos = context.tokenizer.bos_token_id
    if context.tokenizer.adds_bos and bos is not None and tokens[:1] != [bos]:
        tokens = [bos, *tokens]
    check_length(context, tokens, "messages")
    return Prompt(tuple(tokens), text)


def _size(message: dict[str, Any]) -> int:
    """About how many characters a message has, those of its earlier calls among them."""
    calls = message.get("tool_calls", ())
    return len(message["content"]) + sum(len(call["function"]["arguments"] or "") for call in calls)


def template_message(message: ChatMessage, index: int) -> dict[str, Any]:
    """A message as templates expect it. The template puts null, absent and empty content into one form."""
    where = f"messages[{index}]"
    calls = message.tool_calls or []
    if message.content is None and (message.role != "assistant" or not (calls or message.refusal)):
        raise invalid(
            f"{where}.content", f"{where}.content is required for the role {message.role!r}.", code="missing_parameter"
        )
    if calls and message.role != "assistant":
        raise invalid(f"{where}.tool_calls", f"{where}.tool_calls belongs to the role 'assistant' only.")
    # Templates know "system"; "developer" is its newer name.
    role = "system" if message.role == "developer" else message.role
    prepared: dict[str, Any] = {"role": role, "content": message.content or message.refusal or ""}
    if message.name is not None:
        prepared["name"] = message.name
    if message.tool_call_id is not None:
        prepared["tool_call_id"] = message.tool_call_id
    if calls:
        prepared["tool_calls"] = [
            {
                "id": call.id or "",
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in calls
        ]
    return prepared
