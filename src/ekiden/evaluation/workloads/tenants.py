"""Many tenants of one service, drawn anew from what ServeGen (Y. Xiang et al., 2025) tells of each over a day.

A block is one ten-minute window of the day. Each client that was active then sends by a renewal process of its own:
gaps of the family and shape that were fitted to it, with its own mean rate (the fitted scale is left out, because it
misses the rate of many). The first requests of all of them make the block, with time scaled so that they fill it.
Lengths are drawn from the client's quantiles, prompt and answer apart. The first half of the day is dev, the second
half confirm.
"""

import heapq
import math
import random
from bisect import bisect_right
from collections.abc import Callable

from ekiden.evaluation.workloads.offer import Kind, Offer
from ekiden.evaluation.workloads.package_data import LEVELS, Client, clients
from ekiden.evaluation.workloads.source import Ask, Made, Option, Source, faultless, scaled

RATES = "tenants/servegen_client_rates_1day.csv"
LENGTHS = "tenants/servegen_client_lengths_1day.jsonl"
POOLS = ("m-large", "m-small", "deepseek-r1")


def _windows(ask: Ask) -> list[int]:
    """Starts of the windows of the split, in seconds of the day."""
    starts = sorted({client.window_start_s for client in clients(RATES, LENGTHS) if client.pool == ask.options["pool"]})
    half = len(starts) // 2
    return starts[:half] if ask.split == "dev" else starts[half:]


def _blocks(ask: Ask) -> int:
    return len(_windows(ask))


def _make(ask: Ask) -> Made:
    windows = _windows(ask)
    ask.chance("windows", all_blocks=True).shuffle(windows)
    start, pool = windows[ask.block], ask.options["pool"]
    active = [client for client in clients(RATES, LENGTHS) if (client.pool, client.window_start_s) == (pool, start)]
    chances = [ask.chance(f"gaps of {client.client}") for client in active]
    due = [(gap_of(client)(chance), index) for index, (client, chance) in enumerate(zip(active, chances, strict=True))]
    heapq.heapify(due)
    sent: list[tuple[float, int]] = []
    while len(sent) <= ask.count:  # one more than is asked for, whose time ends the block
        at, index = due[0]
        sent.append((at, index))
        heapq.heapreplace(due, (at + gap_of(active[index])(chances[index]), index))
    span, lengths = sent[-1][0], ask.chance("lengths")
    scale = ask.seconds / span if span else 0.0
    offers = []
    for number, (at, index) in enumerate(sent[:-1]):
        prompt = scaled(_drawn(active[index].input_tokens, lengths), ask.length_scale)
        output = scaled(_drawn(active[index].output_tokens, lengths), ask.length_scale)
        offers.append(
            Offer(
                id=ask.named(number),
                at=min(round(at * scale, 6), ask.seconds),
                prompt_tokens=prompt,
                output_tokens=output,
                max_tokens=output,
                tenant=f"c{active[index].client}",
            )
        )
    about = {"second_of_day": start, "clients": len(active), "time_scale": round(scale, 6)}
    return Made(offers=offers, about=about, files=(RATES, LENGTHS))


def gap_of(client: Client) -> Callable[[random.Random], float]:
    """What draws the client's next gap, in seconds of the day."""
    shape, mean = client.iat_shape, 1.0 / client.rate_rps
    if client.iat_family == "Gamma":
        return lambda chance: chance.gammavariate(shape, mean / shape)
    return lambda chance: chance.weibullvariate(mean / math.gamma(1.0 + 1.0 / shape), shape)


def _drawn(quantiles: tuple[float, ...], chance: random.Random) -> float:
    """A length between two quantiles, by a straight line."""
    level = chance.random()
    upper = min(bisect_right(LEVELS, level), len(LEVELS) - 1)
    part = (level - LEVELS[upper - 1]) / (LEVELS[upper] - LEVELS[upper - 1])
    return quantiles[upper - 1] + part * (quantiles[upper] - quantiles[upper - 1])


TENANTS = Source(
    name="servegen-tenants",
    kind=Kind.NORMAL,
    summary="Tenants of a service over a day, drawn anew from ServeGen's statistics of each",
    options=(
        Option(
            name="pool",
            default="m-large",
            choices=POOLS,
            meaning="the service: a large model, a small or a reasoning one",
        ),
    ),
    make=_make,
    blocks=_blocks,
    fault=faultless,
)
