"""From token updates to what a client reads: text in whole characters, log-probabilities, the finish reason."""

from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Final

from ekiden.api.aligned import AlignedText, End, TokenEntry
from ekiden.models.text import IncrementalText
from ekiden.models.thinking import Place
from ekiden.models.tokenizer import Tokenizer
from ekiden.state.request import Finish, FinishReason, RequestUpdate, TokenLogprobs
from ekiden.state.sampling_params import SamplingParams

LOWEST: Final = -9999.0
"""Stands for minus infinity, which JSON does not have."""

PLAIN_REASONS: Final = frozenset({FinishReason.STOP, FinishReason.LENGTH})
"""Ends of a complete answer."""


@dataclass(slots=True)
class Piece:
    """What one update adds to an answer, or a whole answer."""

    text: str = ""
    logprobs: list[TokenEntry] | None = None
    token_ids: tuple[int, ...] = ()
    finish: Finish | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """For all tokens of the prompt but the first, if they were asked for; they come with the first token."""
    cumulative_logprob: float = 0.0
    """Sum over this update's tokens, including those that are not part of the text; 0 if none were asked for."""
    reasoning: str = ""
    """What the model thought before it answered; it is no part of ``text`` and has no log-probabilities."""
    reasoning_tokens: int = 0
    pooled: bytes | None = None
    """The vector of a prompt that was only read (:class:`RequestUpdate`)."""


def joined(pieces: list[Piece]) -> Piece:
    """All pieces of an answer as one."""
    return Piece(
        text="".join(piece.text for piece in pieces),
        logprobs=list(chain.from_iterable(piece.logprobs or () for piece in pieces)),
        token_ids=tuple(chain.from_iterable(piece.token_ids for piece in pieces)),
        finish=pieces[-1].finish,
        prompt_logprobs=next((piece.prompt_logprobs for piece in pieces if piece.prompt_logprobs is not None), None),
        cumulative_logprob=sum(piece.cumulative_logprob for piece in pieces),
        reasoning="".join(piece.reasoning for piece in pieces),
        reasoning_tokens=sum(piece.reasoning_tokens for piece in pieces),
        pooled=pieces[-1].pooled,
    )


