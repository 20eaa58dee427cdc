"""Drafts for tests: a drafter that knows the answers, and a step time by which each draft is worth its place."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from ekiden.engine.engine_core import EngineCore
from ekiden.policies.lookup import LONGEST_MATCH
from ekiden.policies.speculation import Speculation
from ekiden.state.drafting import NO_GUESS, Ask, Drafter, Guess
from ekiden.state.policy import StepLoad, TimeRange


class FreeRows:
    """Every step takes a second, whatever is in it, and no step is too long."""

    def predict(self, load: StepLoad) -> TimeRange:
        return TimeRange(1.0, 1.0, 0.0)


@dataclass
class KnowsAnswers(Drafter):
    """Proposes the answer of the prompt, as ``answers`` has it; each ``wrong``-th draft is another token."""

    answers: Mapping[tuple[int, ...], Sequence[int]]
    wrong: int = 0
    prompts: dict[str, int] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    made: int = 0

    def guess(self, ask: Ask) -> Guess:
        length = self.prompts.get(ask.request_id)
        if length is None:  # an answer may have begun in an earlier engine
            lengths = (len(prompt) for prompt in self.answers if tuple(ask.token_ids[: len(prompt)]) == prompt)
            length = self.prompts[ask.request_id] = max(lengths, default=-1)
        if length < 0:
            return NO_GUESS
        done = len(ask.token_ids) - length
        found = list(self.answers[tuple(ask.token_ids[:length])][done : done + ask.limit])
        for place in range(len(found)):
            self.made += 1
            if self.wrong and self.made % self.wrong == 0:
                found[place] += 1
        return Guess(found, match=30)

    def forget(self, request_id: str) -> None:
        self.forgotten.add(request_id)


@cache
def _drawn(what: str, request_id: str, number: int) -> float:
    return random.Random(f"{what} {request_id} {number}").random()


@dataclass
class Foreseen(Drafter):
    """Texts of which some tokens can be guessed, and always the same ones; matches grow as those of a lookup do.

    ``answer(token_ids, count)``: what really comes next. ``found`` and ``right`` are the chances that there is a guess
    where none goes on, and that a guessed token is right. All prompts have ``prompt`` tokens.
    """

    answer: Callable[[Sequence[int], int], Sequence[int]]
    prompt: int
    right: float
    found: float = 0.9

    def match(self, request_id: str, number: int) -> int:
        """Of the guess at a token of the answer; 0 where there is none."""
        run = 0
        while number - run > 1 and self.is_right(request_id, number - run - 1):
            run += 1
        first = number - run
        found = _drawn("found", request_id, first) < self.found
        return min(2 + run, LONGEST_MATCH) if found else 0

    def is_right(self, request_id: str, number: int) -> bool:
        return _drawn("right", request_id, number) < self.right

    def guess(self, ask: Ask) -> Guess:
        number = len(ask.token_ids) - self.prompt
        match, right = self.match(ask.request_id, number), self.run(ask.request_id, number, ask.limit)
        if not match:
            return NO_GUESS
        answer = self.answer(ask.token_ids, ask.limit)
        return Guess([*answer[:right], *(token + 1 for token in answer[right:])], match)

    def run(self, request_id: str, number: int, limit: int) -> int:
        """How many of so many tokens are guessed rightly from this one on."""
        return next((place for place in range(limit) if not self.is_right(request_id, number + place)), limit)


def speculation_of(core: EngineCore) -> Speculation:
    assert core.formation.speculation is not None
    return core.formation.speculation


def guess_by(core: EngineCore, drafter: Drafter) -> None:
    """Have the drafter asked by an engine for which no draft is too dear."""
    speculation = speculation_of(core)
    speculation.drafter, speculation.step_time = drafter, FreeRows()
