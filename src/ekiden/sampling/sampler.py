"""Chooses the tokens of rows from their logits. A backend runs it where its logits are.

Rules:
- a token depends on its own logits and on its row's sampling inputs, never on other rows;
- a greedy choice is an argmax over the backend's buffer (of equal logits the lower id wins); other choices are drawn by
  ``draw.py`` from the reduced logits; choices with penalties, bias, a minimum length or a grammar use an edited copy;
- a draw is keyed by (seed, position), so it is the same in every batch and however often it is made. A draft can
  therefore be checked by drawing at its position: an accepted draft is the token that would have been drawn anyway;
- what goes wrong for one row ends that row. All rows are chosen for together; when that raises, each is chosen for
  alone, which gives the same tokens, and the row that raises again is reported as failed. A row whose logits are no
  numbers, or none of whose tokens may come, shows in the logit that was chosen, or in the row's mass;
- ids that stand for no token (a head may have more rows than the vocabulary has entries) are never chosen.
"""

import logging
import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from ekiden.sampling.draw import Draw, choose
from ekiden.sampling.edits import edit, restrict
from ekiden.sampling.logprobs import prompt_token_logprobs, token_logprobs
from ekiden.sampling.reduction import FloatMatrix, FloatRow, Ids, Reducer, numpy_reduce, pad_vocabulary
from ekiden.state.containment import NOT_OF_ONE_REQUEST, cause_of
from ekiden.state.plan import Row, RowResult, RowSampling
from ekiden.state.request import TokenLogprobs

logger = logging.getLogger(__name__)

