"""Chooses the next token of every row from its logits.

Rules:
- a row's token depends on its own logits, request, seed and position, never on the rows beside it;
- greedy rows are an argmax over the backend's buffer, ties by lower id; the rest is drawn by ``draw.py`` from what a
  reducer says of the row; rows with penalties, bias, a minimum length or a grammar are edited on a copy of their own;
- the draw is keyed by (seed, position), so it is the same however often and in whatever batch it is made.
"""

import numpy as np

from ekiden.sampling.draw import Draw, choose
from ekiden.sampling.edits import edit, restrict
from ekiden.sampling.logprobs import token_logprobs
from ekiden.sampling.reduction import FloatMatrix, NumpyReducer, Reducer, pad_vocabulary
from ekiden.state.request import TokenLogprobs
from ekiden.state.sequence import Sequence

LEAST_TEMPERATURE = 1e-5
"""Below it a distribution cannot be told from its highest token in float32, and the row is greedy."""


class Sampler:
    """``reducer`` is the backend's own where it has one. ``eos_token_ids`` may not come before ``min_tokens``."""

    def __init__(self, reducer: Reducer | None = None, eos_token_ids: frozenset[int] = frozenset()) -> None:
        self._reducer = reducer or NumpyReducer()
        self._eos_token_ids = eos_token_ids

    def sample(
        self, logits: FloatMatrix, sequences: list[Sequence]
    ) -> tuple[list[int], list[TokenLogprobs | None] | None]:
        """A token for each row of ``logits`` (``[len(sequences), vocab]``, read only), and log-probabilities where a
        row asked for them; None when no row did."""
        if not sequences:
            return [], None
        drawn, edited, reporting = [], [], []
        for row, sequence in enumerate(sequences):
            params = sequence.request.sampling
            if params.temperature >= LEAST_TEMPERATURE:
                drawn.append(row)
            too_short = params.min_tokens and sequence.num_output_tokens < params.min_tokens
            if params.edits_logits or too_short or sequence.rules is not None:
                edited.append(row)
            if params.logprobs is not None:
                reporting.append(row)
        if drawn or edited:
            tokens = self._mixed(logits, sequences, drawn, edited)
        else:
            tokens = logits.argmax(axis=1).tolist()
        if not reporting:
            return tokens, None
        details: list[TokenLogprobs | None] = [None] * len(sequences)
        for row in reporting:
            details[row] = token_logprobs(logits[row], tokens[row], sequences[row].request.sampling.logprobs or 0)
        return tokens, details

    def _mixed(self, logits: FloatMatrix, sequences: list[Sequence], drawn: list[int], edited: list[int]) -> list[int]:
        """Each row by its own way: as it is or edited, greedy or drawn."""
        tokens = [0] * len(sequences)
        changed = self._edit(logits, sequences, edited) if edited else logits
        is_drawn, is_edited = set(drawn), set(edited)
        for row in range(len(sequences)):
            if row not in is_drawn and row not in is_edited:
                tokens[row] = int(logits[row].argmax())
        for at, row in enumerate(edited):
            if row not in is_drawn:
                tokens[row] = int(changed[at].argmax())
        plain = [row for row in drawn if row not in is_edited]
        whole = 2 * len(plain) >= len(sequences)  # reading all rows in place costs less than copying half of them
        self._draw(logits if whole else logits[plain], sequences, plain, plain if whole else None, tokens)
        if edited:
            places = [at for at, row in enumerate(edited) if row in is_drawn]
            self._draw(changed, sequences, [edited[at] for at in places], places, tokens)
        return tokens

    def _edit(self, logits: FloatMatrix, sequences: list[Sequence], rows: list[int]) -> FloatMatrix:
        changed = logits[rows]
        for at, row in enumerate(rows):
            sequence = sequences[row]
            params = sequence.request.sampling
            too_short = sequence.num_output_tokens < params.min_tokens
            forbidden = self._eos_token_ids | sequence.stop_token_ids if too_short else frozenset[int]()
            edit(changed[at], params, sequence.token_ids, sequence.num_prompt_tokens, forbidden)
            if sequence.rules is not None and not sequence.padding:
                restrict(changed[at], sequence.rules.allowed(), logits[row])
        return changed

    def _draw(
        self,
        matrix: FloatMatrix,
        sequences: list[Sequence],
        rows: list[int],
        places: list[int] | None,
        tokens: list[int],
    ) -> None:
        """Draw for ``rows``, which lie at ``places`` of ``matrix`` (in order from 0 when None), into ``tokens``."""
        if not rows:
            return
        places = list(range(len(rows))) if places is None else places
        draws = [
            Draw(place, sequences[row].request.sampling, sequences[row].seed, len(sequences[row].token_ids))
            for place, row in zip(places, rows, strict=True)
        ]
        inverse = np.ones(len(matrix), np.float32)
        inverse[places] = [1.0 / draw.params.temperature for draw in draws]
        padded = pad_vocabulary(matrix)
        reduced = self._reducer.reduce(padded, inverse)
        for row, token in zip(rows, choose(padded, reduced, draws), strict=True):
            tokens[row] = token
