"""Chooses the tokens of rows from their logits. A backend runs it where its logits are.

Rules:
- a token depends on its own logits and on its row's sampling inputs, never on other rows;
- a greedy choice is an argmax over the backend's buffer (of equal logits the lower id wins); other choices are drawn by
  ``draw.py`` from the reduced logits; choices with penalties, bias, a minimum length or a grammar use an edited copy;
- a draw is keyed by (seed, position), so it is the same in every batch and however often it is made. A draft can
  therefore be checked by drawing at its position: an accepted draft is the token that would have been drawn anyway.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ekiden.sampling.draw import Draw, choose
from ekiden.sampling.edits import edit, restrict
from ekiden.sampling.logprobs import token_logprobs
from ekiden.sampling.reduction import FloatMatrix, Reducer, numpy_reduce, pad_vocabulary
from ekiden.state.plan import Row, RowResult, RowSampling

LEAST_TEMPERATURE = 1e-5
"""Below it, float32 cannot distinguish the distribution from its highest token, and the choice is greedy."""


class Choice(NamedTuple):
    """One token to choose: the one at ``position`` of its sequence, after ``drafts``."""

    sampling: RowSampling
    position: int
    drafts: tuple[int, ...] = ()

    @property
    def too_short(self) -> bool:
        """Whether the answer may not end yet."""
        sampling = self.sampling
        return self.position - sampling.num_prompt_tokens < sampling.params.min_tokens

    @property
    def edited(self) -> bool:
        return self.sampling.params.edits_logits or bool(self.sampling.masks) or self.too_short


class Sampler:
    """``reducer`` is the backend's own, if it has one. ``eos_token_ids`` are forbidden before ``min_tokens``."""

    def __init__(self, reducer: Reducer = numpy_reduce, eos_token_ids: frozenset[int] = frozenset()) -> None:
        self._reducer = reducer
        self._eos_token_ids = eos_token_ids

    def sample(self, logits: FloatMatrix, rows: list[Row]) -> list[RowResult]:
        """Choose the tokens of ``rows``, each of which has logit positions.

        ``logits`` ``[positions, vocab]`` is only read; it has the logits at :attr:`Row.logit_positions`, row after row.
        """
        choices = [choice for row in rows for choice in _choices(row)]
        tokens = self._choose(logits, choices)
        results, at = [], 0
        for row in rows:
            chosen = tokens[at : at + row.num_drafts + 1]
            kept = 1 + num_accepted(row, chosen) if row.num_drafts else 1
            reported = choices[at].sampling.params.logprobs
            details = None
            if reported is not None:
                details = tuple(token_logprobs(logits[at + i], chosen[i], reported) for i in range(kept))
            results.append(RowResult(tuple(chosen[:kept]), details))
            at += len(chosen)
        return results

    def _choose(self, logits: FloatMatrix, choices: list[Choice]) -> list[int]:
        """A token for each choice, greedy or drawn, from the logits as they are or from an edited copy."""
        drawn = [at for at, choice in enumerate(choices) if choice.sampling.params.temperature >= LEAST_TEMPERATURE]
        edited = [at for at, choice in enumerate(choices) if choice.edited]
        if not drawn and not edited:
            greedy: list[int] = logits.argmax(axis=1).tolist()
            return greedy
        tokens = [0] * len(choices)
        changed = self._edit(logits, choices, edited)
        place_of = {at: place for place, at in enumerate(edited)}
        for at in set(range(len(choices))).difference(drawn):
            row = changed[place_of[at]] if at in place_of else logits[at]
            tokens[at] = int(row.argmax())
        plain = [at for at in drawn if at not in place_of]
        whole = 2 * len(plain) >= len(choices)  # reading all in place is faster than copying half of them
        self._draw(logits if whole else logits[plain], choices, plain, plain if whole else range(len(plain)), tokens)
        both = [at for at in drawn if at in place_of]
        self._draw(changed, choices, both, [place_of[at] for at in both], tokens)
        return tokens

    def _edit(self, logits: FloatMatrix, choices: list[Choice], edited: list[int]) -> FloatMatrix:
        changed = logits[edited]
        for row, at in zip(changed, edited, strict=True):
            sampling, _, drafts = choice = choices[at]
            forbidden = self._eos_token_ids.union(sampling.stop_token_ids) if choice.too_short else frozenset[int]()
            edit(row, sampling.params, sampling.history + drafts, sampling.num_prompt_tokens, forbidden)
            if sampling.masks:
                restrict(row, sampling.masks[len(drafts)], logits[at])
        return changed

    def _draw(
        self, matrix: FloatMatrix, choices: list[Choice], drawn: list[int], places: Sequence[int], tokens: list[int]
    ) -> None:
        """Draw for ``drawn``, whose logits lie at ``places`` of ``matrix``."""
        if not drawn:
            return
        draws = [
            Draw(place, choices[at].sampling.params, choices[at].sampling.seed, choices[at].position)
            for place, at in zip(places, drawn, strict=True)
        ]
        inverse = np.ones(len(matrix), np.float32)
        inverse[places] = [1.0 / draw.params.temperature for draw in draws]
        padded = pad_vocabulary(matrix)
        reduced = self._reducer(padded, inverse)
        for at, token in zip(drawn, choose(padded, reduced, draws), strict=True):
            tokens[at] = token


def _choices(row: Row) -> Iterable[Choice]:
    assert row.sampling is not None
    if not row.num_drafts:
        return (Choice(row.sampling, row.end),)
    drafts = row.token_ids[-row.num_drafts :]
    return [Choice(row.sampling, position + 1, drafts[:at]) for at, position in enumerate(row.logit_positions)]


def num_accepted(row: Row, chosen: list[int]) -> int:
    """How many of a row's drafts equal the chosen tokens. ``chosen`` has a token for each logit position."""
    drafts = row.token_ids[len(row.token_ids) - row.num_drafts :]
    return next((at for at, draft in enumerate(drafts) if chosen[at] != draft), row.num_drafts)
