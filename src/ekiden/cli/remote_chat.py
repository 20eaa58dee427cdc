"""Chat answers from a server over HTTP."""

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx

from ekiden.errors import UserError
from ekiden.evaluation.load.target import Target

CONNECT_SECONDS = 10.0
Messages = list[dict[str, str]]
Answer = Callable[[Messages], Generator[str]]
"""The text of an answer, piece by piece; closing the generator stops it. Raises :class:`UserError`."""


@contextmanager
def remote_answers(
    url: str, api_key: str | None, options: dict[str, Any], think: Callable[[str], None] = lambda text: None
) -> Iterator[Answer]:
    """Answers from ``/v1/chat/completions`` of any OpenAI-compatible server, by the first model that it lists.

    ``think`` is given what the model thinks before it answers, and a line end when it has done so.
    Raises :class:`UserError` when nobody answers.
    """
    target = Target.parse(url, api_key=api_key)
    timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
    with target.client(timeout=timeout) as client:
        model = _first_model(client, target)
        yield partial(_answer, client, target, think, {"model": model, "stream": True, **options})


def _first_model(client: httpx.Client, target: Target) -> str:
    try:
        answer = client.get(f"{target.base}/models", timeout=CONNECT_SECONDS)
        if answer.status_code != 200:
            raise UserError(f"{target.url}/models answered{target.through}: {_error_message(answer)}")
        return str(answer.json()["data"][0]["id"])
    except httpx.HTTPError as error:
        raise UserError(target.no_answer(target.url, error)) from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"{target.url}/models is not a list of models; is it an OpenAI-compatible server?") from error


def _answer(
    client: httpx.Client,
    target: Target,
    think: Callable[[str], None],
    options: dict[str, Any],
    messages: Messages,
) -> Generator[str]:
    try:
        with client.stream("POST", f"{target.base}/chat/completions", json={**options, "messages": messages}) as answer:
            if answer.status_code != 200:
                answer.read()
                raise UserError(_error_message(answer))
            thinks = False
            for line in answer.iter_lines():
                if not line.startswith("data:"):
                    continue
                thought, piece = _content(line[5:].strip())
                if thought:
                    think(thought)
                elif thinks and piece:
                    think("\n")
                thinks = bool(thought) or (thinks and not piece)
                if piece:
                    yield piece
    except httpx.HTTPError as error:
        raise UserError(f"the server went away: {str(error) or type(error).__name__}") from error


def _content(data: str) -> tuple[str, str]:
    """The reasoning and the text of one event; raises :class:`UserError` for an error event."""
    if data == "[DONE]":
        return "", ""
    event = json.loads(data)
    if "error" in event:
        raise UserError(str(event["error"].get("message", "the server reports an error")))
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta", {})
    return str(delta.get("reasoning_content") or delta.get("reasoning") or ""), str(delta.get("content") or "")


def _error_message(answer: httpx.Response) -> str:
    try:
        return f"{answer.json()['error']['message']} ({answer.status_code})"
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"
