"""Requests that are made up, each source for one property that it has exactly: what is normal, hard or misleading.

Prompts are lengths only. Every source draws anew for each seed, split and block, so that no two blocks are alike.
"""

from collections.abc import Callable, Sequence

from ekiden.evaluation.workloads.drawn import arrival_options, arrivals, lengths
from ekiden.evaluation.workloads.offer import Kind, Offer
from ekiden.evaluation.workloads.source import Ask, Made, Option, Source, endless, faultless, scaled


def _options(
    *,
    prompt: int = 128,
    prompt_cv: float = 0.6,
    output: int = 64,
    output_cv: float | None = 0.8,
    arriving: str = "poisson",
    arrival_cv: float = 1.0,
) -> tuple[Option, ...]:
    """The options that every generated source has; None for ``output_cv`` where the source decides it."""
    spread = "coefficient of variation of the lengths of"
    own = (
        Option(name="prompt_tokens", default=prompt, least=1, meaning="mean length of a prompt"),
        Option(name="prompt_cv", default=prompt_cv, least=0, most=5, meaning=f"{spread} prompts; 0: all the same"),
        Option(name="output_tokens", default=output, least=1, meaning="mean length of an answer"),
        Option(name="shared_prefix_tokens", default=0, least=0, meaning="tokens with which all prompts begin alike"),
        *arrival_options(arriving, cv=arrival_cv),
    )
    if output_cv is None:
        return own
    return (
        *own,
        Option(name="output_cv", default=output_cv, least=0, most=5, meaning=f"{spread} answers; 0: all the same"),
    )


def _outputs(ask: Ask, cv: float) -> list[int]:
    return lengths(ask.count, ask.options["output_tokens"] * ask.length_scale, cv, ask.chance("outputs"))


def _prompts(ask: Ask) -> list[int]:
    mean = ask.options["prompt_tokens"] * ask.length_scale
    return lengths(ask.count, mean, ask.options["prompt_cv"], ask.chance("prompts"))


def _offers(
    ask: Ask,
    *,
    times: Sequence[float] | None = None,
    prompts: Sequence[int] | None = None,
    outputs: Sequence[int] | None = None,
    tenants: Sequence[str] | None = None,
) -> list[Offer]:
    """The block's requests; what a source does not give is drawn as the options say."""
    times = times or arrivals(ask)
    prompts = prompts or _prompts(ask)
    outputs = outputs or _outputs(ask, ask.options["output_cv"])
    shared = round(ask.options["shared_prefix_tokens"] * ask.length_scale)
    return [
        Offer(
            id=ask.named(index),
            at=times[index],
            prompt_tokens=prompts[index],
            output_tokens=outputs[index],
            max_tokens=outputs[index],
            prefix_group="shared" if shared else "",
            prefix_tokens=min(shared, prompts[index]),
            tenant=tenants[index] if tenants else "default",
        )
        for index in range(ask.count)
    ]


def _plain(ask: Ask) -> Made:
    return Made(offers=_offers(ask), about={})


def _equal_lengths(ask: Ask) -> Made:
    return Made(offers=_offers(ask, outputs=_outputs(ask, 0.0)), about={})


def _length_variance(ask: Ask) -> Made:
    return Made(offers=_offers(ask, outputs=_outputs(ask, ask.options["cv"])), about={})


LONGEST = 2
"""A lone client's prompts and answers are at most this many times their mean, so that its pauses can be long enough."""


def _slowest(ask: Ask) -> float:
    """Seconds that the longest request of a lone client may take."""
    options = ask.options
    prompt = options["prompt_tokens"] * options["seconds_per_prompt_token"]
    output = options["output_tokens"] * options["seconds_per_output_token"]
    return float(LONGEST * ask.length_scale * (prompt + output))


def _crowded(ask: Ask) -> str | None:
    slowest, space = _slowest(ask), ask.seconds / ask.count
    if slowest <= space:
        return None
    return (
        f"rate is {ask.rate:g}: a lone client waits for its answer, which may take {slowest:.2f} s, and has "
        f"{space:.2f} s; ask for a rate of at most {1 / slowest:.2g}, or for shorter lengths"
    )


def _lone_client(ask: Ask) -> Made:
    """Evenly spaced, with room for a slow machine between any two requests."""
    scale, space = LONGEST * ask.length_scale, ask.seconds / ask.count
    prompts = [min(length, scaled(ask.options["prompt_tokens"], scale)) for length in _prompts(ask)]
    outputs = _outputs(ask, ask.options["output_cv"])
    outputs = [min(length, scaled(ask.options["output_tokens"], scale)) for length in outputs]
    times = [round(index * space, 6) for index in range(ask.count)]
    about = {"space_seconds": round(space, 6), "slowest_seconds": round(_slowest(ask), 6)}
    return Made(offers=_offers(ask, times=times, prompts=prompts, outputs=outputs), about=about)


