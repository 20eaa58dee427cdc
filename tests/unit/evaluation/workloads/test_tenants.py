"""Tenants drawn from ServeGen: each sends as often, in such gaps and at such lengths as it was measured."""

import random
import statistics
from collections import Counter

import pytest

from ekiden.evaluation.workloads.package_data import LEVELS, clients
from ekiden.evaluation.workloads.source import SPLITS
from ekiden.evaluation.workloads.sources import blocks_available
from ekiden.evaluation.workloads.tenants import LENGTHS, POOLS, RATES, gap_of
from tests.unit.evaluation.workloads.making import made, spec_of

ALL = clients(RATES, LENGTHS)


@pytest.mark.parametrize("pool", POOLS)
def test_every_ten_minutes_of_the_day_are_one_block(pool):
    options = {"pool": pool}
    starts = []
    for split in SPLITS:
        assert blocks_available(spec_of("servegen-tenants", options=options), split) == 72
        starts.append(
            {
                made("servegen-tenants", split=split, block=block, options=options, seconds=2.0).made["second_of_day"]
                for block in range(72)
            }
        )
    assert starts == [set(range(0, 43_200, 600)), set(range(43_200, 86_400, 600))]


def test_gaps_have_the_mean_that_the_rate_says():
    for family in ("Gamma", "Weibull"):
        client = next(client for client in ALL if client.iat_family == family and client.iat_shape > 0.5)
        draw, chance = gap_of(client), random.Random(0)
        mean = statistics.fmean(draw(chance) for _ in range(20_000))
        assert mean * client.rate_rps == pytest.approx(1, rel=0.1)


def test_clients_send_in_their_shares_and_with_their_lengths():
    workload = made("servegen-tenants", seconds=3_000.0, block=4)
    start = workload.made["second_of_day"]
    active = {f"c{c.client}": c for c in ALL if (c.pool, c.window_start_s) == ("m-large", start)}
    assert len(active) == workload.made["clients"]
    total = sum(client.rate_rps for client in active.values())
    sent = Counter(offer.tenant for offer in workload.offers)
    (name, many), *_ = sent.most_common()
    assert many / len(workload.offers) == pytest.approx(active[name].rate_rps / total, abs=0.1)
    for offer in workload.offers:
        client = active[offer.tenant]
        assert client.input_tokens[0] - 1 <= offer.prompt_tokens <= client.input_tokens[-1] + 1
        assert client.output_tokens[0] - 1 <= offer.output_tokens <= client.output_tokens[-1] + 1
    prompts = [offer.prompt_tokens for offer in workload.offers if offer.tenant == name]
    below = sum(length <= active[name].input_tokens[LEVELS.index(0.5)] for length in prompts)
    assert below / len(prompts) == pytest.approx(0.5, abs=0.05)