LEAST_TEMPERATURE = 1e-5
"""Below it, float32 cannot distinguish the distribution from its highest token, and the choice is greedy."""
NO_TOKEN: Final = -1
"""In place of a token where none can be chosen."""


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
    """``reducer`` is the backend's own, if it has one. ``eos_token_ids`` are forbidden before ``min_tokens``.
    ``ids_without_token`` are those of the model's ids that stand for nothing."""

    def __init__(
        self,
        reducer: Reducer = numpy_reduce,
        eos_token_ids: frozenset[int] = frozenset(),
        ids_without_token: Sequence[int] = (),
    ) -> None:
        self._reducer = reducer
        self._eos_token_ids = eos_token_ids
        self._hides = len(ids_without_token) > 0
        self._hidden = _places(ids_without_token)

    def sample(self, logits: FloatMatrix, rows: list[Row]) -> list[RowResult]:
        """Choose the tokens of ``rows``, each of which has logit positions.

        ``logits`` ``[positions, vocab]`` has the logits at :attr:`Row.logit_positions`, row after row. It is only read,
        except that ids without a token get the logit -inf. A row that failed has an error for its result.
        """
        if self._hides:
            logits[:, self._hidden] = -np.inf
        with np.errstate(all="ignore"):  # what is no number is found below
            try:
                return self._sample(logits, rows)
            except NOT_OF_ONE_REQUEST:
                raise
            except BaseException:  # noqa: BLE001 - a panic of a library in Rust is no Exception
                if len(rows) > 1:
                    logger.warning("choosing the tokens of %d rows together failed; each is tried alone", len(rows))
            results, at = [], 0
            for row in rows:
                end = at + len(row.logit_positions)
                results.append(self._sample_alone(logits[at:end], row))
                at = end
            return results

    def _sample_alone(self, logits: FloatMatrix, row: Row) -> RowResult:
        try:
            (result,) = self._sample(logits, [row])
        except NOT_OF_ONE_REQUEST:
            raise
        except BaseException as error:
            logger.exception("choosing the token of a row failed")
            return RowResult(error=f"its token could not be chosen: {cause_of(error)}")
        return result

    def prompt_logprobs(self, row: FloatRow, token: int, num_top: int) -> TokenLogprobs | str:
        """How likely ``token`` is after a position of a prompt, given the logits there; or why that is not known."""
        if self._hides:
            row[self._hidden] = -np.inf
        try:
            with np.errstate(all="ignore"):
                found = prompt_token_logprobs(row, token, num_top)
        except NOT_OF_ONE_REQUEST:
            raise
        except BaseException as error:
            logger.exception("the log-probabilities of a prompt failed")
            return f"its log-probabilities could not be computed: {cause_of(error)}"
        return _NOT_NUMBERS if math.isnan(found.logprob) else found

    def _sample(self, logits: FloatMatrix, rows: list[Row]) -> list[RowResult]:
        choices = [choice for row in rows for choice in _choices(row)]
        tokens = self._choose(logits, choices)
        results, at = [], 0
        for row in rows:
            chosen = tokens[at : at + row.num_drafts + 1]
            kept = 1 + num_accepted(row, chosen) if row.num_drafts else 1
            if NO_TOKEN in chosen[:kept]:
                results.append(RowResult(error=_why_none(logits[at + chosen.index(NO_TOKEN)])))
                at += len(chosen)
                continue
            reported = choices[at].sampling.params.logprobs
            details = None
            if reported is not None:
                details = tuple(token_logprobs(logits[at + i], chosen[i], reported) for i in range(kept))
            results.append(RowResult(tuple(chosen[:kept]), details))
            at += len(chosen)
        return results

    def _choose(self, logits: FloatMatrix, choices: list[Choice]) -> list[int]:
        """A token for each choice, greedy or drawn, from the logits as they are or from an edited copy; NO_TOKEN where
        there is none."""
        drawn = [at for at, choice in enumerate(choices) if choice.sampling.params.temperature >= LEAST_TEMPERATURE]
        edited = [at for at, choice in enumerate(choices) if choice.edited]
        if not drawn and not edited:
            found = logits.argmax(axis=1)
            greedy: list[int] = found.tolist()
            # NaN counts as the highest of all, so that it would have been chosen.
            usable = np.isfinite(logits[np.arange(len(found)), found])
            return greedy if usable.all() else np.where(usable, found, NO_TOKEN).tolist()
        tokens = [0] * len(choices)
        changed = self._edit(logits, choices, edited)
        place_of = {at: place for place, at in enumerate(edited)}
        for at in set(range(len(choices))).difference(drawn):
            row = changed[place_of[at]] if at in place_of else logits[at]
            token = int(row.argmax())
            tokens[at] = token if math.isfinite(row[token]) else NO_TOKEN
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
        inverse = np.ones(len(matrix), np.float32)
        inverse[places] = [1.0 / choices[at].sampling.params.temperature for at in drawn]
        padded = pad_vocabulary(matrix)
        reduced = self._reducer(padded, inverse)
        # The mass of a row is in units of its likeliest token's: it is no number if one of its logits is none.
        highest, mass = reduced.maxima[places].max(axis=1), reduced.sums[places].sum(axis=1)
        sound = (np.isfinite(highest) & np.isfinite(mass) & (mass > 0)).tolist()
        draws, sources = [], []
        for place, at, usable in zip(places, drawn, sound, strict=True):
            tokens[at] = NO_TOKEN
            if usable:
                sampling = choices[at].sampling
                draws.append(Draw(place, sampling.params, sampling.seed, choices[at].position))
                sources.append(at)
        for at, draw, token in zip(sources, draws, choose(padded, reduced, draws), strict=True):
            if math.isfinite(padded[draw.row, token]):
                tokens[at] = token


_NOT_NUMBERS: Final = "the model's logits are no numbers"


def _why_none(row: FloatRow) -> str:
    if np.isnan(row).any() or (row == np.inf).any():
        return _NOT_NUMBERS
    return "no token can come next: its settings forbid all that the model and its grammar allow"


def _places(ids: Sequence[int]) -> slice | Ids:
    """An index of ``ids``: a slice where they follow one another, as it takes a tenth of the time."""
    if ids and list(ids) == list(range(ids[0], ids[0] + len(ids))):
        return slice(ids[0], ids[0] + len(ids))
    return np.array(ids, np.int64)


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


def with_prompt_logprobs(result: RowResult, found: Iterable[TokenLogprobs | str]) -> RowResult:
    """A row's result with the log-probabilities of its prompt; an error where one of them is not known."""
    known = []
    for each in found:
        if isinstance(each, str):
            return RowResult(error=result.error or each)
        known.append(each)
    return msgspec.structs.replace(result, prompt_logprobs=tuple(known))