def _too_few(ask: Ask) -> str | None:
    least = ask.options["times"] + 1
    if ask.count >= least:
        return None
    return (
        f"rate x seconds makes {ask.count} requests, and a flood of {least - 1} to 1 needs at least {least}; ask for a "
        "longer block, a higher rate or fewer times"
    )


def _flood(ask: Ask) -> Made:
    quiet = ask.count // (ask.options["times"] + 1)
    tenants = ["quiet"] * quiet + ["flood"] * (ask.count - quiet)
    ask.chance("tenants").shuffle(tenants)
    return Made(offers=_offers(ask, tenants=tenants), about={"requests": {"flood": ask.count - quiet, "quiet": quiet}})


def _long_among_short(ask: Ask) -> Made:
    many = max(1, round(ask.options["long_share"] * ask.count))
    prompts = _prompts(ask)
    for index in ask.chance("long").sample(range(ask.count), many):
        prompts[index] = scaled(ask.options["long_prompt_tokens"], ask.length_scale)
    return Made(offers=_offers(ask, prompts=prompts), about={"long_prompts": many})


def _near_full_kv(ask: Ask) -> Made:
    """Requests of which a group fills the KV pool: their answers grow until it is nearly full."""
    group, pool = ask.options["group"], ask.options["kv_tokens"]
    whole = ask.options["fill"] * pool * ask.length_scale / group
    output = whole * ask.options["output_share"]
    outputs = lengths(ask.count, output, ask.options["output_cv"], ask.chance("outputs"))
    prompts = lengths(ask.count, whole - output, ask.options["prompt_cv"], ask.chance("prompts"))
    tokens = round(whole * group)
    return Made(offers=_offers(ask, prompts=prompts, outputs=outputs), about={"tokens_of_a_group": tokens})


def _source(
    name: str,
    kind: Kind,
    make: Callable[[Ask], Made],
    summary: str,
    options: tuple[Option, ...],
    *own: Option,
    fault: Callable[[Ask], str | None] = faultless,
) -> Source:
    return Source(
        name=name, kind=kind, summary=summary, options=(*own, *options), make=make, blocks=endless, fault=fault
    )


GENERATED = (
    _source("poisson", Kind.NORMAL, _plain, "Requests at random moments, with lengths of medium spread", _options()),
    _source(
        "bursts",
        Kind.HARD,
        _plain,
        "Requests in bursts with pauses between them",
        _options(arriving="gamma", arrival_cv=4.0),
    ),
    _source(
        "long-among-short",
        Kind.HARD,
        _long_among_short,
        "A few long prompts among many short ones, whose answers they may hold up",
        _options(prompt=64, prompt_cv=0.3),
        Option(name="long_prompt_tokens", default=1024, least=1, meaning="length of each long prompt"),
        Option(name="long_share", default=0.1, least=0, most=1, meaning="share of long prompts; at least one is"),
    ),
    _source(
        "near-full-kv",
        Kind.HARD,
        _near_full_kv,
        "Groups of requests that together need almost the whole KV pool",
        tuple(
            option
            for option in _options(prompt_cv=0.2, output_cv=0.3, arriving="together")
            if option.name not in ("prompt_tokens", "output_tokens")
        ),
        Option(name="kv_tokens", default=8192, least=1, meaning="tokens that the KV pool of the arms holds"),
        Option(name="fill", default=0.95, least=0.01, most=4, meaning="share of the pool that a group needs"),
        Option(name="output_share", default=0.5, least=0.01, most=0.99, meaning="share of its tokens that are answer"),
    ),
    _source(
        "equal-lengths",
        Kind.MISLEADING,
        _equal_lengths,
        "All answers are equally long and come in whole groups: continuous batching has nothing to gain",
        _options(prompt_cv=0.0, output_cv=None, arriving="together"),
    ),
    _source(
        "length-variance",
        Kind.NORMAL,
        _length_variance,
        "Answers whose lengths vary as much as is asked for, with the same mean: what the gain should depend on",
        _options(prompt_cv=0.0, output_cv=None, arriving="together"),
        Option(name="cv", default=1.0, least=0, most=5, meaning="coefficient of variation of the answers' lengths"),
    ),
    _source(
        "lone-client",
        Kind.MISLEADING,
        _lone_client,
        "One request at a time: there is nothing to batch",
        tuple(
            option
            for option in _options(prompt=64, output=32, output_cv=0.5)
            if option.name not in ("arrivals", "arrival_cv", "group")
        ),
        Option(
            name="seconds_per_prompt_token", default=0.005, least=0, meaning="more than the slowest arm takes for one"
        ),
        Option(
            name="seconds_per_output_token", default=0.05, least=0, meaning="more than the slowest arm takes for one"
        ),
        fault=_crowded,
    ),
    _source(
        "flood",
        Kind.MISLEADING,
        _flood,
        "One tenant sends many times as much as the other, whose requests must not suffer",
        _options(),
        Option(name="times", default=20, least=1, meaning="requests of the tenant `flood` to one of `quiet`"),
        fault=_too_few,
    ),
)
