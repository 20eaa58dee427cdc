"""Chat answers from a server over HTTP."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from ekiden.errors import UserError
from ekiden.evaluation.sse_client import Target

CONNECT_SECONDS = 10.0


class RemoteAnswerer:
    """Answers a chat with ``/v1/chat/completions`` of any OpenAI-compatible server."""

    def __init__(self, url: str, api_key: str | None, options: dict[str, Any]) -> None:
        self._target = Target.parse(url, api_key=api_key)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.AsyncClient(headers=headers, timeout=httpx.Timeout(None, connect=CONNECT_SECONDS))
        self._options = options
        self._model = ""

    async def open(self) -> None:
        """Find out which model is served; raises :class:`UserError` when nobody answers."""
        try:
            answer = await self._client.get(f"{self._target.url}/models", timeout=CONNECT_SECONDS)
            if answer.status_code != 200:
                told = _error_message(answer.status_code, answer.content)
                raise UserError(f"{self._target.url}/models answered: {told}")
            self._model = str(answer.json()["data"][0]["id"])
        except httpx.HTTPError as error:
            raise UserError(f"no answer from {self._target.url}: {error}; is the server running?") from error
        except (ValueError, KeyError, IndexError, TypeError) as error:
            message = f"{self._target.url}/models is not a list of models; is it an OpenAI-compatible server?"
            raise UserError(message) from error

    async def close(self) -> None:
        await self._client.aclose()

    async def answer(self, messages: list[dict[str, str]]) -> AsyncIterator[str]:
        body = {"model": self._model, "messages": messages, "stream": True, **self._options}
        try:
            async with self._client.stream("POST", f"{self._target.url}/chat/completions", json=body) as answer:
                if answer.status_code != 200:
                    raise UserError(_error_message(answer.status_code, await answer.aread()))
                async for line in answer.aiter_lines():
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


def _error_message(status: int, body: bytes) -> str:
    try:
        return f"{json.loads(body)['error']['message']} ({status})"
    except (ValueError, KeyError, TypeError):
        return f"status {status}"
