"""Prompt files as token ids, for the commands that run the engine in this process."""

from collections.abc import Mapping
from typing import Any

import msgspec

from ekiden.models.chat_template import ChatTemplate
from ekiden.models.conversation import chat_token_ids
from ekiden.models.tokenizer import Tokenizer
from ekiden.state.sampling_params import SamplingParams, validate


class PromptLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a prompt file: one of the three kinds of prompt, and the sampling fields of the HTTP API."""

    id: str | int | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    prompt_token_ids: list[int] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None


_KINDS = ("prompt", "messages", "prompt_token_ids")


def read_line(text: bytes) -> PromptLine:
    """One line, with all checks that need no model. Raises ValueError saying what is wrong."""
    try:
        line = msgspec.json.decode(text, type=PromptLine)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    given = [kind for kind in _KINDS if getattr(line, kind) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise ValueError(f"one of {', '.join(_KINDS)} is needed, and there is {found}")
    if line.messages is not None and not all(isinstance(m.get("role"), str) for m in line.messages):
        raise ValueError("each of the messages needs a role")
    return line


def sampling_of(line: PromptLine, defaults: Mapping[str, float | int], *, vocab_size: int) -> SamplingParams:
    """The line's sampling over the model's defaults. Raises ValueError naming the field."""
    written = {name: value for name, value in msgspec.structs.asdict(line).items() if value is not None}
    values: dict[str, Any] = {**defaults, **{n: v for n, v in written.items() if n in SamplingParams.__struct_fields__}}
    if line.max_completion_tokens is not None:
        values["max_tokens"] = line.max_completion_tokens
    values["stop"] = (line.stop,) if isinstance(line.stop, str) else tuple(line.stop or ())
    values["stop_token_ids"] = tuple(line.stop_token_ids or ())
    params = SamplingParams(**values)
    validate(params, vocab_size=vocab_size)
    return params


def line_token_ids(line: PromptLine, tokenizer: Tokenizer, template: ChatTemplate | None) -> list[int]:
    """The prompt of a line as token ids; raises UserError for messages that the template refuses."""
    if line.prompt_token_ids is not None:
        return line.prompt_token_ids
    if line.prompt is not None:
        return tokenizer.encode(line.prompt, add_special_tokens=True, parse_special=True)
    assert line.messages is not None, "read_line() lets no other line pass"
    return chat_token_ids(tokenizer, template, line.messages)
