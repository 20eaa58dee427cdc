"""Compares answers with and without speculation, in turns: output tokens a second, end to end, and the same tokens.

    python benchmarks/speculation.py --work chat quote code json --streams 1 4 8 32 64 --rounds 3

``chat`` are the prompts of the demo; ``quote`` asks for a text again, ``code`` for a program with small changes, and
``json`` for a record by a schema. Each arm has an engine of its own over one model, so that each has its own step-time
model and acceptance. Every answer must have the same tokens in both arms.
"""

import argparse
import json
import time
from dataclasses import replace
from importlib.resources import files
from itertools import count, cycle, islice

from ekiden import data
from ekiden.build.core import build_core
from ekiden.build.model import describe_model, find_model, load_described
from ekiden.config import CacheConfig, Config, EngineConfig, SchedulerConfig
from ekiden.engine.driver import run_batch
from ekiden.engine.engine_core import EngineCore
from ekiden.evaluation.workloads.synthetic import demo_prompts
from ekiden.measure.percentiles import median
from ekiden.models.conversation import chat_token_ids
from ekiden.models.load import ModelDescription
from ekiden.state.request import Request
from ekiden.state.sampling_params import Grammar, GrammarKind, SamplingParams

PROGRAMS = (
    '''def total_price(items, tax_rate):
    """Return the total price of all items with tax."""
    total = 0.0
    for item in items:
        price = item["price"]
        quantity = item["quantity"]
        total += price * quantity
    return total * (1.0 + tax_rate)


def print_invoice(items, tax_rate):
    for item in items:
        print(item["name"], item["price"], item["quantity"])
    print("total:", total_price(items, tax_rate))
''',
    '''class Stack:
    """A last-in, first-out collection."""

    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()

    def peek(self):
        return self.items[-1] if self.items else None
''',
    """import csv


def read_rows(path):
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        return [row for row in reader]


def average(rows, column):
    values = [float(row[column]) for row in rows if row[column]]
    if not values:
        return 0.0
    return sum(values) / len(values)
""",
    """function debounce(callback, delay) {
  let timer = null;
  return function (...args) {
    if (timer !== null) {
      clearTimeout(timer);
    }
    timer = setTimeout(() => {
      timer = null;
      callback.apply(this, args);
    }, delay);
  };
}
""",
)
EDITS = (
    "Add a comment above every function. Return the whole code.",
    "Give back the whole code with a better name for one variable.",
    "Write the same code again, with type hints.",
)
SCHEMA = {
    "title": {"type": "string", "maxLength": 60},
    "author_name": {"type": "string", "maxLength": 30},
    "publication_year": {"type": "integer", "minimum": 1800, "maximum": 2030},
    "category": {"enum": ["history", "science", "travel", "fiction"]},
    "main_subjects": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 2, "maxItems": 3},
    "number_of_pages": {"type": "integer", "minimum": 10, "maximum": 900},
    "available_in_library": {"type": "boolean"},
    "shelf_location": {"enum": ["ground floor", "first floor", "store room"]},
}
GRAMMAR = Grammar(
    kind=GrammarKind.JSON_SCHEMA,
    source=json.dumps({"type": "object", "properties": SCHEMA, "required": list(SCHEMA)}),
)


def texts(words: int) -> list[str]:
    """The first words of English passages."""
    lines = files(data).joinpath("text", "perplexity_en.jsonl").read_text("utf-8").splitlines()
    return [" ".join(json.loads(line)["text"].split()[:words]) for line in lines]


def work_of(kind: str) -> list[tuple[str, SamplingParams]]:
    """The prompts of one kind of work, each with its sampling parameters."""
    greedy = SamplingParams(temperature=0.0, max_tokens=128)
    match kind:
        case "chat":
            return [(demo.prompt, greedy) for demo in demo_prompts()]
        case "quote":
            asked = "Here is a text:\n\n{}\n\nRepeat the text exactly, word by word, and nothing else."
            return [(asked.format(text), greedy) for text in texts(100)]
        case "code":
            return [(f"{program}\n\n{edit}", greedy) for edit in EDITS for program in PROGRAMS]
        case _:
            asked = "Describe a book about this as a JSON record with title, author_name and so on:\n\n{}"
            return [(asked.format(text), replace_grammar(greedy)) for text in texts(80)]


