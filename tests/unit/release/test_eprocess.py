"""The early stop for harm: false alarms at most alpha however often one looks, and how soon it sees harm."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from ekiden.release.eprocess import PRIOR, EProcess, e_value, fewest_pairs

ALPHA, PAIRS, RUNS = 0.05, 40, 2_000


def missed(random: np.random.Generator, shape: tuple[int, int], *, mean: float, likeness: float, n: int = 60):
    """Missed requests of blocks of ``n``. ``likeness``: the correlation within a block (0: all independent)."""
    if likeness == 0.0:
        return random.binomial(n, mean, shape)
    spread = (1 - likeness) / likeness
    return random.binomial(n, random.beta(mean * spread, (1 - mean) * spread, shape))


def paths(candidate, baseline):
    """The e-process of each run (rows) after each pair (columns)."""
    worse = np.cumsum(candidate > baseline, axis=1)
    differ = np.cumsum(candidate != baseline, axis=1)
    table = np.array([[e_value(min(s, n), n) for s in range(PAIRS + 1)] for n in range(PAIRS + 1)])
    return table[differ, worse]


def alarms(e):
    return (e >= 1 / ALPHA).any(axis=1)


@pytest.mark.parametrize("mean", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("likeness", [0.0, 0.2])
def test_false_alarms_of_a_against_a_are_at_most_alpha(mean, likeness):
    random = np.random.default_rng(int(mean * 100) + int(likeness * 10))
    e = paths(*(missed(random, (RUNS, PAIRS), mean=mean, likeness=likeness) for _ in range(2)))
    share = alarms(e).mean()
    # Of 2,000 runs at exactly alpha, more than 6.5 % would be seen once in a thousand times.
    assert share <= ALPHA * 1.3, share


def test_a_drift_of_the_load_raises_no_false_alarms_because_the_coin_decides_the_order():
    random = np.random.default_rng(5)
    first, second = (
        missed(random, (RUNS, PAIRS), mean=mean, likeness=0.1) for mean in (0.05, 0.25)
    )  # the later block is always worse
    coin = random.random((RUNS, PAIRS)) < 0.5
    assert alarms(paths(np.where(coin, first, second), np.where(coin, second, first))).mean() <= ALPHA * 1.3


def test_counting_requests_as_if_independent_would_raise_false_alarms():
    """Why the pairs are what is counted: a test of the requests believes a burst to be the candidate's doing."""
    random = np.random.default_rng(6)

    def naive(likeness):
        a, b = (missed(random, (200, PAIRS), mean=0.1, likeness=likeness).cumsum(axis=1) for _ in range(2))
        table = np.vectorize(e_value)  # each missed request is a throw of the coin between the two arms
        return alarms(table(a[:, 9::15], (a + b)[:, 9::15])).mean()

    independent, alike = naive(0.0), naive(0.2)
    assert independent <= 0.1, "of 200 runs, which is within three standard deviations of alpha"
    assert alike > 0.2


@pytest.mark.parametrize(
    ("candidate", "at_most", "power"),
    [(0.5, 6, 0.99), (0.2, 12, 0.95), (0.12, 40, 0.3)],
    ids=["gross", "clear", "slight"],
)
def test_harm_is_seen_soon(candidate, at_most, power):
    """Pairs to the alarm where the baseline misses 5 % and requests of a block are alike."""
    random = np.random.default_rng(7)
    e = paths(
        missed(random, (RUNS, PAIRS), mean=candidate, likeness=0.05),
        missed(random, (RUNS, PAIRS), mean=0.05, likeness=0.05),
    )
    first = np.where(alarms(e), (e >= 1 / ALPHA).argmax(axis=1) + 1, PAIRS + 1)
    assert np.median(first[first <= PAIRS]) <= at_most
    assert alarms(e).mean() >= power


def test_a_better_candidate_hardly_ever_alarms():
    random = np.random.default_rng(8)
    shape = (RUNS, PAIRS)
    e = paths(missed(random, shape, mean=0.05, likeness=0.05), missed(random, shape, mean=0.1, likeness=0.05))
    assert alarms(e).mean() < 0.01


@pytest.mark.parametrize(("worse", "pairs"), [(0, 0), (0, 3), (3, 3), (5, 7), (20, 31)])
def test_it_is_the_mixture_that_it_says(worse, pairs):
    mixed, _ = integrate.quad(
        lambda p: (2 * p) ** worse * (2 * (1 - p)) ** (pairs - worse) * stats.beta.pdf(p, *PRIOR), 0.5, 1
    )
    assert e_value(worse, pairs) == pytest.approx(mixed / stats.beta.sf(0.5, *PRIOR), rel=1e-6)


def test_under_a_fair_coin_its_mean_is_one():
    means = [sum(stats.binom.pmf(s, n, 0.5) * e_value(s, n) for s in range(n + 1)) for n in range(12)]
    assert means == pytest.approx([1.0] * 12)


def test_one_pair_after_another():
    seen = EProcess.of([(0.2, 0.1), (0.0, 0.0), (0.1, 0.3)], alpha=ALPHA)
    assert (seen.worse, seen.better, seen.equal) == (1, 1, 1)
    assert not seen.alarms
    assert seen.value == pytest.approx(e_value(1, 2))
    assert "1 of 2 pairs" in str(seen)
    assert not EProcess.of([(1.0, 0.0)] * 4, alpha=ALPHA).alarms
    assert EProcess.of([(1.0, 0.0)] * 5, alpha=ALPHA).alarms


def test_fewest_pairs():
    assert [fewest_pairs(alpha) for alpha in (0.2, 0.1, 0.05, 0.01)] == [3, 4, 5, 8]


def test_it_cannot_give_more_than_the_coins_do():
    for n in range(1, 30):
        assert e_value(n, n) <= 2.0**n
        assert math.isfinite(e_value(n, n))
    with pytest.raises(ValueError, match="4 of 3"):
        e_value(4, 3)
