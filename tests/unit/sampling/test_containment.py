"""Rows that cannot be sampled fail alone: the others get the very tokens that they would have had."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekiden.sampling import edits
from ekiden.sampling import sampler as module
from ekiden.sampling.edits import restrict
from ekiden.sampling.sampler import Sampler, with_prompt_logprobs
from ekiden.state.invariants import Invariant, InvariantBreach
from ekiden.state.plan import Row, RowResult
from ekiden.state.request import TokenLogprobs
from ekiden.state.sampling_params import BIAS, BOUNDS, InvalidSamplingParams, SamplingParams, validate
from tests.unit.sampling.naive import row_of, sequence

VOCAB = 500
EOS = 7
CULPRIT = 666
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.8, "logprobs": 2},
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 1.0, "top_k": 3, "logprobs": 1},
    {"temperature": 1.2, "presence_penalty": 1.0, "min_p": 0.02},
    {"temperature": 1.0, "logit_bias": {3: 5.0, 400: -100.0}, "min_tokens": 50},
]


def logits_of(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (rows, VOCAB)).astype(np.float32)


def rows_of(kinds: list[int], culprit: int, seed: int = 0) -> list[Row]:
    return [
        row_of(sequence(output=[at, 5, at + 1], seed=CULPRIT if at == culprit else seed + at, **KINDS[kind]), at)
        for at, kind in enumerate(kinds)
    ]


def others(results: list[RowResult], culprit: int) -> list[RowResult]:
    return results[:culprit] + results[culprit + 1 :]


@given(kinds=st.lists(st.sampled_from(range(len(KINDS))), min_size=2, max_size=9), data=st.data())
def test_a_row_that_raises_fails_alone_and_the_others_are_as_ever(kinds: list[int], data: st.DataObject) -> None:
    """Chosen for one by one, rows get what they get together, bit by bit."""
    culprit = data.draw(st.integers(0, len(kinds) - 1))
    kinds[culprit] = data.draw(st.sampled_from([1, 4, 5]))  # kinds with an edit to fail in
    error = data.draw(st.sampled_from([IndexError, AssertionError, type("Panic", (BaseException,), {})]))
    logits, rows = logits_of(len(kinds)), rows_of(kinds, culprit)
    usual = Sampler(eos_token_ids=frozenset({EOS})).sample(logits, rows)
    real, calls = edits.edit, []

    def edit(row: Any, params: SamplingParams, token_ids: Any, *rest: Any) -> None:
        calls.append(1)
        if token_ids[-2:] == (5, culprit + 1) or (not token_ids and params == rows[culprit].sampling.params):  # type: ignore[union-attr]
            raise error("planted")
        real(row, params, token_ids, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "edit", edit)
        found = Sampler(eos_token_ids=frozenset({EOS})).sample(logits, rows)
    assert calls
    assert "planted" in (found[culprit].error or "")
    assert found[culprit].tokens == ()
    same = [at for at, result in enumerate(found) if result.error is None]
    assert [found[at] for at in same] == [usual[at] for at in same]
    twins = [at for at, kind in enumerate(kinds) if kind == kinds[culprit] == 5]  # those look the same to an edit
    assert set(range(len(kinds))) - set(same) <= {culprit, *twins}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", range(len(KINDS)))
@pytest.mark.parametrize("whole", [False, True])
def test_logits_that_are_no_numbers_fail_their_row_alone(value: float, kind: int, whole: bool) -> None:
    kinds, culprit = [0, 2, kind, 3, 1], 2
    logits = logits_of(5)
    usual = Sampler().sample(logits.copy(), rows_of(kinds, culprit))
    assert usual[culprit].error is None
    if whole:
        logits[culprit] = value
    elif value == -np.inf:
        return  # a token that cannot come, and no fault
    else:
        logits[culprit, 123] = value
    found = Sampler().sample(logits, rows_of(kinds, culprit))
    assert others(found, culprit) == others(usual, culprit)
    expected = "no token can come next" if value == -np.inf else "the model's logits are no numbers"
    assert (found[culprit].error or "").startswith(expected)


def test_no_row_is_scanned_or_tried_alone_for_another_rows_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows in what was chosen: the batch is done once, and only the failed row is looked through, for its cause."""
    causes = []
    real = module._why_none

    def why_none(row: Any) -> str:
        causes.append(1)
        return real(row)

    monkeypatch.setattr(module, "_why_none", why_none)
    monkeypatch.setattr(Sampler, "_sample_alone", None)
    logits = logits_of(64)
    logits[10] = np.nan
    results = Sampler().sample(logits, rows_of([index % len(KINDS) for index in range(64)], 10))
    assert [at for at, result in enumerate(results) if result.error] == [10]
    assert causes == [1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_any_token_to_choose_fails_alone(temperature: float) -> None:
    every = frozenset(range(VOCAB))
    rows = [
        row_of(sequence(temperature=temperature, min_tokens=5, stops=every), 0),
        row_of(sequence(temperature=temperature, seed=3), 1),
    ]
    logits = logits_of(2)
    (alone,) = Sampler().sample(logits[1:].copy(), rows[1:])
    failed, fine = Sampler().sample(logits, rows)
    assert failed.error == "no token can come next: its settings forbid all that the model and its grammar allow"
    assert fine == alone


def test_an_invariant_is_not_contained(monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(*arguments: Any) -> None:
        raise InvariantBreach(Invariant.BLOCKS, "planted")

    monkeypatch.setattr(module, "edit", edit)
    with pytest.raises(InvariantBreach):
        Sampler().sample(logits_of(2), rows_of([0, 1], 1))


@pytest.mark.parametrize("hidden", [range(450, VOCAB), [3, 4, 90, 450], range(440, 470)], ids=str)
def test_ids_without_a_token_are_never_chosen(hidden: Any) -> None:
    """However likely the model says they are; and the others have the distribution of a model without them."""
    kinds = list(range(len(KINDS))) * 4
    logits, rows = logits_of(len(kinds)), rows_of(kinds, -1)
    without = logits.copy()
    without[:, list(hidden)] = -np.inf
    logits[:, list(hidden)] = 50.0
    found = Sampler(eos_token_ids=frozenset({EOS}), ids_without_token=hidden).sample(logits, rows)
    assert found == Sampler(eos_token_ids=frozenset({EOS})).sample(without, rows)
    assert not {token for result in found for token in result.tokens} & set(hidden)


def test_a_mask_that_ends_before_the_head_does_forbids_the_rest() -> None:
    row = np.ones(100, np.float32)
    row[90] = 9.0
    original = row.copy()
    restrict(row, b"\x03" + b"\0" * 7, original)
    assert np.flatnonzero(np.isfinite(row)).tolist() == [0, 1]
    row[:2] = -np.inf  # forbidden before a minimum length: the grammar's only tokens come all the same
    restrict(row, b"\x03" + b"\0" * 7, original)
    assert np.flatnonzero(np.isfinite(row)).tolist() == [0, 1]


def test_log_probabilities_of_prompts_that_are_not_known_fail_their_row() -> None:
    line = logits_of(1)[0]
    known = Sampler().prompt_logprobs(line, 4, 2)
    assert isinstance(known, TokenLogprobs)
    line[4] = np.nan
    reason = Sampler().prompt_logprobs(line, 4, 2)
    assert reason == "the model's logits are no numbers"
    assert Sampler().prompt_logprobs(line, VOCAB + 1, 2).startswith("its log-probabilities could not be computed")  # type: ignore[union-attr]
    result = RowResult((9,))
    assert with_prompt_logprobs(result, [known, known]).prompt_logprobs == (known, known)
    assert with_prompt_logprobs(result, [known, reason]) == RowResult(error=reason)


EDGES = [0, -0.0, 5e-324, 1e-310, 1e-38, 1e-7, 1e-5, 0.01, 0.5, 1, 1.0000001, 2, 10, 100, 1e38, 1e300, 2**63, 2**64]
FIELDS = [name for name in BOUNDS if name not in ("seed", "max_tokens", "logprobs", "prompt_logprobs")]


@given(
    fields=st.dictionaries(st.sampled_from(FIELDS), st.sampled_from([*EDGES, *[-edge for edge in EDGES]]), max_size=5),
    bias=st.dictionaries(st.integers(0, 40), st.sampled_from([BIAS.least, BIAS.most, 5e-324, 0.0]), max_size=3),
    scale=st.sampled_from([0.0, 1.0, 1e4, 1e-30]),
)
def test_whatever_is_within_the_bounds_gives_a_token(
    fields: dict[str, Any], bias: dict[int, float], scale: float
) -> None:
    """For every field at its extremes with any other, and logits of any size that a model may have."""
    for name in ("top_k", "min_tokens"):
        if name in fields:
            fields[name] = int(fields[name])
    params = SamplingParams(**fields, logit_bias=bias, logprobs=2)
    try:
        validate(params, vocab_size=VOCAB)
    except InvalidSamplingParams:
        return
    chosen = {**fields, "logit_bias": bias, "logprobs": 2, "seed": 3}
    each = sequence(output=[5, 5, 30], **chosen)
    (result,) = Sampler(eos_token_ids=frozenset({EOS})).sample(logits_of(1) * np.float32(scale), [row_of(each)])
    assert result.error is None
    assert result.logprobs is not None
    assert math.isfinite(result.logprobs[0].logprob)
