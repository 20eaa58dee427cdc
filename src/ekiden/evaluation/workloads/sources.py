"""All sources of workloads by name, and the one function that makes a workload of them.

The same arguments give the same workload, to the digest.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from ekiden.errors import UserError
from ekiden.evaluation.workloads.changes import CHANGES, changed
from ekiden.evaluation.workloads.generated import GENERATED
from ekiden.evaluation.workloads.offer import Offer, Workload
from ekiden.evaluation.workloads.package_data import digest_of
from ekiden.evaluation.workloads.source import SPLITS, Ask, Option, Source, Split
from ekiden.evaluation.workloads.spec import WorkloadSpec
from ekiden.evaluation.workloads.texts import PROMPTS
from ekiden.evaluation.workloads.traces import TRACES

SOURCES: dict[str, Source] = {source.name: source for source in (*TRACES, PROMPTS, *GENERATED)}

COMMON = (
    Option(name="max_prompt_tokens", default=None, least=1, meaning="made prompts that are longer are cut"),
    Option(name="max_output_tokens", default=None, least=1, meaning="answers that are longer are cut"),
    Option(name="max_stated_tokens", default=1024, least=1, meaning="the largest limit that a lying client states"),
    Option(name="deadline_seconds", default=2.0, least=0, meaning="tight deadlines: so long after the arrival"),
    Option(
        name="deadline_seconds_per_token", default=0.1, least=0, meaning="... and so long for each token of the answer"
    ),
)
"""Options that every source has."""


def faults(spec: WorkloadSpec) -> list[str]:
    """All that is wrong with a workload's section, each naming field, value and way out."""
    found = []
    for name in ("seconds", "rate", "length_scale"):
        value = getattr(spec, name)
        if not (math.isfinite(value) and value > 0):
            found.append(f"{name} is {value!r}; give a number above 0")
    if not found and round(spec.rate * spec.seconds) < 1:
        found.append(f"rate {spec.rate:g} for {spec.seconds:g} seconds makes no request; raise one of them")
    source = SOURCES.get(spec.source)
    if source is None:
        found.append(f"source is {spec.source!r}; there are {', '.join(SOURCES)}")
    elif wrong := _option_faults(source, spec.options):
        found += wrong
    elif not found and (fault := source.fault(_ask(spec, "dev", 0, 0))):
        found.append(fault)
    found += [f"change has {name!r}; there are {', '.join(CHANGES)}" for name in spec.change if name not in CHANGES]
    if len(set(spec.change)) < len(spec.change):
        found.append(f"change names one twice: {', '.join(spec.change)}; leave the second out")
    return [f"workload {spec.name!r}: {fault}" for fault in found]


def _option_faults(source: Source, given: dict[str, Any]) -> list[str]:
    known = {option.name: option for option in (*source.options, *COMMON)}
    strange = [
        f"options has {name!r}, which {source.name} does not know; there are {', '.join(known)}"
        for name in given
        if name not in known
    ]
    wrong = [(name, known[name].fault(value)) for name, value in given.items() if name in known]
    return strange + [f"options: {name} {fault}" for name, fault in wrong if fault]


def check(spec: WorkloadSpec) -> None:
    """Raise :class:`UserError` with all :func:`faults` of a workload's section."""
    if found := faults(spec):
        raise UserError("\n".join(found))


def blocks_available(spec: WorkloadSpec, split: Split) -> int | None:
    """How many blocks of this size a split has; None for as many as one likes."""
    check(spec)
    return SOURCES[spec.source].blocks(_ask(spec, split, 0, 0))


def make(spec: WorkloadSpec, *, split: Split, block: int, seed: int) -> Workload:
    """One block, blocks counted from 0. Raises :class:`UserError` for a wrong section and for a block that the split
    does not have."""
    check(spec)
    if split not in SPLITS:
        raise UserError(f"split is {split!r}; there are {', '.join(SPLITS)}")
    source, ask = SOURCES[spec.source], _ask(spec, split, block, seed)
    there = source.blocks(ask)
    if block < 0 or (there is not None and block >= there):
        raise UserError(
            f"workload {spec.name!r}: block {block} of {split} does not exist; {ask.count} requests a block make "
            f"{there} blocks of {source.name}, counted from 0. Ask for fewer or shorter blocks, or a lower rate"
            if there is not None
            else f"workload {spec.name!r}: block {block} does not exist; blocks are counted from 0"
        )
    made = source.make(ask)
    offers, cut = _capped(made.offers, ask.options)
    workload = Workload(
        name=spec.name,
        kind=spec.kind,
        seconds=spec.seconds,
        offers=tuple(offers),
        made={
            "source": source.name,
            "split": split,
            "block": block,
            "seed": seed,
            "rate": spec.rate,
            "length_scale": spec.length_scale,
            "options": dict(ask.options),
            "cut": cut,
            **made.about,
            "changes": [],
        },
        sources={path: digest_of(path) for path in sorted(made.files)},
    )
    for name in spec.change:
        workload = changed(workload, name)
    return workload


def _ask(spec: WorkloadSpec, split: Split, block: int, seed: int) -> Ask:
    source = SOURCES[spec.source]
    options = {option.name: option.default for option in (*source.options, *COMMON)} | spec.options
    return Ask(
        source=source.name,
        split=split,
        block=block,
        seed=seed,
        seconds=spec.seconds,
        rate=spec.rate,
        length_scale=spec.length_scale,
        options=options,
    )


def _capped(offers: Sequence[Offer], options: Any) -> tuple[list[Offer], dict[str, int]]:
    """The requests with no length above its cap, and how many prompts and answers were cut."""
    most_prompt, most_output = options["max_prompt_tokens"], options["max_output_tokens"]
    capped, cut = [], {"prompts": 0, "answers": 0}
    for offer in offers:
        prompt = min(offer.prompt_tokens, most_prompt or offer.prompt_tokens)
        output = min(offer.output_tokens, most_output or offer.output_tokens)
        cut["prompts"] += prompt < offer.prompt_tokens
        cut["answers"] += output < offer.output_tokens
        capped.append(
            msgspec.structs.replace(
                offer,
                prompt_tokens=prompt,
                output_tokens=output,
                max_tokens=output,
                prefix_tokens=min(offer.prefix_tokens, prompt) if offer.prompt_tokens else 0,
            )
        )
    return capped, cut
