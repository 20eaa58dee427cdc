"""Sampling in the obvious way, in float64 over the sorted row: the reference for the fast implementation."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ekiden.sampling.sampler import Sampler
from ekiden.state.plan import Row
from ekiden.state.request import Request, TokenLogprobs
from ekiden.state.sampling_params import SamplingParams
from ekiden.state.sequence import Sequence

Doubles = npt.NDArray[np.float64]


def probabilities(logits: npt.NDArray[np.float32], params: SamplingParams) -> Doubles:
    """The truncated, renormalised distribution: temperature, top_k, top_p, min_p, in this order."""
    scaled = (logits.astype(np.float64) - float(logits.max())) / params.temperature
    weights = np.exp(scaled)
    order = np.argsort(-logits, kind="stable")
    kept = order[: params.top_k] if params.top_k > 0 else order
    before = np.concatenate([[0.0], np.cumsum(weights[kept])[:-1]])
    if params.top_p < 1.0:
        kept = kept[before < params.top_p * weights[kept].sum()]
    kept = kept[weights[kept] >= params.min_p]
    result = np.zeros(len(logits))
    result[kept] = weights[kept] / weights[kept].sum()
    return result


def edited(
    logits: npt.NDArray[np.float32], params: SamplingParams, prompt: list[int], output: list[int]
) -> npt.NDArray[np.float32]:
    """Bias and penalties, token by token."""
    row = logits.astype(np.float64).copy()
    for token in range(len(row)):
        row[token] += params.logit_bias.get(token, 0.0)
        if token in prompt or token in output:
            row[token] = (
                row[token] / params.repetition_penalty if row[token] > 0 else row[token] * params.repetition_penalty
            )
        count = output.count(token)
        row[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
    return row.astype(np.float32)


def sequence(
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    seed: int = 0,
    stops: frozenset[int] = frozenset(),
    **fields: Any,
) -> Sequence:
    prompt = [1, 2] if prompt is None else prompt
    params = SamplingParams(**fields)
    return Sequence(
        request=Request(request_id="r", prompt_token_ids=tuple(prompt), sampling=params, arrival_time=0.0),
        seed=seed,
        token_ids=[*prompt, *(output or [])],
        num_prompt_tokens=len(prompt),
        max_total_tokens=4096,
        stop_token_ids=stops,
        num_computed_tokens=len(prompt) + len(output or []) - 1,
    )


def row_of(each: Sequence, slot: int = 0) -> Row:
    """The sequence's next token as a row of a plan."""
    each.slot = slot
    return each.row(1, (), () if each.rules is None else each.rules.masks())


def sample(
    sampler: Sampler, logits: npt.NDArray[np.float32], sequences: list[Sequence]
) -> tuple[list[int], list[TokenLogprobs | None]]:
    """The next token of each sequence, and its log-probabilities where they were asked for."""
    results = sampler.sample(logits, [row_of(each, slot) for slot, each in enumerate(sequences)])
    assert all(len(result.tokens) == 1 for result in results)
    details = [None if result.logprobs is None else result.logprobs[0] for result in results]
    return [result.tokens[0] for result in results], details
