"""Times passes of several weight formats in turns in one process, as ratios to the first.

    python benchmarks/weight_formats.py int8 int8-rotated int8-kernels [--rounds 9] [--threads 2]

Equal models differ by up to 20% for few rows, depending on where in a process they are loaded, so name the formats in
another order too. "int8-float32" is int8 that is expanded. For prompts the largest difference of a format's logits from
the first format's is printed too, as a share of their range.
"""

import argparse
import time
from collections.abc import Sequence

import numpy as np

from ekiden.backends.openvino.paged_model import InputRow, flat_inputs
from ekiden.build.model import load_model
from ekiden.config import CacheConfig, Config, EngineConfig, ModelConfig
from ekiden.measure.percentiles import percentiles

PASSES = ((1, 300, 0), (2, 300, 0), (8, 300, 0), (32, 256, 0), (64, 256, 0), (0, 0, 184), (24, 256, 184), (0, 0, 512))
BLOCK = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="+")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=0)
    asked = parser.parse_args()
    models = {name: load(name, asked.threads) for name in asked.formats}
    first = asked.formats[0]
    print(f"{'pass':<22}" + "".join(f"{name:>28}" for name in asked.formats))
    for rows, context, prompt in PASSES:
        inputs = flat_inputs(rows_of(rows, context, prompt), list(range(rows or 1)))
        seconds: dict[str, list[float]] = {name: [] for name in asked.formats}
        logits = {}
        for name, model in models.items():
            model.compute(inputs)
            logits[name] = model.compute(inputs)[0].copy()
        for turn in range(asked.rounds):
            for name in asked.formats if turn % 2 else reversed(asked.formats):
                models[name].compute(inputs)  # the caches hold what this format reads
                begin = time.perf_counter()
                models[name].compute(inputs)
                seconds[name].append(time.perf_counter() - begin)
        cells = []
        for name in asked.formats:
            ratios = [one / other for one, other in zip(seconds[name], seconds[first], strict=True)]
            # Decodes read keys that nobody wrote.
            told = "" if rows else f"{np.abs(logits[name] - logits[first]).max() / np.ptp(logits[first]):.0%}"
            low, middle, high = percentiles(ratios, [25, 50, 75])
            milliseconds = percentiles(seconds[name], [50])[0] * 1000
            cells.append(f"{milliseconds:7.1f} ms {middle:.2f} ({low:.2f}-{high:.2f}) {told:>4}")
        told = f"{rows} rows of {context}" if not prompt else f"{rows} rows + {prompt}" if rows else f"prefill {prompt}"
        print(f"{told:<22}" + "".join(f"{cell:>28}" for cell in cells), flush=True)


def load(name: str, threads: int):  # type: ignore[no-untyped-def]
    expand = {"int8-float32": "always", "int8": "never"}.get(name, "auto")
    weights = "int8" if name == "int8-float32" else name
    config = Config(
        model=ModelConfig(weights=weights, expand_weights=expand),
        cache=CacheConfig(kv_cache_size="700MiB"),
        engine=EngineConfig(threads=threads or None),
    )
    return load_model(config).runner.model


def rows_of(rows: int, context: int, prompt: int) -> Sequence[InputRow]:
    each = context // BLOCK + 1
    chance = np.random.default_rng(0)
    decode = [
        ([int(chance.integers(1000, 40000))], context, range(row * each, (row + 1) * each)) for row in range(rows)
    ]
    if not prompt:
        return decode
    first = rows * each
    tokens = chance.integers(1000, 40000, prompt).tolist()
    return [*decode, (tokens, 0, range(first, first + prompt // BLOCK + 1))]


if __name__ == "__main__":
    main()
