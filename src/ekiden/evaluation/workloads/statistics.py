"""What a workload looks like: the figures by which a reader judges whether it is like theirs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from ekiden.evaluation.workloads.offer import Workload
from ekiden.measure.percentiles import quantiles

Spread = dict[str, float | int] | None
"""As :func:`ekiden.measure.percentiles.quantiles` gives it; None where there is no value."""


class WorkloadStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Coefficients of variation are the standard deviation (of the population) / the mean."""

    requests: int
    seconds: float
    rate: float
    """Requests / second."""
    gap_cv: float | None
    """Of the times between arrivals; 1 is Poisson, 0 even."""
    prompt_tokens: Spread
    """Made prompts."""
    prompt_characters: Spread
    """Real prompts with what stands before them: their tokens depend on the model."""
    output_tokens: Spread
    output_mean: float
    output_cv: float | None
    shared_prompt_share: float
    """Tokens of made prompts that the prompt of another request begins with / all of them."""
    tenants: dict[str, int]
    """Requests of each, the most first."""
    languages: dict[str, int]
    pairs: int
    """Tasks that are asked in more than one language."""
    stated_limits: int
    """Requests that state ``max_tokens``."""
    deadlines: int
    digest: str


def statistics_of(workload: Workload) -> WorkloadStatistics:
    """The figures of one block."""
    offers = workload.offers
    made = [offer for offer in offers if offer.text is None]
    texts = [offer for offer in offers if offer.text is not None]
    outputs = [offer.output_tokens for offer in offers]
    gaps = [later.at - offer.at for offer, later in pairwise(offers)]
    return WorkloadStatistics(
        requests=len(offers),
        seconds=workload.seconds,
        rate=len(offers) / workload.seconds,
        gap_cv=_cv(gaps),
        prompt_tokens=quantiles(offer.prompt_tokens for offer in made),
        prompt_characters=quantiles(len(offer.text or "") + len(offer.system or "") for offer in texts),
        output_tokens=quantiles(outputs),
        output_mean=sum(outputs) / len(outputs),
        output_cv=_cv(outputs),
        shared_prompt_share=_share(
            sum(offer.prefix_tokens for offer in made), sum(offer.prompt_tokens for offer in made)
        ),
        tenants=_counted(offer.tenant for offer in offers),
        languages=_counted(offer.language for offer in texts),
        pairs=sum(many > 1 for many in Counter(offer.pair for offer in offers if offer.pair).values()),
        stated_limits=sum(offer.max_tokens is not None for offer in offers),
        deadlines=sum(offer.deadline is not None for offer in offers),
        digest=workload.digest,
    )


def _cv(values: Sequence[float]) -> float | None:
    """None where there is nothing to vary."""
    mean = float(np.mean(values)) if len(values) > 1 else 0.0
    return float(np.std(values)) / mean if mean else None


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())
