"""Drafts as values: a guess and what it rests on, the port that guesses come from, and why a row got none."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from ekiden.state.plan import RowSampling

BY_MODEL: Final = 0
BY_GRAMMAR: Final = -1
"""In place of the length of a match: a draft model made the guess, or a grammar leaves hardly another choice."""


class Guess(NamedTuple):
    """Tokens that may come next. ``match``: as many tokens before them as had come before, with these after them; or
    :data:`BY_MODEL` or :data:`BY_GRAMMAR`."""

    tokens: Sequence[int] = ()
    match: int = BY_MODEL


NO_GUESS: Final = Guess()


class Ask(NamedTuple):
    """A sequence of which the next tokens are to be guessed, given its tokens so far (prompt, then output).

    At most ``limit`` tokens are wanted, and of a draft model, which takes time, at most ``model_limit`` of them.
    ``sampling``: how its tokens are drawn, where that is the same for each.
    """

    request_id: str
    token_ids: Sequence[int]
    limit: int
    model_limit: int
    sampling: RowSampling | None = None


class Drafter(Protocol):
    """Guesses how sequences go on. A wrong guess costs time and never changes a token. What it knows of a sequence
    follows from the sequence's tokens, so that any of it may be lost and made again."""

    @property
    def micros_per_draft(self) -> int:
        """Whole microseconds that a draft of a draft model has taken lately; 0 for one that does not compute."""
        return 0

    def prepare(self, asks: Sequence[Ask]) -> None:
        """The sequences of this step, of which each is asked for next: a draft model computes them together here."""
        return

    def guess(self, ask: Ask) -> Guess:
        """:data:`NO_GUESS` when nothing is known."""
        ...

    def forget(self, request_id: str) -> None:
        """The request has ended, or is unknown."""
        return


class NoDrafts(StrEnum):
    """Why a decode row could have had drafts and got none."""

    NO_GUESS = "no_guess"
    """Nothing like its last tokens came before."""
    UNLIKELY = "unlikely"
    """A token more costs more than the drafts are likely to save, by the step-time model and the acceptance so far."""
    LENGTH = "length"
    """It has one token left."""
    TOKEN_BUDGET = "token_budget"
    INTER_TOKEN_TARGET = "inter_token_target"
    KV_BLOCKS = "kv_blocks"
    FORBIDDEN = "forbidden"
    """Its grammar allows none of them."""


@dataclass(slots=True)
class Drafting:
    """What came of one sequence's drafts. ``refused`` counts the steps in which it got none, by the reason.

    ``right`` and ``tried`` count drafts for each ground (:mod:`ekiden.policies.draft_chances`), the old ones fading.
    """

    grounds: int
    num_rows: int = 0
    num_drafts: int = 0
    num_accepted: int = 0
    refused: dict[NoDrafts, int] = field(default_factory=dict)
    reason: NoDrafts | None = None
    """That of the last step."""
    match: int = 0
    """Of the drafts in the step in progress."""
    right: list[float] = field(init=False)
    tried: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.right, self.tried = [0.0] * self.grounds, [0.0] * self.grounds
