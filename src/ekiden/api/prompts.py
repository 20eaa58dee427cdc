"""From a request's text to token ids, refusing early what cannot fit and never holding up the event loop.

A prompt's BOS token: completions take what the tokenizer adds. A chat template usually prints it, so the rendered text
is encoded without special tokens and BOS is put in front only when the tokenizer adds one and it is not there yet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ekiden.api.call import Conversation, Texts
from ekiden.api.errors import ApiError, invalid, unsupported
from ekiden.api.ignored import Ignored, cleaned
from ekiden.api.reasoning import THOUGHT, thinking_after
from ekiden.api.strict_templates import rendered_whole
from ekiden.api.text import ModelText
from ekiden.api.tools.formats import format_of
from ekiden.api.tools.prompting import explained, written_out
from ekiden.models.chat_template import ChatTemplateError
from ekiden.state.request import Refusal, check_prompt, check_vocabulary, prompt_too_long
from ekiden.state.sampling_params import Thinking

INLINE_CHARACTERS: Final = 4096
"""Text up to this size is encoded on the event loop, because handing it to a thread would take longer."""

SHRINK: Final = 3
"""Unicode normalisation makes text at most three times shorter in bytes (Hangul syllables)."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: its tokens, the text that ``echo`` gives back, and whether reasoning may come after it."""

    token_ids: tuple[int, ...]
    text: str
    thinking: Thinking | None = None


async def encode_texts(text: ModelText, texts: list[str], param: str, *, add_special: bool) -> list[list[int]]:
    """Token ids of each text. Raises ``context_length_exceeded`` without encoding what is certainly too long."""
    limit = text.max_model_len
    for each in texts:
        if len(each) >= limit * SHRINK:
            least = len(each) // (await text.max_token_bytes() * SHRINK)
            if least >= limit:
                raise _refused(prompt_too_long(param, f"at least {least}", limit))
    tokenizer = text.tokenizer

    def encode() -> list[list[int]]:
        return tokenizer.encode_batch(texts, add_special_tokens=add_special, parse_special=True)

    return encode() if sum(map(len, texts)) <= INLINE_CHARACTERS else await text.off_loop(encode)


def without_effect(text: ModelText, talk: Conversation) -> list[Ignored]:
    """What a conversation asks of the template or of the model's reasoning, and they do not have."""
    template = text.chat_template
    if template is None:
        return []
    names = [name for name in talk.template_kwargs if name not in template.variables]
    found = [Ignored(f"chat_template_kwargs.{cleaned(name)}", known=False) for name in names]
    found += map(Ignored, talk.wish.neglected(text.reasoning, template))
    if THOUGHT not in template.tool_source and any(THOUGHT in message for message in talk.messages):
        found.append(Ignored(talk.thought_param))
    return found


def _refused(refusal: Refusal) -> ApiError:
    return invalid(refusal.param, f"{refusal.message}.", code=refusal.reason.value)


def check_tokens(text: ModelText, token_ids: Sequence[int], param: str) -> None:
    """Raise :class:`ApiError` 400 for a token that the model does not have."""
    if refusal := check_vocabulary(token_ids, vocab_size=text.vocab_size, param=param):
        raise _refused(refusal)


def _prompt(
    text: ModelText, token_ids: Sequence[int], param: str, written: str = "", thinking: Thinking | None = None
) -> Prompt:
    """Raises :class:`ApiError` 400 for a prompt that cannot be answered."""
    limits = {"vocab_size": text.vocab_size, "max_model_len": text.max_model_len}
    if refusal := check_prompt(token_ids, param=param, **limits):
        raise _refused(refusal)
    return Prompt(tuple(token_ids), written, thinking)


async def text_prompts(text: ModelText, asked: Texts) -> list[Prompt]:
    """The prompts to continue, in order."""
    texts = asked.texts
    if texts is not None:
        encoded = await encode_texts(text, texts, asked.param, add_special=asked.add_special)
    else:
        encoded = asked.token_lists
        decode = partial(text.tokenizer.decode, skip_special_tokens=False)
        texts = [decode(tokens) if asked.decoded else "" for tokens in encoded]
    names = [asked.param] if asked.single else [f"{asked.param}[{index}]" for index in range(len(encoded))]
    return [_prompt(text, *each) for each in zip(encoded, names, texts, strict=True)]


async def chat_prompt(text: ModelText, talk: Conversation, *, tools: list[dict[str, Any]] | None = None) -> Prompt:
    """The conversation as the model's chat template writes it, with the tools that the model may call."""
    template = text.chat_template
    if template is None:
        way_out = "use /v1/completions, or start the server with --chat-template FILE"
        raise unsupported(talk.param, f"This model has no chat template; {way_out}.")

    variables = {**text.template_defaults, **talk.wish.variables(template), **talk.template_kwargs}

    def render() -> str:
        written: Sequence[Mapping[str, Any]] = talk.messages
        offered = tools
        if "tool_calls" not in template.tool_source:
            written = written_out(written)
        if offered and format_of(template) is None:
            written, offered = explained(written, offered), None
        # Special tokens in what clients wrote stay plain text, so that they cannot start a turn.
        protect = text.tokenizer.protect
        write = partial(
            template.render,
            tools=offered,
            add_generation_prompt=talk.add_generation_prompt,
            protect=protect,
            **variables,
        )
        return rendered_whole(write, written, protect)

    try:
        rendered = await text.rendered(render)
    except ChatTemplateError as error:
        raise invalid(talk.param, f"{talk.param} cannot be used: {error}.") from None
    thinking = thinking_after(text.reasoning, rendered, talk.beginning)
    rendered += text.tokenizer.protect(talk.beginning)
    (tokens,) = await encode_texts(text, [rendered], talk.param, add_special=False)
    bos = text.tokenizer.bos_token_id
    if text.tokenizer.adds_bos and bos is not None and tokens[:1] != [bos]:
        tokens = [bos, *tokens]
    if talk.counted:
        return Prompt(tuple(tokens), rendered, thinking)
    return _prompt(text, tokens, talk.param, rendered, thinking)