class Answer:
    """Builds the text of one answer from its updates; ``take`` returns what each adds.

    ``shown``: special tokens that belong to the text. ``shows_reasoning``: the client is given it.
    """

    def __init__(
        self, tokenizer: Tokenizer, sampling: SamplingParams, shown: frozenset[int], *, shows_reasoning: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._sampling = sampling
        stop, keep, thinking = sampling.stop, sampling.include_stop_str_in_output, sampling.reasoning_marks
        self._text = IncrementalText(
            tokenizer, stop, keep, min_tokens=sampling.min_tokens, shown=shown, thinking=thinking
        )
        self._stopped = False
        self._shows_reasoning = shows_reasoning
        self._undecided: list[tuple[int, TokenLogprobs | None]] = []
        """The first tokens, while it is not known whether they are reasoning or the answer."""
        self._thinks = thinking is not None
        """The answer has not begun yet."""
        self._has_thought = False
        wanted = sampling.logprobs is not None
        self._aligned = AlignedText(tokenizer, self._text.skipped) if wanted else None

    def take(self, update: RequestUpdate) -> Piece:
        tokens, finish = update.token_ids, update.finish
        visible = tokens
        if finish is not None and tokens and self._ended_by_token(finish, tokens[-1]):
            visible = tokens[:-1]
        piece = Piece("", None, tokens, finish, update.prompt_logprobs, pooled=update.pooled)
        for token, logprobs in zip(visible, update.logprobs or repeat(None), strict=False):
            if self._stopped:
                break
            delta = self._text.feed(token)
            piece.text += delta.text
            self._stopped = bool(delta.stopped)
            if self._thinks:
                piece.reasoning += delta.reasoning
                self._place(piece, token, logprobs)
            elif logprobs is not None:
                self._align(token, logprobs)
        if finish is not None and not self._stopped:
            self._end(piece)
        if not self._shows_reasoning:
            piece.reasoning = ""
        if self._aligned is not None:
            end = End.STOPPED if self._stopped else End.WHOLE if finish is not None else None
            piece.text, piece.logprobs = self._aligned.take(piece.text, end)
            piece.cumulative_logprob = sum(each.logprob for each in update.logprobs or ())
        return piece

    def _place(self, piece: Piece, token: int, logprobs: TokenLogprobs | None) -> None:
        """Count a token as reasoning, or align it with the answer, once it is known which it is."""
        match self._text.place:
            case Place.BEFORE:
                self._undecided.append((token, logprobs))
            case Place.INSIDE | Place.BEHIND:
                piece.reasoning_tokens += len(self._undecided) + 1
                self._undecided.clear()
                self._has_thought = True
            case Place.ANSWER:
                self._thinks = False
                self._align_undecided()
                self._align(token, logprobs, self._text.newest if self._has_thought else None)

    def _end(self, piece: Piece) -> None:
        """Add what was held back."""
        rest = self._text.rest()
        piece.text += rest.text
        piece.reasoning += rest.reasoning
        thinking = self._sampling.reasoning_marks
        if thinking is not None and thinking.begun:
            piece.reasoning_tokens += len(self._undecided)
        else:
            self._align_undecided()

    def _align_undecided(self) -> None:
        for token, logprobs in self._undecided:
            self._align(token, logprobs)
        self._undecided.clear()

    def _align(self, token: int, logprobs: TokenLogprobs | None, data: bytes | None = None) -> None:
        """``data``: what of the token's bytes belongs to the answer, if not all."""
        if self._aligned is not None and logprobs is not None:
            self._aligned.add(token, logprobs, data)

    def _ended_by_token(self, finish: Finish, last: int) -> bool:
        """True when the last token is the end-of-sequence or stop token, which is not part of the text."""
        if finish.reason is not FinishReason.STOP or isinstance(finish.stop_reason, str):
            return False
        if finish.stop_reason is None:
            return last in self._tokenizer.eos_token_ids  # a grammar may end an answer without such a token
        return not self._sampling.include_stop_str_in_output


def chat_logprobs(tokenizer: Tokenizer, entries: list[TokenEntry]) -> dict[str, Any]:
    """The ``logprobs`` object of a chat choice."""

    def entry(data: bytes, logprob: float) -> dict[str, Any]:
        return {"token": data.decode(errors="replace"), "logprob": max(logprob, LOWEST), "bytes": list(data)}

    content = [
        entry(item.data, item.logprobs.logprob)
        | {"top_logprobs": [entry(tokenizer.token_bytes(token), logprob) for token, logprob in item.logprobs.top]}
        for item in entries
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """Builds the ``logprobs`` object of a completions choice with ``num_top`` alternatives; ``text_offset`` goes on
    from chunk to chunk. ``shown``: special tokens that belong to the text; the others have a name, and add nothing."""

    def __init__(self, tokenizer: Tokenizer, num_top: int, shown: frozenset[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids - shown
        self._num_top = num_top
        self._characters = 0

    def build(self, entries: list[TokenEntry]) -> dict[str, Any]:
        return self._build([(entry.token_id, entry.data, entry.logprobs) for entry in entries])

    def build_prompt(self, token_ids: tuple[int, ...], text: str, known: tuple[TokenLogprobs, ...]) -> dict[str, Any]:
        """The object of a prompt that is given back with its answer; nothing is known of its first token.

        ``text`` is what of the prompt is given back: special tokens may be part of it.
        """
        data = map(self._tokenizer.token_bytes, token_ids)
        built = self._build(list(zip(token_ids, data, (None, *known), strict=True)), text)
        self._characters = len(text)
        return built

    def _build(self, tokens: list[tuple[int, bytes, TokenLogprobs | None]], text: str = "") -> dict[str, Any]:
        built: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        skipped = self._tokenizer.special_ids if text else self._skipped  # of a prompt, only its text tells
        for token_id, data, detail in tokens:
            hidden = token_id in skipped and not text.startswith(data.decode(errors="replace"), self._characters)
            built["tokens"].append(_name(data))
            built["token_logprobs"].append(None if detail is None else max(detail.logprob, LOWEST))
            built["top_logprobs"].append(None if detail is None else self._best(data, detail))
            built["text_offset"].append(self._place(data, hidden=hidden))
        return built

    def _place(self, data: bytes, *, hidden: bool) -> int:
        """Where a token begins in the text, in characters."""
        # A token that starts with continuation bytes starts inside the character of the token before.
        inside = bool(data) and data[0] & 0xC0 == 0x80 and self._characters > 0
        place = self._characters - inside
        self._characters += 0 if hidden else sum(byte & 0xC0 != 0x80 for byte in data)
        return place

    def _best(self, data: bytes, detail: TokenLogprobs) -> dict[str, float]:
        top = ((self._tokenizer.token_bytes(token), logprob) for token, logprob in detail.top[: self._num_top])
        best = {_name(other): max(logprob, LOWEST) for other, logprob in top}
        best.setdefault(_name(data), max(detail.logprob, LOWEST))
        return best


def _name(data: bytes) -> str:
    """A token's text; where its bytes are not whole characters, ``bytes:\\xe6\\x97`` as OpenAI writes it."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def prompt_logprobs(
    tokenizer: Tokenizer, token_ids: tuple[int, ...], known: tuple[TokenLogprobs, ...], num_top: int
) -> list[dict[str, Any] | None]:
    """The ``prompt_logprobs`` of an answer, as vLLM gives them: for each token of the prompt an object from token ids
    to what is known of them, and null for the first."""

    def entry(token_id: int, logprob: float, rank: int | None) -> dict[str, Any]:
        decoded = tokenizer.token_bytes(token_id).decode(errors="replace")
        return {"logprob": max(logprob, LOWEST), "rank": rank, "decoded_token": decoded}

    given: list[dict[str, Any] | None] = [None]
    for token_id, detail in zip(token_ids[1:], known, strict=True):
        found = {
            str(token): entry(token, logprob, rank) for rank, (token, logprob) in enumerate(detail.top[:num_top], 1)
        }
        found.setdefault(str(token_id), entry(token_id, detail.logprob, detail.rank))
        given.append(found)
    return given


def finish_fields(finish: Finish | None) -> dict[str, Any]:
    """``finish_reason`` and ``stop_reason`` of a choice; null until the end."""
    if finish is None:
        return {"finish_reason": None}
    return {"finish_reason": finish.reason.value, "stop_reason": finish.stop_reason}
