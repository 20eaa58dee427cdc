"""Real prompts in English and Japanese. Where both are asked for, each task comes in both, one right after the other.

Of a pair, chance decides which language comes first, and both answers have the length that the task was given, so that
a difference between the languages is one of their prompts and of the server. Lengths are drawn from the Azure
conversation trace, from the half that belongs to the split, because how long people's answers are is not known.

The first message of a prompt is asked. A block never has a task twice. Blocks beyond the last new task begin the tasks
over in another order, and say so (``pass``): they differ in arrivals, lengths and neighbours, not in texts.
"""

from collections import defaultdict
from collections.abc import Sequence

from ekiden.evaluation.workloads.drawn import arrival_options, arrivals
from ekiden.evaluation.workloads.offer import Kind, Offer
from ekiden.evaluation.workloads.package_data import Prompt, prompts, system_prompts, trace
from ekiden.evaluation.workloads.source import SPLITS, Ask, Made, Option, Source, endless, scaled
from ekiden.evaluation.workloads.traces import AZURE_CONVERSATION, rows_of

FILES = {"en": "prompts/prompts_en.jsonl", "ja": "prompts/prompts_ja.jsonl"}
SYSTEM = "prompts/system_prompts_en.jsonl"


def _tasks(languages: Sequence[str], split: str) -> list[list[Prompt]]:
    """The tasks of a split, each with its prompt in every language that is asked for; others are left out."""
    found: dict[str, list[Prompt]] = defaultdict(list)
    for language in languages:
        for prompt in prompts(FILES[language]):
            if prompt.split == split:
                found[prompt.pair_id].append(prompt)
    return [found[pair] for pair in sorted(found) if len(found[pair]) == len(languages)]


def _wanted(ask: Ask) -> int:
    """Tasks of a block."""
    return -(-ask.count // len(ask.options["languages"]))


def _too_many(ask: Ask) -> str | None:
    languages, wanted = ask.options["languages"], _wanted(ask)
    there = min(len(_tasks(languages, split)) for split in SPLITS)
    if wanted <= there:
        return None
    return (
        f"rate x seconds asks for {wanted} different tasks in {' and '.join(languages)}, and there are {there}; ask "
        "for a shorter block or a lower rate"
    )


def _chosen(ask: Ask) -> tuple[list[list[Prompt]], int]:
    """The tasks of this block, and how often all tasks have been used before."""
    tasks, wanted = _tasks(ask.options["languages"], ask.split), _wanted(ask)
    used, place = divmod(ask.block, len(tasks) // wanted)
    ask.chance(f"tasks {used}", all_blocks=True).shuffle(tasks)
    return tasks[place * wanted : (place + 1) * wanted], used


def _make(ask: Ask) -> Made:
    tasks, used = _chosen(ask)
    chance, lengths = ask.chance("order"), trace(AZURE_CONVERSATION)
    asked: list[tuple[Prompt, int]] = []
    for task in tasks:
        output = lengths[chance.choice(rows_of(AZURE_CONVERSATION, ask.split))].output_tokens
        asked += [(prompt, output) for prompt in chance.sample(task, len(task))]
    systems = _systems(ask)
    files = [*(FILES[language] for language in ask.options["languages"]), AZURE_CONVERSATION]
    offers = [
        Offer(
            id=ask.named(index),
            at=at,
            output_tokens=(tokens := scaled(output * _stretch(ask, prompt), ask.length_scale)),
            max_tokens=tokens,
            text=prompt.turns[0],
            system=chance.choice(systems) if systems else None,
            language=prompt.lang,
            pair=f"{prompt.pair_id}@{ask.split}{ask.block}" if len(ask.options["languages"]) > 1 else "",
        )
        for index, (at, (prompt, output)) in enumerate(zip(arrivals(ask), asked, strict=False))
    ]
    about = {"tasks": len(tasks), "pass": used, "system_prompts": len(systems)}
    return Made(offers=offers, about=about, files=(*files, *([SYSTEM] if systems else [])))


def _stretch(ask: Ask, prompt: Prompt) -> float:
    return float(ask.options["japanese_output_ratio"]) if prompt.lang == "ja" else 1.0


def _systems(ask: Ask) -> list[str]:
    """The shared system prompts of this block; every second one belongs to dev, the others to confirm."""
    if not (many := ask.options["system_prompts"]):
        return []
    pool = system_prompts(SYSTEM)[0 if ask.split == "dev" else 1 :: 2]
    return ask.chance("systems").sample(pool, many)


PROMPTS = Source(
    name="prompts",
    kind=Kind.NORMAL,
    summary="Real questions in English and Japanese, the same tasks in both, with drawn answer lengths",
    options=(
        Option(name="languages", default=["en", "ja"], choices=tuple(FILES), meaning="with both, only paired tasks"),
        Option(
            name="system_prompts", default=0, least=0, most=78, meaning="system prompts (English) that requests share"
        ),
        Option(
            name="japanese_output_ratio",
            default=1.0,
            least=0.1,
            most=10,
            meaning="length of a Japanese answer to that of the English one",
        ),
        *arrival_options("poisson"),
    ),
    make=_make,
    blocks=endless,
    fault=_too_many,
)
