"""Ours against peers on the same prompts in turns, in process and over HTTP, and the quality of each."""

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import msgspec
import uvloop

from ekiden.build.core import build_core
from ekiden.config import Config
from ekiden.engine.driver import run_batch
from ekiden.engine.parts import EngineParts
from ekiden.errors import UserError
from ekiden.evaluation.benches.engine import WARM_UP_TOKENS, Shape, answer_figures, requests_for, scheduled
from ekiden.evaluation.benches.peers.arms import PeerEngine
from ekiden.evaluation.benches.peers.turns import WARM_UP, Run, Turns, in_turns, ratios, spread
from ekiden.evaluation.benches.quality import (
    ANSWER_TOKENS,
    Failed,
    Material,
    Measured,
    measure,
    measure_apart,
    quality_figures,
    reference_config,
)
from ekiden.evaluation.benches.serve import first_model
from ekiden.evaluation.load.loops import closed_loop, completion_request
from ekiden.evaluation.load.target import Target
from ekiden.measure.figures import Figures, stream_figures, throughput

OURS = "ekiden"
SPREAD = 0.6
"""Standard deviation of the logarithm of the lengths over HTTP."""
LONGEST = 4
"""No length over HTTP is more than this many times its mean."""


@dataclass(slots=True, kw_only=True)
class Compared:
    """The figures of each arm over ``requests`` requests a pass, and why others have none."""

    requests: int
    arms: dict[str, Figures]
    failures: dict[str, str]


def in_process(
    parts: EngineParts,
    config: Config,
    shape: Shape,
    peers: Mapping[str, PeerEngine],
    *,
    rounds: int,
    on_run: Callable[[], None] = lambda: None,
) -> Compared:
    """An offline batch of ``shape`` in turns: total tokens a second of each arm, and the ratio ours / theirs.

    Every pass has fresh prompts, the same for all. Ours computes prompts first, as the peers do and any offline batch
    should. ``same_tokens``: answers that are ours token by token.
    """
    config = scheduled(config, prefill_first=True)
    vocab_size = parts.card.vocab_size
    answers: dict[str, dict[int, list[list[int]]]] = {name: {} for name in (OURS, *peers)}

    def asked(number: int) -> Shape:
        short = {"output_tokens": WARM_UP_TOKENS} if number == WARM_UP else {}
        return replace(shape, seed=shape.seed + number, **short)

    def ours(number: int) -> Figures:
        core = build_core(parts, config)
        start = time.monotonic()
        found = run_batch(core, requests_for(asked(number), vocab_size=vocab_size, start=start))
        answers[OURS][number] = [answer.token_ids for answer in found]
        return answer_figures(found, time.monotonic() - start)

    def of(name: str, peer: PeerEngine) -> Run:
        def theirs(number: int) -> Figures:
            requests = requests_for(asked(number), vocab_size=vocab_size, start=0.0)
            prompts = [list(request.prompt_token_ids) for request in requests]
            start = time.monotonic()
            answers[name][number] = tokens = peer.generate(prompts, asked(number).output_tokens)
            return throughput(sum(map(len, prompts)), sum(map(len, tokens)), time.monotonic() - start)

        return theirs

    turns = in_turns(
        {OURS: ours, **{name: of(name, peer) for name, peer in peers.items()}}, rounds=rounds, on_run=on_run
    )
    found = compared(turns, {"total_tokens_per_second": True}, shape.requests)
    for name, arm in found.arms.items():
        pairs = [(answers[OURS][number], answers[name][number]) for number in range(2 * rounds)]
        same = sum(a == b for ours_told, told in pairs for a, b in zip(ours_told, told, strict=True))
        arm |= {"same_tokens": same, "compared_sequences": 2 * rounds * shape.requests}
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class HTTPLoad:
    """A closed loop: so many ``clients``, ``requests`` in all, with lognormal lengths of these means."""

    clients: int
    requests: int
    prompt_tokens: int = 200
    output_tokens: int = 90
    seed: int = 0

    @property
    def context(self) -> int:
        """The tokens of the longest possible request."""
        return LONGEST * (self.prompt_tokens + self.output_tokens)


def lognormal_lengths(count: int, mean: float, chance: random.Random) -> list[int]:
    """``count`` lengths at the middles of equal shares of a lognormal distribution, in the order of ``chance``.

    So every pass has the same lengths, and only which of them come together differs. The distribution has the mean
    ``mean`` and the :data:`SPREAD`; lengths are at least 1 and at most :data:`LONGEST` times the mean.
    """
    normal = NormalDist(math.log(mean) - SPREAD**2 / 2, SPREAD)
    drawn = [math.exp(normal.inv_cdf((index + 0.5) / count)) for index in range(count)]
    found = [min(max(1, round(length)), round(LONGEST * mean)) for length in drawn]
    chance.shuffle(found)
    return found


