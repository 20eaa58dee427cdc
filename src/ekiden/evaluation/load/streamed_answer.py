"""What a streamed answer of a completions or chat endpoint said, read after the run, when time does not matter."""

import hashlib
from collections.abc import Sequence

import msgspec


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None


class _Error(msgspec.Struct):
    code: str | int | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_DECODER = msgspec.json.Decoder(_Event)


class StreamedAnswer(msgspec.Struct, kw_only=True):
    """``token_ids`` is None where the server did not tell them, ``counted`` where it told no usage."""

    text: str
    token_ids: tuple[int, ...] | None
    counted: int | None
    error_code: str | None

    @property
    def text_digest(self) -> str:
        """SHA-256 of the text."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()


def read_answer(pieces: Sequence[bytes]) -> StreamedAnswer:
    """Read the body of an answer: events, or one error as JSON. What cannot be read is passed over, because the client
    that received it has judged it already."""
    body = b"".join(pieces)
    texts: list[str] = []
    ids: list[int] | None = None
    answer = StreamedAnswer(text="", token_ids=None, counted=None, error_code=None)
    for payload in _payloads(body):
        try:
            event = _DECODER.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        for choice in event.choices:
            texts.append(choice.text or (choice.delta.content if choice.delta else None) or "")
            if choice.token_ids is not None:
                ids = ids or []
                ids += choice.token_ids
        if event.usage is not None and event.usage.completion_tokens is not None:
            answer.counted = event.usage.completion_tokens
        if event.error is not None and event.error.code is not None:
            answer.error_code = str(event.error.code)
    answer.text = "".join(texts)
    answer.token_ids = None if ids is None else tuple(ids)
    return answer


def _payloads(body: bytes) -> list[bytes]:
    lines = body.split(b"\n")
    found = [line[5:].strip() for line in lines if line.startswith(b"data:")]
    return [payload for payload in found if payload != b"[DONE]"] or [body]
