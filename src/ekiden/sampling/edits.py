"""Changes to one row's logits before a token is chosen: bias, penalties, and tokens that may not come yet.

Each function works in place on a copy of one row and looks at nothing but that row's own request. The order is vLLM's:
bias, then repetition, frequency and presence penalties, then the tokens that are forbidden for now.
"""

import numpy as np
import numpy.typing as npt

from ekiden.state.sampling_params import SamplingParams

FloatRow = npt.NDArray[np.float32]


def edit(
    row: FloatRow,
    params: SamplingParams,
    token_ids: list[int],
    num_prompt_tokens: int,
    forbidden: frozenset[int],
) -> None:
    """Apply everything that ``params`` asks for to ``row`` (``[vocab]``); ``token_ids`` is prompt then output."""
    if params.logit_bias:
        row[list(params.logit_bias)] += np.fromiter(params.logit_bias.values(), np.float32)
    if params.repetition_penalty != 1.0:
        penalise_repetition(row, token_ids, params.repetition_penalty)
    if params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
        penalise_output(row, token_ids[num_prompt_tokens:], params.frequency_penalty, params.presence_penalty)
    if forbidden:
        row[list(forbidden)] = -np.inf


def penalise_repetition(row: FloatRow, token_ids: list[int], penalty: float) -> None:
    """Each token of the prompt or the output once: a positive logit is divided by the penalty, others multiplied."""
    seen = np.unique(np.array(token_ids, np.int64))
    values = row[seen]
    row[seen] = np.where(values > 0, values / np.float32(penalty), values * np.float32(penalty))


def penalise_output(row: FloatRow, output_ids: list[int], frequency: float, presence: float) -> None:
    """Tokens of the output lose ``frequency`` for each time they came and ``presence`` once."""
    if not output_ids:
        return
    seen, counts = np.unique(np.array(output_ids, np.int64), return_counts=True)
    row[seen] -= (frequency * counts + presence).astype(np.float32)
