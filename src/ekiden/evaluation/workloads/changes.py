"""Changes of premise: each takes a workload and changes one thing that an arm may rely on.

What arrives otherwise stays: ids, prompts and answers are those of the unchanged workload, so that runs with and
without the change can be compared request by request. ``other-user-mix`` alone chooses other requests, which is its
point. A change writes itself into ``made["changes"]``. Less compute is no change of the workload: it is a setting of
the engine, which a plan gives in ``engine``.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from ekiden.errors import UserError
from ekiden.evaluation.workloads.offer import Offer, Workload

TIMES_TOO_LARGE = 4
URGENT, PATIENT = 0, 10
"""Priorities; lower runs first."""
PATIENCE_FACTOR = 10
LOUDEST_SHARE = 3
"""Where all groups sent equally many requests, one of them sends this many times as many as each other."""

Replaced = tuple[Workload, dict[str, Any]]
"""The changed workload, and the figures of the change."""


def _offers_replaced(workload: Workload, offers: list[Offer]) -> Workload:
    return msgspec.structs.replace(workload, offers=tuple(offers))


def _no_max_tokens(workload: Workload, chance: random.Random) -> Replaced:
    """No request states a limit: the scheduler loses what it knew of the answers' lengths."""
    return _offers_replaced(workload, [msgspec.structs.replace(o, max_tokens=None) for o in workload.offers]), {}


def _lying_limits(workload: Workload, chance: random.Random) -> Replaced:
    """Stated limits are far too large, and the larger the shorter the answer is."""
    lengths = sorted(offer.output_tokens for offer in workload.offers)
    order = sorted(workload.offers, key=lambda offer: (-offer.output_tokens, chance.random()))
    most = workload.made["options"]["max_stated_tokens"]
    lies = {
        offer.id: max(offer.output_tokens, min(most, offer.output_tokens + TIMES_TOO_LARGE * opposite))
        for offer, opposite in zip(order, lengths, strict=True)
    }
    offers = [msgspec.structs.replace(offer, max_tokens=lies[offer.id]) for offer in workload.offers]
    stated = sum(lies.values()) / sum(lengths)
    return _offers_replaced(workload, offers), {"stated_to_true": round(stated, 3)}


def _contradictory_hints(workload: Workload, chance: random.Random) -> Replaced:
    """Half of the requests are called urgent and have late deadlines, the other half unimportant with tight ones."""
    half = len(workload.offers) // 2
    urgent = set(chance.sample([offer.id for offer in workload.offers], half))
    offers = [
        msgspec.structs.replace(
            offer,
            priority=URGENT if offer.id in urgent else PATIENT,
            deadline=round(_tight(workload, offer) * (PATIENCE_FACTOR if offer.id in urgent else 1), 6),
        )
        for offer in workload.offers
    ]
    return _offers_replaced(workload, offers), {"urgent": half}


def _abstain(workload: Workload, chance: random.Random) -> Replaced:
    """Every request has a tight deadline, so that the server has to refuse or give up those that it cannot meet."""
    offers = [msgspec.structs.replace(o, deadline=round(_tight(workload, o), 6)) for o in workload.offers]
    return _offers_replaced(workload, offers), {}


def _tight(workload: Workload, offer: Offer) -> float:
    options = workload.made["options"]
    return float(options["deadline_seconds"] + options["deadline_seconds_per_token"] * offer.output_tokens)


def _other_user_mix(workload: Workload, chance: random.Random) -> Replaced:
    """The tenants (or languages) swap their shares: who sent least sends most. Arrival times stay."""
    tenants = Counter(offer.tenant for offer in workload.offers)
    by = "tenant" if len(tenants) > 1 else "language"
    shares = Counter(getattr(offer, by) for offer in workload.offers)
    if len(shares) < 2:
        raise UserError(
            f"workload {workload.name!r}: other-user-mix needs requests of several tenants or languages, and all are "
            f"of one; take a source that has several, such as servegen-large, flood or prompts"
        )
    names = sorted(shares, key=lambda name: (-shares[name], name))
    weights = [shares[name] for name in reversed(names)]
    if len(set(weights)) == 1:
        weights = [LOUDEST_SHARE, *[1] * (len(names) - 1)]
        chance.shuffle(names)
    senders = _divided(names, weights, len(workload.offers))
    chance.shuffle(senders)
    pools = {name: _Pool([o for o in workload.offers if getattr(o, by) == name], chance) for name in names}
    drawn = [pools[sender].next() for sender in senders]
    offers = [
        msgspec.structs.replace(
            sent,
            id=offer.id,
            at=offer.at,
            pair="",  # a task need not be there in both languages any more
            prefix_of="",  # nor the request that another one begins like
            prefix_tokens=sent.prefix_tokens if sent.prefix_group else 0,
        )
        for sent, offer in zip(drawn, workload.offers, strict=True)
    ]
    return _offers_replaced(workload, offers), {"by": by, "before": dict(shares), "after": dict(Counter(senders))}


def _divided(names: list[str], weights: list[int], total: int) -> list[str]:
    """``total`` names in shares as near to the weights as whole numbers are, the largest remainders first."""
    exact = [total * weight / sum(weights) for weight in weights]
    whole = [int(share) for share in exact]
    by_remainder = sorted(range(len(names)), key=lambda index: whole[index] - exact[index])
    for index in by_remainder[: total - sum(whole)]:
        whole[index] += 1
    return [name for name, many in zip(names, whole, strict=True) for _ in range(many)]


class _Pool:
    """The requests of one group in random order, over and over."""

    def __init__(self, offers: list[Offer], chance: random.Random) -> None:
        self._offers, self._chance, self._left = offers, chance, list[Offer]()

    def next(self) -> Offer:
        if not self._left:
            self._left = self._chance.sample(self._offers, len(self._offers))
        return self._left.pop()


def _double_load(workload: Workload, chance: random.Random) -> Replaced:
    """The same requests come in half the time."""
    return _faster(workload, 2.0)


def _half_load(workload: Workload, chance: random.Random) -> Replaced:
    """The same requests come in twice the time."""
    return _faster(workload, 0.5)


def _faster(workload: Workload, times: float) -> Replaced:
    offers = [msgspec.structs.replace(offer, at=round(offer.at / times, 6)) for offer in workload.offers]
    seconds = workload.seconds / times
    return msgspec.structs.replace(workload, offers=tuple(offers), seconds=seconds), {"seconds": seconds}


_CHANGES: dict[str, Callable[[Workload, random.Random], Replaced]] = {
    "no-max-tokens": _no_max_tokens,
    "lying-limits": _lying_limits,
    "contradictory-hints": _contradictory_hints,
    "other-user-mix": _other_user_mix,
    "double-load": _double_load,
    "half-load": _half_load,
    "abstain": _abstain,
}
CHANGES: dict[str, str] = {name: (function.__doc__ or "") for name, function in _CHANGES.items()}
"""What each change does, in the words that the report prints."""


def changed(workload: Workload, name: str) -> Workload:
    """The workload after one change of premise. Raises :class:`UserError` where the change cannot be made."""
    if name not in _CHANGES:
        raise UserError(f"change is {name!r}; there are {', '.join(_CHANGES)}")
    made = workload.made
    chance = random.Random(f"{name}/{made['source']}/{made['split']}/{made['seed']}/{made['block']}")
    after, figures = _CHANGES[name](workload, chance)
    changes = [*made["changes"], {"name": name, "what": CHANGES[name], **figures}]
    return msgspec.structs.replace(after, made={**made, "changes": changes})