def over_http(
    addresses: Mapping[str, str],
    load: HTTPLoad,
    text: Sequence[int],
    *,
    rounds: int,
    timeout: float,
    on_run: Callable[[], None],
) -> Compared:
    """The same requests in turns on servers that are all running; the first address is ours.

    Prompts are pieces of ``text``, real text as token ids. Latencies are those of the pass: the median TTFT and the p99
    of all gaps between content events. Requests that fail are counted; an arm ends when all of a pass do.
    """

    def of(address: str) -> Run:
        target = Target.parse(address)

        def run(number: int) -> Figures:
            model, chance = first_model(target), random.Random(load.seed + number)
            count = min(load.requests, load.clients) if number == WARM_UP else load.requests
            prompts = lognormal_lengths(count, load.prompt_tokens, chance)
            wanted = lognormal_lengths(count, load.output_tokens, chance)
            requests = [
                completion_request(target, model, _piece(text, length, chance), max_tokens=most, ignore_eos=True)
                for length, most in zip(prompts, wanted, strict=True)
            ]
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                asked = closed_loop(target, requests, concurrency=load.clients, timeout=timeout)
                done = runner.run(asked)
            figures = stream_figures(done.records, duration=done.duration)
            if figures["failures"] == count:
                raise UserError(f"all {count} requests failed: {figures['failures_by_kind']}")
            whole = [(record, most) for record, most in zip(done.records, wanted, strict=True) if not record.failure]
            wrong = sum(record.output_tokens != most for record, most in whole)
            return figures | {"wrong_lengths": wrong} | _latencies(figures)

        return run

    turns = in_turns({name: of(address) for name, address in addresses.items()}, rounds=rounds, on_run=on_run)
    shown = {"output_tokens_per_second": True, "total_tokens_per_second": True, "ttft_p50": False, "itl_p99": False}
    return compared(turns, shown, load.requests)


def _piece(text: Sequence[int], length: int, chance: random.Random) -> list[int]:
    """``length`` tokens of ``text`` from a random place on; a text that is shorter is repeated."""
    begin = chance.randrange(len(text))
    return [text[(begin + index) % len(text)] for index in range(length)]


def _latencies(figures: Figures) -> Figures:
    found: Figures = {}
    for name, spread_name, level in (("ttft_p50", "ttft_seconds", "p50"), ("itl_p99", "itl_seconds", "p99")):
        points = figures[spread_name]
        found[name] = points[level] if isinstance(points, dict) else math.nan
    return found


def compared(turns: Turns, shown: Mapping[str, bool], requests: int) -> Compared:
    """For each arm the median and range of the figures ``shown``, and the ratio to ours.

    A ratio is ours / theirs where more is better (True), else theirs / ours: over 1 is in our favour.
    """
    arms: dict[str, Figures] = {}
    for name, passes in turns.passes.items():
        arms[name] = {}
        for figure, more_is_better in shown.items():
            values, ours = [_number(each, figure) for each in passes], [_number(a, figure) for a in turns.passes[OURS]]
            both = (ours, values) if more_is_better else (values, ours)
            arms[name][figure] = spread(values) | {"ratio": ratios(*both)}
        for count in ("failures", "wrong_lengths"):
            arms[name][count] = sum(value for each in passes if isinstance(value := each.get(count), int))
    return Compared(requests=requests, arms=arms, failures=dict(turns.failures))


def _number(figures: Figures, name: str) -> float:
    value = figures[name]
    assert isinstance(value, int | float), f"{name} is measured in every run"
    return value


def quality_of(
    parts: EngineParts, config: Config, material: Material, peers: Mapping[str, PeerEngine]
) -> dict[str, Figures]:
    """Each arm against float32, which is measured first in a process of its own. One that fails tells why.

    Raises :class:`UserError` when there is no reference.
    """
    reference = measure_apart(reference_config(config), material)
    if isinstance(reference, Failed):
        raise UserError(f"the reference could not be measured: {reference.reason}")
    ours = measure(parts, config, material, reference)
    ours = msgspec.structs.replace(ours, resident_bytes=None)  # this process holds more than our model
    found = {OURS: quality_figures(ours, reference, material)}
    for name, peer in peers.items():
        try:
            told = Measured(losses=peer.losses(material.passages), answers=_answers(peer, material.prompts))
        except UserError as error:
            found[name] = {"failure": str(error)}
        else:
            found[name] = quality_figures(told, reference, material)
    return found


def _answers(peer: PeerEngine, prompts: Sequence[list[int]]) -> list[list[int]]:
    return peer.generate(list(prompts), ANSWER_TOKENS)
