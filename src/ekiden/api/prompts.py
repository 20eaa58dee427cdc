"""From a request's text to token ids, refusing early what cannot fit and never holding up the event loop.

A prompt's BOS token: completions take what the tokenizer adds. A chat template usually prints it, so the rendered text
is encoded without special tokens and BOS is put in front only when the tokenizer adds one and it is not there yet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

from ekiden.api.call import Conversation, Pairs, Texts
from ekiden.api.errors import ApiError, invalid, unsupported
from ekiden.api.ignored import MAX_NAMES, Ignored, cleaned
from ekiden.api.reasoning import THOUGHT, thinking_after
from ekiden.api.strict_templates import rendered_whole
from ekiden.api.text import ModelText
from ekiden.api.tools.formats import format_of
from ekiden.api.tools.prompting import explained, written_out
from ekiden.models.chat_template import ChatTemplateError
from ekiden.state.request import Refusal, RefusalReason, check_prompt, check_vocabulary, prompt_too_long
from ekiden.state.sampling_params import Thinking

INLINE_CHARACTERS: Final = 4096
"""Text up to this size is encoded on the event loop, because handing it to a thread would take longer."""

SHRINK: Final = 3
"""Unicode normalisation makes text at most three times shorter in bytes (Hangul syllables)."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: its tokens, the text that ``echo`` gives back, and whether reasoning may come after it.
    ``scored_from``: where a query begins in it."""

    token_ids: tuple[int, ...]
    text: str
    thinking: Thinking | None = None
    scored_from: int | None = None


async def encode_texts(
    text: ModelText,
    texts: list[str],
    param: str,
    *,
    add_special: bool,
    special: bool = True,
    answered: bool = True,
    cut: bool = False,
) -> list[list[int]]:
    """Token ids of each text. Raises ``context_length_exceeded`` without encoding what is certainly too long, unless
    it will be ``cut``. ``special``: special tokens written in a text are taken as such. ``answered``: the context must
    have room for a token after it."""
    limit = text.max_model_len
    for each in [] if cut else texts:
        if len(each) >= limit * SHRINK:
            least = len(each) // (await text.max_token_bytes() * SHRINK)
            if least + answered > limit:
                raise _refused(prompt_too_long(param, f"at least {least}", limit, answered=answered))
    tokenizer = text.tokenizer

    def encode() -> list[list[int]]:
        return tokenizer.encode_batch(texts, add_special_tokens=add_special, parse_special=special)

    return encode() if sum(map(len, texts)) <= INLINE_CHARACTERS else await text.off_loop(encode)


def without_effect(text: ModelText, talk: Conversation) -> list[Ignored]:
    """What a conversation asks of the template or of the model's reasoning, and they do not have."""
    template = text.chat_template
    if template is None:
        return []
    unread = (name for name in talk.template_kwargs if name not in template.variables)
    names = islice(unread, MAX_NAMES + 1)
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
    text: ModelText,
    token_ids: Sequence[int],
    param: str,
    written: str = "",
    thinking: Thinking | None = None,
    *,
    answered: bool = True,
) -> Prompt:
    """Raises :class:`ApiError` 400 for a prompt that cannot be answered."""
    context, vocab_size = text.max_model_len, text.vocab_size
    refusal = check_prompt(token_ids, param=param, vocab_size=vocab_size, max_model_len=context, answered=answered)
    if refusal is not None:
        raise _refused(refusal)
    return Prompt(tuple(token_ids), written, thinking)


async def text_prompts(text: ModelText, asked: Texts, *, answered: bool = True) -> list[Prompt]:
    """The prompts to continue, in order; not ``answered``: to read."""
    texts, kept = asked.texts, asked.keep_last
    if texts is not None:
        encoded = await encode_texts(
            text, texts, asked.param, add_special=asked.add_special, answered=answered, cut=kept is not None
        )
    else:
        encoded = asked.token_lists
        decode = partial(text.tokenizer.decode, skip_special_tokens=False)
        texts = [decode(tokens) if asked.decoded else "" for tokens in encoded]
    if kept is not None:
        most = text.max_model_len if kept < 0 else kept
        encoded = [tokens[max(0, len(tokens) - most) :] for tokens in encoded]
    names = _names(asked.param, len(encoded), single=asked.single)
    return [_prompt(text, *each, answered=answered) for each in zip(encoded, names, texts, strict=True)]


def _names(param: str, count: int, *, single: bool) -> list[str]:
    return [param] if single else [f"{param}[{index}]" for index in range(count)]


BEFORE_DOCUMENT, BEFORE_QUERY, OF_QUERY = "Document: ", "\nQuery:", " "


async def pair_prompts(text: ModelText, asked: Pairs) -> list[Prompt]:
    """For each wanted pair ``Document: ... Query: ...``, of which the query is to be scored.

    The parts are encoded one by one, so that a query has the same tokens after every document, and clients' texts
    without special tokens, since they must not end the frame around them.
    """
    encode = partial(encode_texts, text, add_special=False, special=False, answered=False)
    queries = await encode([OF_QUERY + query for query in asked.queries], asked.names[0])
    documents = await encode(asked.documents, asked.names[1], cut=asked.keep_first is not None)
    opening, bridge = (
        text.tokenizer.encode(part, add_special_tokens=special)
        for part, special in ((BEFORE_DOCUMENT, True), (BEFORE_QUERY, False))
    )
    names = _names(asked.names[1], len(documents), single=asked.single_document)
    limit, made = text.max_model_len, list[Prompt]()
    for query, document in asked.wanted:
        kept = documents[document][: asked.keep_first]
        context = (*opening, *kept, *bridge)
        tokens = (*context, *queries[query])
        if len(tokens) > limit:
            name, whole = names[document], f"{len(tokens)} with its query and the words around both"
            way_out = f"the context of this model is {limit} tokens. Shorten one of them, or set max_tokens_per_doc"
            code = RefusalReason.CONTEXT_LENGTH_EXCEEDED.value
            raise invalid(name, f"{name} has {len(kept)} tokens, {whole}; {way_out}.", code=code)
        made.append(Prompt(tokens, "", scored_from=len(context)))
    return made


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
            variables=variables,
        )
        return rendered_whole(write, written, protect)

    try:
        rendered = await text.rendered(render)
    except ChatTemplateError as error:
        raise invalid(talk.param, f"{talk.param} cannot be used: {error}.") from None
    close, thinking = thinking_after(text.reasoning, rendered, talk.beginning)
    rendered += close + text.tokenizer.protect(talk.beginning)
    (tokens,) = await encode_texts(text, [rendered], talk.param, add_special=False)
    bos = text.tokenizer.bos_token_id
    if text.tokenizer.adds_bos and bos is not None and tokens[:1] != [bos]:
        tokens = [bos, *tokens]
    if talk.counted:
        return Prompt(tuple(tokens), rendered, thinking)
    return _prompt(text, tokens, talk.param, rendered, thinking)
