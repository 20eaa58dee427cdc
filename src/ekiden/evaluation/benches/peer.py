"""Ours against a peer on the same prompts, in turns (ABBA), so that a machine that drifts favours neither."""

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import geometric_mean

from ekiden.build.core import build_core
from ekiden.config import Config
from ekiden.engine.driver import run_batch
from ekiden.engine.parts import EngineParts
from ekiden.evaluation.benches.engine import WARM_UP_TOKENS, Shape, answer_figures, lineage, requests_for, scheduled
from ekiden.measure.figures import Figures, throughput

Tokens = list[list[int]]
Generate = Callable[[Tokens, int], Tokens]
"""``generate(prompts, output_tokens)``: token ids of each answer, of exactly that length."""


def bench_peer(
    parts: EngineParts, config: Config, shape: Shape, peer: Generate, *, rounds: int, on_run: Callable[[], None]
) -> Figures:
    """``rounds`` times ours, peer, peer, ours; every run has fresh prompts, the same for both of a pair.

    Ours computes prompts first, as the peer does and any offline batch should. The ratio is ours / peer in total tokens
    per second, the geometric mean over pairs, with the extremes beside it.
    """
    config = scheduled(config, prefill_first=True)

    def ours(shape: Shape) -> tuple[Figures, Tokens]:
        core = build_core(parts, config)
        start = time.monotonic()
        answers = run_batch(core, requests_for(shape, vocab_size=parts.card.vocab_size, start=start))
        return answer_figures(answers, time.monotonic() - start), [answer.token_ids for answer in answers]

    def theirs(shape: Shape) -> tuple[Figures, Tokens]:
        requests = requests_for(shape, vocab_size=parts.card.vocab_size, start=0.0)
        prompts = [list(request.prompt_token_ids) for request in requests]
        start = time.monotonic()
        tokens = peer(prompts, shape.output_tokens)
        duration = time.monotonic() - start
        return throughput(sum(map(len, prompts)), sum(map(len, tokens)), duration), tokens

    warm_up = replace(shape, output_tokens=WARM_UP_TOKENS, seed=shape.seed - 1)
    for run in (ours, theirs):
        run(warm_up)
    pairs: list[tuple[Figures, Figures]] = []
    same = compared = 0
    for pair in range(2 * rounds):
        asked = replace(shape, seed=shape.seed + pair)
        found = {}
        for run in (ours, theirs) if pair % 2 == 0 else (theirs, ours):
            found[run] = run(asked)
            on_run()
        pairs.append((found[ours][0], found[theirs][0]))
        same += sum(a == b for a, b in zip(found[ours][1], found[theirs][1], strict=True))
        compared += len(found[ours][1])
    rates = [(_rate(figures), _rate(other)) for figures, other in pairs]
    ratios = [rate / other for rate, other in rates]
    return {
        **max((figures for figures, _ in pairs), key=_rate),
        "pairs": len(ratios),
        "ratio": geometric_mean(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "ours_total_tokens_per_second": [rate for rate, _ in rates],
        "peer_total_tokens_per_second": [other for _, other in rates],
        "same_tokens": same,
        "compared_sequences": compared,
        "lineage": lineage(parts.card, shape, config),
    }


def _rate(figures: Figures) -> float:
    rate = figures["total_tokens_per_second"]
    assert isinstance(rate, float), "a run takes time"
    return rate


def pair_rows(figures: Figures) -> list[list[str]]:
    """A row for each pair: its number, ours, the peer's, and the ratio."""
    ours, theirs = figures["ours_total_tokens_per_second"], figures["peer_total_tokens_per_second"]
    assert isinstance(ours, list)
    assert isinstance(theirs, list)
    return [
        [str(number), f"{a:,.0f}", f"{b:,.0f}", f"{a / b:.2f}"]
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True), 1)
    ]
