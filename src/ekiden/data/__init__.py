"""Real prompts and real text that the demo, the benchmarks and the tests use, and the demo's page; see LICENSES.md for
the sources."""

import json
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A conversation's user messages, in order; ``source`` is ``mt_bench`` or ``vicuna_bench``."""

    id: str
    source: str
    category: str
    turns: tuple[str, ...]


def read_prompts() -> tuple[Prompt, ...]:
    """The 160 English chat prompts, in the order of the file."""
    return tuple(
        Prompt(id=row["id"], source=row["source"], category=row["category"], turns=tuple(row["turns"]))
        for row in _rows("prompts/prompts_en.jsonl")
    )


def read_passages() -> tuple[str, ...]:
    """The 45 passages of English text on which perplexity is measured, in the order of the file."""
    return tuple(row["text"] for row in _rows("text/perplexity_en.jsonl"))


def _rows(path: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in files(__name__).joinpath(path).read_text(encoding="utf-8").splitlines()]
