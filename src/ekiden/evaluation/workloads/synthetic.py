"""What is asked of a server under test: synthetic prompts by seed, and the real prompts that the package carries."""

import random
from importlib.resources import files

import msgspec

from ekiden.data import prompts

LOWEST_SYNTHETIC_ID = 1_000
"""Below this, byte-level vocabularies keep control tokens and single bytes."""
HIGHEST_SYNTHETIC_ID = 20_000
"""Every vocabulary in common use is larger, so that the same prompts suit any server."""


class DemoPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A real prompt of the demo, with the most tokens that its answer may have."""

    id: str
    prompt: str
    max_tokens: int


def synthetic_prompts(count: int, tokens: int, *, seed: int, vocab_size: int | None = None) -> list[list[int]]:
    """``count`` prompts of exactly ``tokens`` random token ids, all different, the same for the same seed."""
    source = random.Random(seed)
    return [random_ids(tokens, source, vocab_size=vocab_size) for _ in range(count)]


def random_ids(tokens: int, source: random.Random, *, vocab_size: int | None = None) -> list[int]:
    """``tokens`` random ids that are plain text in any vocabulary of this size."""
    high = min(HIGHEST_SYNTHETIC_ID, vocab_size or HIGHEST_SYNTHETIC_ID)
    low = min(LOWEST_SYNTHETIC_ID, high // 2)
    return [source.randrange(low, high) for _ in range(tokens)]


def poisson_arrivals(count: int, rate: float, *, seed: int) -> list[float]:
    """Seconds from the start of the run at which ``count`` requests are due, ``rate`` a second on average."""
    source = random.Random(seed)
    due, arrivals = 0.0, []
    for _ in range(count):
        due += source.expovariate(rate)
        arrivals.append(due)
    return arrivals


def demo_prompts() -> list[DemoPrompt]:
    """The 24 prompts of the demo, in the order in which they are asked."""
    text = files(prompts).joinpath("demo.jsonl").read_bytes()
    return msgspec.json.Decoder(DemoPrompt).decode_lines(text)
