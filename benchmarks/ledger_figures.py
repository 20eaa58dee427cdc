"""Measures the ledger: what recording adds to a step, bytes for each token, the speed of explain and replay.

    python benchmarks/ledger_figures.py --steps 200000 --rows 64 --folder /tmp/ledger-bench

The production engine core serves a mixed, overloaded load in virtual time with a model that computes nothing, so that
only the core and its recorder are measured. ``--steps 2000000 --rows 16`` writes a day's ledger in a few minutes.
``tests/endtoend/test_ledger.py`` measures the real model.
"""

import argparse
import json
import random
import time
from pathlib import Path

from ekiden.build.recording import make_header
from ekiden.config import CacheConfig, Config, SchedulerConfig, controls_of
from ekiden.engine.driver import Source, VirtualClock, drive
from ekiden.engine.engine_core import EngineCore, StepResult
from ekiden.engine.interface import ModelCard
from ekiden.engine.parts import EngineParts
from ekiden.evidence.decision_replay import replay
from ekiden.evidence.explain import explain, worst
from ekiden.evidence.reader import LedgerReader
from ekiden.ledger.recorder import Recorder, whole_microseconds
from ekiden.ledger.store import LedgerWriter
from ekiden.measure.percentiles import median
from ekiden.state.plan import NO_TOKENS, BatchPlan, RowResult, StepOutput
from ekiden.state.request import Request
from ekiden.state.runner import ChunkRules, RunnerInfo
from ekiden.state.sampling_params import SamplingParams

ONE_TOKEN = RowResult((1,))


class VirtualModel:
    """A model whose steps take virtual time and whose every token is 1."""

    def __init__(self, rows: int) -> None:
        self.clock = VirtualClock()
        self.info = RunnerInfo(
            backend="virtual",
            vocab_size=50_000,
            max_model_len=4096,
            block_size=32,
            num_blocks=rows * 12,
            num_swap_blocks=rows * 12,
            bytes_per_block=1,
            chunks=ChunkRules(border=32, least=2),
        )

    def execute(self, plan: BatchPlan) -> StepOutput:
        self.clock.time += 0.008 + 0.0004 * plan.total_tokens
        return StepOutput(rows=[NO_TOKENS if row.sampling is None else ONE_TOKEN for row in plan.rows])

    def close(self) -> None:
        """There is nothing to close."""


class Bench:
    def __init__(self, rows: int, folder: Path | None) -> None:
        self.rows = rows
        self.model = VirtualModel(rows)
        self.rng = random.Random(1)
        config = Config(
            scheduler=SchedulerConfig(
                max_num_seqs=rows, max_num_batched_tokens=rows + 448, scheduling_policy="fair", target_itl_ms=0.0
            ),
            cache=CacheConfig(),
        )
        self.writer: LedgerWriter | None = None
        recorder = None
        if folder is not None:
            info = self.model.info
            card = ModelCard(
                model_id="virtual",
                max_model_len=info.max_model_len,
                vocab_size=info.vocab_size,
                block_size=info.block_size,
                num_blocks=info.num_blocks,
                created=0,
                fingerprint="virtual",
            )
            header = make_header(config, EngineParts(runner=self.model, card=card), run_id="bench", clock_base=0)
            self.writer = LedgerWriter(folder / "bench.sqlite", header)
            recorder = Recorder(
                self.writer.put, clock_base=0, block_size=32, prefix_caching=True, controls=controls_of(config)
            )
        self.core = EngineCore(
            runner=self.model,
            controls=controls_of(config),
            cache=config.cache,
            clock=whole_microseconds(self.model.clock.now),
            recorder=recorder,
        )
        self.sent = self.tokens = 0
        self.began: float | None = None

    def load(self, steps: int) -> Source:
        """Keep half as many again waiting as can run; each arrival gets a step of its own, which is not measured."""
        for _ in range(steps):
            while len(self.core.population.by_id) < self.rows * 3 // 2:
                self.core.add_request(self.request())
                self.began = None
                yield None
            while self.writer is not None and len(self.writer._pending) > 10_000:
                time.sleep(0.05)  # virtual time runs faster than the disk can write
            self.began = time.perf_counter()
            yield None

    def request(self) -> Request:
        self.sent += 1
        rng = self.rng
        return Request(
            request_id=f"request-{self.sent:026d}",
            prompt_token_ids=(7,) * 64 + tuple(rng.choices(range(50_000), k=rng.choice((16, 60, 200, 500)))),
            sampling=SamplingParams(temperature=0.0, max_tokens=rng.choice((16, 64, 100, 300)), ignore_eos=True),
            arrival_time=self.model.clock.now(),
            tenant=rng.choice(("alpha", "beta", "gamma")),
        )

    def run(self, steps: int) -> list[float]:
        """Seconds of each measured step."""
        times: list[float] = []

        def after_step(result: StepResult) -> None:
            if self.began is not None:
                times.append(time.perf_counter() - self.began)
                self.tokens += sum(len(update.token_ids) for update in result.updates)

        drive(self.core, self.load(steps), self.model.clock, after_step)
        return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--explain", type=int, default=200, help="how many random requests to explain")
    parser.add_argument("--replay", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    figures: dict[str, object] = {"rows": arguments.rows, "steps": arguments.steps}
    off, sample = Bench(arguments.rows, None), min(arguments.steps, 5_000)
    figures["step_us_off"] = median(off.run(sample)) * 1e6
    on = Bench(arguments.rows, arguments.folder)
    figures["step_us_on"] = median(on.run(arguments.steps)[:sample]) * 1e6
    assert on.writer is not None
    on.writer.close()
    path = on.writer.path
    figures |= {"dropped": on.writer.dropped, "tokens": on.tokens, "file_bytes": path.stat().st_size}
    with LedgerReader(path) as reader:
        figures["bytes_per_token"] = path.stat().st_size / sum(turn.tokens for turn in reader.all_turns())
        ids = random.Random(2).choices(range(1, on.sent - 3 * arguments.rows), k=arguments.explain)
        times = []
        for number in ids:
            request = reader.request(number)
            assert request is not None
            began = time.perf_counter()
            found = reader.requests_named(request.request_id)
            told = explain(reader, found[0])
            times.append(time.perf_counter() - began)
            assert abs(sum(cause.seconds for cause in told.causes) - told.e2e_seconds) < 1e-3
        figures |= {"explain_ms_p50": median(times) * 1e3, "explain_ms_max": max(times) * 1e3}
        began = time.perf_counter()
        worst(reader, 10)
        figures["worst_10_ms"] = (time.perf_counter() - began) * 1e3
        if arguments.replay:
            began = time.perf_counter()
            result = replay(reader.header, reader.everything())
            took = time.perf_counter() - began
            figures |= {"replay_identical": result.difference is None, "replay_us_per_turn": took / result.turns * 1e6}
            figures["replay_times_real_time"] = result.seconds / took
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
