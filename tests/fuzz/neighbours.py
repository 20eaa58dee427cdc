"""Innocent requests beside attacks: whatever else the server computes, they are given the same answers."""

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.target import Target

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"


def _of_chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 16, **fields}


def _of_text(text: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": text, "max_tokens": 16, "ignore_eos": True, "return_token_ids": True, **fields}


# Some are long enough to outgrow a tiny pool together.
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    (TEXT, _of_text("Once upon a time", temperature=0, logprobs=2, max_tokens=160)),
    (TEXT, _of_text("The capital of France is " * 8, temperature=0.9, seed=3, top_p=0.9, max_tokens=80)),
    (CHAT, _of_chat("Count to ten.", temperature=1.0, seed=4, top_k=30, stream=True)),
    (
        TEXT,
        _of_text(
            "1 2 3 4", temperature=0.8, seed=5, repetition_penalty=1.3, stop=["never said"], max_tokens=160, stream=True
        ),
    ),
    (CHAT, _of_chat("A word?", temperature=0.7, seed=6, guided_regex="[a-z]{3,30}")),
    (MESSAGES, _of_chat("Hello there!", temperature=0)),
    (TEXT, _of_text("def f(x):", temperature=1.2, seed=7, min_p=0.02, presence_penalty=0.4, n=2, max_tokens=140)),
    (CHAT, _of_chat("Say something long. " * 10, temperature=0, logprobs=True, top_logprobs=2, max_tokens=40)),
)


@dataclass
class Neighbours:
    """Their answers when they were alone, and how often each was asked again since."""

    target: Target
    usual: list[Any] = field(default_factory=list)
    asked: int = 0
    _turn: Iterator[int] = field(default_factory=lambda: itertools.cycle(range(len(REQUESTS))))

    def learn(self) -> None:
        """Ask each alone, twice, with nobody else in the server."""
        self.usual = [self._ask(at) for at in range(len(REQUESTS))]
        again = [self._ask(at) for at in range(len(REQUESTS))]
        assert again == self.usual, "the answers differ even without an attack"

    def start(self, pool: Executor, count: int) -> "list[tuple[int, Future[Any]]]":
        """Ask the next ``count`` of them, beside whatever comes."""
        return [(at, pool.submit(self._ask, at)) for at in itertools.islice(self._turn, count)]

    def check(self, asked: "list[tuple[int, Future[Any]]]") -> None:
        for at, answer in asked:
            found = answer.result()
            assert found == self.usual[at], f"neighbour {at} was changed: {found} in place of {self.usual[at]}"
            self.asked += 1

    def _ask(self, at: int) -> Any:
        path, body = REQUESTS[at]
        status, text = self.target.post(path, {"model": self.target.model, **body})
        assert status == 200, f"neighbour {at} was answered {status}: {text[:300]!r}"
        if body.get("stream"):
            pieces = text.decode().split("\n\n")
            assert pieces[-2:] == ["data: [DONE]", ""], f"neighbour {at} has no end"
            return _choices([json.loads(piece[6:]) for piece in pieces[:-2] if piece.startswith("data: ")])
        return _choices([json.loads(text)])


def _choices(parts: list[dict[str, Any]]) -> list[Any]:
    """What a client reads: texts, token ids, log-probabilities and ends; not ids, times and cached tokens.

    How a stream is cut into pieces depends on who reads when, so its texts are joined.
    """
    texts: dict[int, str] = {}
    found = []
    for part in parts:
        for choice in part.get("choices", [part]):
            content = choice.get("delta", choice)
            if "delta" in choice or part.get("object") == "text_completion":
                at = choice["index"]
                texts[at] = texts.get(at, "") + (content.get("content") or content.get("text") or "")
            kept = {key: choice[key] for key in ("message", "logprobs", "content", "stop_reason") if key in choice}
            if "delta" not in choice and any(value is not None for value in kept.values()):
                found.append(kept)
            found += [choice["finish_reason"]] if choice.get("finish_reason") else []
    return [sorted(texts.items()), found]
