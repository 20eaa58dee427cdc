"""Chat answers from a server over HTTP."""

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx

from ekiden.errors import UserError
from ekiden.evaluation.target import Target

CONNECT_SECONDS = 10.0
Messages = list[dict[str, str]]
Answer = Callable[[Messages], Generator[str]]
"""The text of an answer, piece by piece; closing the generator stops it. Raises :class:`UserError`."""


@contextmanager
def remote_answers(url: str, api_key: str | None, options: dict[str, Any]) -> Iterator[Answer]:
    """Answers from ``/v1/chat/completions`` of any OpenAI-compatible server, by the first model that it lists.

    Raises :class:`UserError` when nobody answers.
    """
    target = Target.parse(url, api_key=api_key)
    timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
    with target.client(timeout=timeout) as client:
        model = _first_model(client, target)
        yield partial(_answer, client, target, {"model": model, "stream": True, **options})


def _first_model(client: httpx.Client, target: Target) -> str:
    try:
        answer = client.get(f"{target.base}/models", timeout=CONNECT_SECONDS)
        if answer.status_code != 200:
            raise UserError(f"{target.url}/models answered: {_error_message(answer)}")
        return str(answer.json()["data"][0]["id"])
    except httpx.HTTPError as error:
        raise UserError(target.no_answer(target.url, error)) from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"{target.url}/models is not a list of models; is it an OpenAI-compatible server?") from error


def _answer(client: httpx.Client, target: Target, options: dict[str, Any], messages: Messages) -> Generator[str]:
    try:
        with client.stream("POST", f"{target.base}/chat/completions", json={**options, "messages": messages}) as answer:
            if answer.status_code != 200:
                answer.read()
                raise UserError(_error_message(answer))
            for line in answer.iter_lines():
                if line.startswith("data:") and (piece := _content(line[5:].strip())):
                    yield piece
    except httpx.HTTPError as error:
        raise UserError(f"the server went away: {str(error) or type(error).__name__}") from error


def _content(data: str) -> str:
    """The text of one event; raises :class:`UserError` for an error event."""
    if data == "[DONE]":
        return ""
    event = json.loads(data)
    if "error" in event:
        raise UserError(str(event["error"].get("message", "the server reports an error")))
    choices = event.get("choices") or [{}]
    return str(choices[0].get("delta", {}).get("content") or "")


def _error_message(answer: httpx.Response) -> str:
    try:
        return f"{answer.json()['error']['message']} ({answer.status_code})"
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"
