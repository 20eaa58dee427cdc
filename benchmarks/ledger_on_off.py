"""Compares the real model's throughput and tokens with the ledger on and off, in turns (off, on, on, off).

python benchmarks/ledger_on_off.py --rounds 2 --rows 64 --output-tokens 64
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace

from ekiden.build.core import build_core
from ekiden.build.model import load_model
from ekiden.build.recording import recorded_core
from ekiden.config import Config, LedgerConfig
from ekiden.engine.driver import run_batch
from ekiden.engine.parts import EngineParts
from ekiden.evaluation.benches.engine import Shape, requests_for, sized
from ekiden.measure.percentiles import median


def run(parts: EngineParts, config: Config, shape: Shape, *, ledger: bool) -> tuple[float, list[list[int]]]:
    """The output tokens per second, and the answers' tokens."""
    core, writer = recorded_core(parts, config) if ledger else (build_core(parts, config), None)
    start = time.monotonic()
    answers = run_batch(core, requests_for(shape, vocab_size=parts.card.vocab_size, start=start))
    seconds = time.monotonic() - start
    if writer is not None:
        writer.close()
        assert writer.dropped == 0, "the writer fell behind"
    tokens = [answer.token_ids for answer in answers]
    return sum(map(len, tokens)) / seconds, tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=64)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = replace(sized(Config(), asked.rows), ledger=LedgerConfig(ledger_dir=folder))
        parts = load_model(config)
        shape = Shape(
            rows=asked.rows,
            requests=asked.rows,
            prompt_tokens=asked.prompt_tokens,
            output_tokens=asked.output_tokens,
        )
        run(parts, config, replace(shape, output_tokens=4), ledger=True)  # warm-up
        ratios: list[float] = []
        same = True
        for pair in range(2 * asked.rounds):
            of_pair = replace(shape, seed=pair)
            order = (False, True) if pair % 2 == 0 else (True, False)
            found = {ledger: run(parts, config, of_pair, ledger=ledger) for ledger in order}
            ratios.append(found[True][0] / found[False][0])
            same = same and found[True][1] == found[False][1]
        print(
            json.dumps(
                {
                    "on_over_off_median": median(ratios),
                    "on_over_off": ratios,
                    "same_tokens": same,
                    "pairs": len(ratios),
                },
                indent=2,
            )
        )


if __name__ == "__main__":
    main()
