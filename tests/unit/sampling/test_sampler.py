"""Choosing tokens: greedy, edits, minimum length, log-probabilities, and independence of the batch."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekiden.sampling.edits import edit
from ekiden.sampling.sampler import Sampler
from ekiden.state.sampling_params import SamplingParams
from tests.unit.sampling.naive import edited, probabilities, sample, sequence

VOCAB = 1000
EOS = 7


def logits_of(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (rows, VOCAB)).astype(np.float32)


@pytest.fixture
def sampler():
    return Sampler(eos_token_ids=frozenset({EOS}))


def test_greedy_takes_the_highest_and_of_equals_the_lowest_id(sampler):
    logits = logits_of(3)
    logits[0, [900, 30, 400]] = 50.0
    logits[2, [999, 0]] = 50.0
    tokens, details = sample(sampler, logits, [sequence(temperature=0.0) for _ in range(3)])
    assert tokens == [30, int(logits[1].argmax()), 0]
    assert details == [None] * 3


def test_no_rows_no_tokens(sampler):
    assert sample(sampler, logits_of(0), []) == ([], [])


def test_a_temperature_near_zero_is_greedy(sampler):
    logits = logits_of(1)
    assert sample(sampler, logits, [sequence(temperature=1e-12)])[0] == [int(logits.argmax())]


def test_the_models_logits_are_left_alone(sampler):
    logits = logits_of(3)
    before = logits.copy()
    rows = [
        sequence(output=[1, 1], temperature=0.0, repetition_penalty=2.0),
        sequence(temperature=0.8, logit_bias={5: 100.0}),
        sequence(temperature=0.8, top_p=0.9, min_tokens=3, logprobs=4),
    ]
    sample(sampler, logits, rows)
    assert (logits == before).all()


ROWS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "frequency_penalty": 1.5},
    {"temperature": 0.0, "repetition_penalty": 1.8},
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.2, "presence_penalty": 1.0, "top_k": 30},
    {"temperature": 1.0, "logit_bias": {3: 5.0, 900: -100.0}},
    {"temperature": 0.0, "min_tokens": 50},
    {"temperature": 1.0, "min_p": 0.1, "min_tokens": 50},
    {"temperature": 1.0, "logprobs": 3},
]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(range(len(ROWS))), min_size=1, max_size=24), st.integers(0, 1000))
def test_a_row_gets_the_same_token_alone_and_in_any_company(kinds, seed):
    sampler = Sampler(eos_token_ids=frozenset({EOS}))
    logits = logits_of(len(kinds), seed)
    rows = [
        sequence(output=[at, 5, 5, at + 1], seed=seed + at, **ROWS[kind])  # an output of its own in each row
        for at, kind in enumerate(kinds)
    ]
    together, details = sample(sampler, logits, rows)
    for at, row in enumerate(rows):
        (token,), detail = sample(sampler, logits[at : at + 1], [row])
        assert token == together[at]
        assert detail[0] == details[at]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=20),
    st.lists(st.integers(0, 30), max_size=20),
    st.sampled_from([0.0, 0.7, -1.5]),
    st.sampled_from([0.0, 2.0, -0.3]),
    st.sampled_from([1.0, 1.8, 0.5]),
    st.dictionaries(st.integers(0, 30), st.sampled_from([-100.0, -1.0, 2.5, 100.0]), max_size=4),
)
def test_edits_are_those_of_the_plain_definition(prompt, output, frequency, presence, repetition, bias):
    params = SamplingParams(
        frequency_penalty=frequency, presence_penalty=presence, repetition_penalty=repetition, logit_bias=bias
    )
    logits = logits_of(1)[0]
    row = logits.copy()
    edit(row, params, [*prompt, *output], len(prompt), frozenset())
    np.testing.assert_allclose(row, edited(logits, params, prompt, output), rtol=1e-5, atol=1e-5)


def test_penalties_look_at_the_output_and_repetition_at_the_prompt_too(sampler):
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 1], logits[0, 2] = 2.0, 1.9
    rows = [
        sequence(prompt=[1], temperature=0.0, presence_penalty=2.0),
        sequence(prompt=[1], temperature=0.0, frequency_penalty=2.0),
        sequence(prompt=[1], temperature=0.0, repetition_penalty=2.0),
    ]
    assert sample(sampler, np.repeat(logits, 3, axis=0), rows)[0] == [1, 1, 2]


def test_end_tokens_wait_for_the_minimum_length(sampler):
    logits = logits_of(1)
    logits[0, EOS], logits[0, 11], logits[0, 3] = 90.0, 80.0, 70.0
    stops = frozenset({11})
    for output, expected in (([], 3), ([4], 3), ([4, 4], EOS), ([4, 4, 4], EOS)):
        row = sequence(output=output, stops=stops, temperature=0.0, min_tokens=2)
        assert sample(sampler, logits, [row])[0] == [expected]
    drawn = {
        sample(sampler, logits, [sequence(stops=stops, seed=seed, min_tokens=2, temperature=30.0)])[0][0]
        for seed in range(200)
    }
    assert not drawn & {EOS, 11}


def test_a_forcing_bias_forces_drawn_and_greedy_rows(sampler):
    logits = logits_of(2)
    rows = [sequence(temperature=temperature, logit_bias={42: 100.0}) for temperature in (0.0, 0.9)]
    assert sample(sampler, logits, rows)[0] == [42, 42]


def test_logprobs_are_of_the_models_own_distribution(sampler):
    logits = logits_of(3)
    logits[1, [10, 5]] = logits[1].max() + 1  # equal: the lower id first
    fields: dict[str, Any] = {"temperature": 3.0, "top_k": 1, "logit_bias": {400: 100.0}}
    rows = [
        sequence(logprobs=3, **fields),
        sequence(logprobs=2, temperature=0.0),
        sequence(temperature=0.0),
    ]
    tokens, details = sample(sampler, logits, rows)
    assert details[2] is None
    reference = logits.astype(np.float64)
    reference -= np.log(np.exp(reference).sum(axis=1, keepdims=True))
    for row in (0, 1):
        detail = details[row]
        assert detail is not None
        assert detail.logprob == pytest.approx(reference[row, tokens[row]], abs=1e-5)
        highest = np.argsort(-logits[row], kind="stable")[: rows[row].request.sampling.logprobs]
        assert [token for token, _ in detail.top] == highest.tolist()
        assert [value for _, value in detail.top] == pytest.approx(reference[row, highest].tolist(), abs=1e-5)
    assert tokens[0] == 400
    assert details[1] is not None
    assert [token for token, _ in details[1].top] == [5, 10]


def test_zero_alternatives_report_the_chosen_token_only(sampler):
    _, details = sample(sampler, logits_of(1), [sequence(temperature=0.0, logprobs=0)])
    assert details[0] is not None
    assert details[0].top == ()
    assert details[0].logprob < 0


def test_the_seed_decides_and_the_position_moves_on(sampler):
    logits = np.zeros((1, VOCAB), np.float32)
    first = [sample(sampler, logits, [sequence(output=[0] * at, seed=5)])[0][0] for at in range(30)]
    again = [sample(sampler, logits, [sequence(output=[0] * at, seed=5)])[0][0] for at in range(30)]
    other = [sample(sampler, logits, [sequence(output=[0] * at, seed=6)])[0][0] for at in range(30)]
    assert first == again
    assert first != other
    assert len(set(first)) > 20


def test_drawn_tokens_are_within_the_truncation(sampler):
    logits = logits_of(50)
    rows = [sequence(seed=at, temperature=1.5, top_p=0.7, min_p=0.05) for at in range(50)]
    tokens, _ = sample(sampler, logits, rows)
    for row, token in enumerate(tokens):
        assert probabilities(logits[row], rows[row].request.sampling)[token] > 0
