"""How much longer a live server's steps took than the same passes alone, from the server's ledger.

    python benchmarks/live_against_bare.py LEDGER [--steps 150] [--rounds 2]

The first recorded steps of a busy server are computed again by the bare model, with nothing else running in this
process: once in the recorded order, and once each step three times in a row, of which the last counts. The second is
what a bench of one shape shows; the first has a change of the number of tokens wherever the server had one. Times are
the model's only (milliseconds), so the ratio holds no host work; ``host_share`` is that of the recorded steps.
"""

import argparse
import json
from pathlib import Path

from ekiden.build.model import load_model
from ekiden.config import Config
from ekiden.evidence.reader import LedgerReader, inputs_of
from ekiden.ledger.records import TurnRow
from ekiden.measure.percentiles import median
from ekiden.state.plan import BatchPlan, Row, RowSampling
from ekiden.state.runner import ModelRunner, RunnerInfo
from ekiden.state.sampling_params import SamplingParams

BLOCKS = 12
"""Blocks that each row gets; longer contexts are cut to what they hold."""
KINDS = ("decode", "mixed", "prefill")


def plan_of(turn: TurnRow, info: RunnerInfo) -> BatchPlan:
    """Rows as many and as long as the step's, its prompts as one chunk that attends to as many tokens.

    Guesses are rows too, and may be more than the pool has blocks for; blocks are used again then.
    """
    block_size = info.block_size
    longest = BLOCKS * block_size
    sampling = RowSampling(SamplingParams(temperature=0.0), 0, 1)
    start = min(turn.decode_context // max(1, turn.decode_rows), longest - 1)
    blocks = [
        tuple(block % info.num_blocks for block in range(slot * BLOCKS, (slot + 1) * BLOCKS))
        for slot in range(turn.decode_rows)
    ]
    rows = [Row(slot, start, (7,), table, sampling) for slot, table in enumerate(blocks)]
    if count := turn.prefill_tokens:
        before = max(0, turn.prefill_pairs // count - count // 2) // block_size * block_size
        first = turn.decode_rows * BLOCKS
        last = first + -(-(before + count) // block_size)
        table = tuple(block % info.num_blocks for block in range(first, last))
        rows.append(Row(turn.decode_rows, before, (7,) * count, table, sampling, True))
    return BatchPlan(rows)


def bare(runner: ModelRunner, plans: list[BatchPlan], times: int) -> list[float]:
    """Milliseconds of each plan's passes, the last time that it is computed."""
    return [[runner.execute(plan).timing.model * 1e3 for _ in range(times)][-1] for plan in plans]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ledger", type=Path)
    parser.add_argument("--skip", type=int, default=30, help="first steps that are passed over")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    with LedgerReader(asked.ledger) as reader:
        turns = [turn for turn in reader.all_turns() if turn.p50 > 0 and turn.took > 0]
    turns = turns[asked.skip : asked.skip + asked.steps]
    runner = load_model(Config()).runner
    plans = [plan_of(turn, runner.info) for turn in turns]
    inputs = [inputs_of(turn) for turn in turns]
    live = [each.model / 1e3 for each in inputs]
    runs = [(bare(runner, plans, 1), bare(runner, plans, 3)) for _ in range(asked.rounds + 1)][1:]
    in_order, repeated = ([median(step) for step in zip(*run, strict=True)] for run in zip(*runs, strict=True))
    kinds = ["decode" if not t.prefill_tokens else "mixed" if t.decode_rows else "prefill" for t in turns]
    figures: dict[str, object] = {
        "host_share": 1 - sum(each.model + each.sampling for each in inputs) / sum(turn.took for turn in turns),
    }
    for kind in KINDS:
        chosen = [index for index, each in enumerate(kinds) if each == kind]
        if chosen:
            figures[kind] = {
                "steps": len(chosen),
                "live_ms": median([live[i] for i in chosen]),
                "bare_in_order_ms": median([in_order[i] for i in chosen]),
                "bare_repeated_ms": median([repeated[i] for i in chosen]),
                "live_over_bare_in_order": median([live[i] / in_order[i] for i in chosen]),
                "live_over_bare_repeated": median([live[i] / repeated[i] for i in chosen]),
            }
    print(json.dumps(figures, indent=2))
    runner.close()


if __name__ == "__main__":
    main()
