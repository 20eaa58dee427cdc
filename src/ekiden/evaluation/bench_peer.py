"""Ours against a peer on the same prompts, in turns (ABBA), so that a machine that drifts favours neither."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ekiden.build.core import build_core
from ekiden.config import Config
from ekiden.engine.parts import EngineParts
from ekiden.evaluation.bench import WARM_UP_TOKENS, Figures, Shape, answer_figures, lineage, prompts_first, requests_for
from ekiden.evaluation.metrics import throughput
from ekiden.evaluation.offline import run_batch

Generate = Callable[[list[list[int]], int], list[list[int]]]
"""``generate(prompts, output_tokens)``: token ids of each answer, of exactly that length."""


def bench_peer(
    parts: EngineParts, config: Config, shape: Shape, peer: Generate, *, rounds: int, on_run: Callable[[], None]
) -> Figures:
    """``rounds`` times ours, peer, peer, ours; every run has fresh prompts, the same for both of a pair.

    Ours computes prompts first, as the peer does and any offline batch should. The ratio is ours / peer in total tokens
    per second, the geometric mean over pairs, with the extremes beside it.
    """
    config = prompts_first(config)
    warm_up = replace(shape, output_tokens=WARM_UP_TOKENS, seed=shape.seed - 1)
    _ours(parts, config, warm_up)
    _theirs(peer, warm_up, parts.card.vocab_size)
    ours: list[Figures] = []
    theirs: list[Figures] = []
    same = compared = 0
    for pair in range(2 * rounds):
        asked = replace(shape, seed=shape.seed + pair)
        order = (True, False) if pair % 2 == 0 else (False, True)
        tokens: dict[bool, list[list[int]]] = {}
        for is_ours in order:
            if is_ours:
                figures, tokens[True] = _ours(parts, config, asked)
                ours.append(figures)
            else:
                figures, tokens[False] = _theirs(peer, asked, parts.card.vocab_size)
                theirs.append(figures)
            on_run()
        same += sum(a == b for a, b in zip(tokens[True], tokens[False], strict=True))
        compared += len(tokens[True])
    ratios = [_rate(a) / _rate(b) for a, b in zip(ours, theirs, strict=True)]
    best = max(range(len(ours)), key=lambda index: _rate(ours[index]))
    return {
        **ours[best],
        "pairs": len(ratios),
        "ratio": math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios)),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "ours_total_tokens_per_second": [_rate(figures) for figures in ours],
        "peer_total_tokens_per_second": [_rate(figures) for figures in theirs],
        "same_tokens": same,
        "compared_sequences": compared,
        "lineage": lineage(parts.card, shape, config),
    }


def _ours(parts: EngineParts, config: Config, shape: Shape) -> tuple[Figures, list[list[int]]]:
    core = build_core(parts, config)
    start = time.monotonic()
    answers = run_batch(core, requests_for(shape, vocab_size=parts.card.vocab_size, start=start))
    duration = time.monotonic() - start
    return answer_figures(answers, duration), [answer.token_ids for answer in answers]


def _theirs(peer: Generate, shape: Shape, vocab_size: int) -> tuple[Figures, list[list[int]]]:
    prompts = [list(r.prompt_token_ids) for r in requests_for(shape, vocab_size=vocab_size, start=0.0)]
    start = time.monotonic()
    tokens = peer(prompts, shape.output_tokens)
    duration = time.monotonic() - start
    output = sum(len(answer) for answer in tokens)
    return throughput(sum(map(len, prompts)), output, duration), tokens


def _rate(figures: Figures) -> float:
    rate = figures["total_tokens_per_second"]
    assert isinstance(rate, float), "a run takes time"
    return rate


def pair_rows(figures: Figures) -> Sequence[Sequence[str]]:
    """A row for each pair: its number, ours, the peer's, and the ratio."""
    ours, theirs = figures["ours_total_tokens_per_second"], figures["peer_total_tokens_per_second"]
    assert isinstance(ours, list)
    assert isinstance(theirs, list)
    return [
        [str(index + 1), f"{a:,.0f}", f"{b:,.0f}", f"{a / b:.2f}"]
        for index, (a, b) in enumerate(zip(ours, theirs, strict=True))
    ]