def replace_grammar(sampling: SamplingParams) -> SamplingParams:
    return SamplingParams(temperature=sampling.temperature, max_tokens=sampling.max_tokens, grammar=GRAMMAR)


class Arms:
    """One engine for each kind of speculation, over one model."""

    def __init__(self, names: list[str], most_streams: int, draft_model: str | None) -> None:
        config = Config(
            cache=CacheConfig(enable_prefix_caching=False),  # the arms share a pool, and neither knows of the other
            engine=EngineConfig(draft_model=draft_model),
            scheduler=SchedulerConfig(max_num_seqs=most_streams),
        )
        self.description: ModelDescription = describe_model(config, find_model(config))
        self._parts = load_described(config, self.description)
        self._config, self.names = config, names
        self._numbers = count()

    def cores(self) -> dict[str, EngineCore]:
        found = {}
        for name in self.names:
            engine = replace(
                self._config.engine,
                speculation=name,
                draft_model=self._config.engine.draft_model if name in ("auto", "draft-model") else None,
            )
            parts = self._parts if engine.draft_model else replace(self._parts, draft_runner=None)
            found[name] = build_core(parts, replace(self._config, engine=engine))
        return found

    def run(
        self, core: EngineCore, work: list[tuple[list[int], SamplingParams]], streams: int
    ) -> tuple[float, list[tuple[int, ...]]]:
        """Output tokens a second, and the answers."""
        start = time.monotonic()
        requests = [
            Request(
                request_id=f"r{next(self._numbers)}",
                prompt_token_ids=tuple(prompt),
                sampling=sampling,
                arrival_time=start,
            )
            for prompt, sampling in work
        ]
        answers = {
            answer.request.request_id: tuple(answer.token_ids)
            for answer in run_batch(core, requests, concurrency=streams)
        }
        seconds = time.monotonic() - start
        found = [answers[request.request_id] for request in requests]
        return sum(map(len, found)) / seconds, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", nargs="+", default=["chat", "quote", "code", "json"])
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 4, 8, 32, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arms", nargs=2, default=["none", "auto"])
    parser.add_argument("--least-requests", type=int, default=4)
    parser.add_argument("--draft-model")
    asked = parser.parse_args()
    arms = Arms(asked.arms, max(64, *asked.streams), asked.draft_model)
    for kind in asked.work:
        prompts = [
            (
                chat_token_ids(
                    arms.description.tokenizer, arms.description.chat_template, [{"role": "user", "content": text}]
                ),
                sampling,
            )
            for text, sampling in work_of(kind)
        ]
        for streams in asked.streams:
            source, cores = cycle(prompts), arms.cores()
            number = max(streams, asked.least_requests)
            for core in cores.values():
                arms.run(core, list(islice(source, streams)), streams)  # warm-up
            rates: dict[str, list[float]] = {name: [] for name in asked.arms}
            ratios: list[float] = []
            for turn in range(asked.rounds):
                work, given = list(islice(source, number)), []
                for name in asked.arms if turn % 2 == 0 else asked.arms[::-1]:
                    rate, answers = arms.run(cores[name], work, streams)
                    rates[name].append(rate)
                    given.append(answers)
                assert given[0] == given[1], "speculation changed a token"
                ratios.append(rates[asked.arms[1]][-1] / rates[asked.arms[0]][-1])
            stats = cores[asked.arms[1]].stats()
            print(
                json.dumps(
                    {
                        "work": kind,
                        "streams": streams,
                        **{f"{name}_tokens_per_second": round(median(rates[name]), 1) for name in asked.arms},
                        "ratio": round(median(ratios), 3),
                        "ratios": [round(ratio, 3) for ratio in ratios],
                        "drafts": stats.spec_decode_num_draft_tokens_total,
                        "accepted": stats.spec_decode_num_accepted_tokens_total,
                        "tokens": stats.generation_tokens_total,
                        "no_drafts": stats.spec_decode_no_drafts_total,
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
