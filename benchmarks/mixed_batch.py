"""Compares the throughput of a batch of which half follows a grammar with an unconstrained one, in turns.

    python benchmarks/mixed_batch.py --rounds 4 --rows 32 [--grammar regex]

Every answer has the same number of tokens: the grammar cannot end earlier, and the others ignore the end token. A mask
takes about 30 microseconds a row with the JSON schema, and 500 with the regular expression, which is a hard one.
"""

import argparse
import json
import time

from ekiden.build.engines import build_llm
from ekiden.build.model import load_model
from ekiden.config import Config, SchedulerConfig
from ekiden.evaluation.workloads.synthetic import synthetic_prompts
from ekiden.measure.percentiles import median
from ekiden.state.sampling_params import Grammar, GrammarKind, SamplingParams

GRAMMARS = {
    "json": Grammar(
        kind=GrammarKind.JSON_SCHEMA,
        source='{"type": "object", "properties": {"text": {"type": "string", "minLength": 4000}}}',
    ),
    "regex": Grammar(kind=GrammarKind.REGEX, source=r"([a-z]{1,9}[ ,.]){1280}"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--grammar", choices=("json", "regex"), default="json")
    asked = parser.parse_args()
    grammar = GRAMMARS[asked.grammar]
    llm = build_llm(load_model(Config()), Config(scheduler=SchedulerConfig(max_num_seqs=asked.rows)))
    free = SamplingParams(temperature=0.0, max_tokens=asked.output_tokens, ignore_eos=True)
    constrained = SamplingParams(temperature=0.0, max_tokens=asked.output_tokens, grammar=grammar)
    samplings = {
        "free": [free] * asked.rows,
        "mixed": [constrained if row % 2 else free for row in range(asked.rows)],
    }

    def rate(kind: str, seed: int) -> float:
        prompts = synthetic_prompts(asked.rows, asked.prompt_tokens, seed=seed, vocab_size=40_000)
        start = time.monotonic()
        made = sum(len(completion.token_ids) for completion in llm.generate(prompts, samplings[kind]))
        assert made == asked.rows * asked.output_tokens, f"{made} tokens: an answer ended early"
        return made / (time.monotonic() - start)

    for kind in samplings:
        rate(kind, -1)  # warm-up: the grammar is compiled here
    ratios: list[float] = []
    for pair in range(2 * asked.rounds):
        order = ("free", "mixed") if pair % 2 == 0 else ("mixed", "free")
        found = {kind: rate(kind, pair) for kind in order}
        ratios.append(found["mixed"] / found["free"])
    print(json.dumps({"mixed_over_free_median": median(ratios), "mixed_over_free": ratios}, indent=2))


if __name__ == "__main__":
    main()
