"""What reading prompts costs beside answering them with one token, in turns, and whether related texts come first.

    python benchmarks/read_prompts.py --rounds 4

The first part computes the same prompts by the same chunks, so its ratios, of processor time, are what pooling adds.
The second ranks the documents of :data:`PAIRS` for each of their questions, by the cosine of embeddings and by the
question's likelihood.
"""

import argparse
import json
import time
from itertools import count

import numpy as np

from ekiden.api.doors.embeddings import embedding_of
from ekiden.api.prompts import BEFORE_DOCUMENT, BEFORE_QUERY, OF_QUERY
from ekiden.build.core import build_core
from ekiden.build.model import load_model
from ekiden.config import CacheConfig, Config
from ekiden.engine.driver import Answer, run_batch
from ekiden.evaluation.workloads.synthetic import synthetic_prompts
from ekiden.measure.percentiles import median
from ekiden.state.request import Pooling, Reading, Request
from ekiden.state.sampling_params import SamplingParams

PAIRS = [
    ("How do bees make honey?", "Worker bees collect nectar from flowers, carry it to the hive, and fan it with their "
     "wings until the water has gone and it thickens in the comb."),
    ("What is the boiling point of water?", "At sea level water turns to steam at one hundred degrees Celsius; on a "
     "high mountain it does so at a lower temperature."),
    ("Who painted the Mona Lisa?", "Leonardo da Vinci worked on the portrait of Lisa Gherardini for many years; it "
     "hangs in the Louvre in Paris today."),
    ("How can I repair a flat bicycle tyre?", "Take the wheel off, pull the tube from under the tyre, find the hole in "
     "a bowl of water, roughen the rubber and glue a patch over it."),
    ("Why is the sky blue?", "Air scatters short wavelengths of sunlight more than long ones, so light of that colour "
     "reaches our eyes from every direction of the sky."),
    ("What does a mortgage broker do?", "A person who compares home loans of several banks for a buyer, helps with the "
     "papers and is paid a commission when the loan is signed."),
    ("Which planet is the largest?", "Jupiter has more than twice the mass of all the other planets of the Solar "
     "System together, and over ninety moons."),
    ("How long should I boil an egg?", "For a soft yolk leave it in simmering water for six minutes; for a firm one, "
     "ten; then put it under cold water so that it peels easily."),
    ("What causes earthquakes?", "Plates of the crust move against each other; where they are stuck, stress builds up "
     "until the rock breaks along a fault and the ground shakes."),
    ("When did the Berlin Wall fall?", "On the evening of the ninth of November 1989 the border crossings were opened, "
     "and crowds began to take the concrete apart with hammers."),
    ("How do vaccines work?", "A harmless piece of a germ is shown to the immune system, which makes antibodies and "
     "memory cells, so that it is ready for the real infection."),
    ("What is the capital of Australia?", "Canberra was founded in 1913 as a compromise between Sydney and Melbourne, "
     "and the parliament has met there since 1927."),
    ("How do I stop a tap from dripping?", "Turn off the water, open the handle, and replace the worn rubber washer "
     "that no longer seals the valve seat."),
    ("What do pandas eat?", "Almost all of their food is bamboo, of which an adult chews up to forty kilograms of "
     "leaves and stems a day."),
    ("How does a sailing boat go against the wind?", "It tacks: the sail acts like a wing, the keel keeps the hull "
     "from slipping sideways, and the course zigzags at an angle to the breeze."),
    ("Why do leaves change colour in autumn?", "When days get short, trees stop making chlorophyll; the green fades "
     "and yellow and red pigments that it hid become visible."),
]  # fmt: skip
NUMBERS = count()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    asked = parser.parse_args()
    config = Config(cache=CacheConfig(enable_prefix_caching=False))
    parts = load_model(config)
    tokenizer = parts.tokenizer
    assert tokenizer is not None

    def run(prompts: list[list[int]], readings: list[Reading | None]) -> list[Answer]:
        requests = [
            Request(
                request_id=str(next(NUMBERS)),
                prompt_token_ids=tuple(prompt),
                sampling=SamplingParams(temperature=0.0, max_tokens=1),
                arrival_time=time.monotonic(),
                reading=reading,
            )
            for prompt, reading in zip(prompts, readings, strict=True)
        ]
        return run_batch(build_core(parts, config), requests)

    kinds = {"answered": None, **{f"pooled by {kind}": Reading(pooling=kind) for kind in Pooling}}
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(asked.rounds):
        prompts = synthetic_prompts(asked.prompts, asked.prompt_tokens, seed=turn, vocab_size=40_000)
        for name in sorted(kinds, reverse=bool(turn % 2)):
            began = time.process_time()
            run(prompts, [kinds[name]] * len(prompts))
            seconds[name].append(time.process_time() - began)
    ratios = {
        name: median([other / plain for other, plain in zip(times, seconds["answered"], strict=True)])
        for name, times in seconds.items()
    }

    questions, documents = zip(*PAIRS, strict=True)
    scores: dict[str, list[list[float]]] = {}
    for kind in Pooling:
        texts = [tokenizer.encode(text, add_special_tokens=True) for text in questions + documents]
        pooled = [answer.pooled or b"" for answer in run(texts, [Reading(pooling=kind)] * len(texts))]
        vectors = np.stack([embedding_of(each, None, unit_length=True) for each in pooled])
        scores[f"cosine, {kind}"] = (vectors[: len(PAIRS)] @ vectors[len(PAIRS) :].T).tolist()
    scores["likelihood"] = []
    for question in questions:
        contexts = [
            tokenizer.encode(BEFORE_DOCUMENT + text + BEFORE_QUERY, add_special_tokens=True) for text in documents
        ]
        query = tokenizer.encode(OF_QUERY + question, add_special_tokens=False)
        found = run([[*each, *query] for each in contexts], [Reading(scored_from=len(each)) for each in contexts])
        row = [sum(token.logprob for token in answer.prompt_logprobs or ()) / len(query) for answer in found]
        scores["likelihood"].append(row)
    first = {
        name: sum(max(range(len(row)), key=row.__getitem__) == at for at, row in enumerate(rows))
        for name, rows in scores.items()
    }
    print(json.dumps({"time_over_answered": ratios, "related_first": first, "of": len(PAIRS)}, indent=2))


if __name__ == "__main__":
    main()
