"""What a rung of the ladder does: the values of the controls that it sets, as a function of those in force.

Most actions change controls, and :func:`change_for` says how. The others (:data:`OUTSIDE`) are for whoever runs the
guard: to page a person, to wait for one, to restart the engine, to stop the server. Each has a way down: a change of
controls ends with its rung, or when nobody renews it.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from ekiden.guardrails.readings import Objectives, Reading
from ekiden.state.controls import Controls, ControlValue

Values = dict[str, ControlValue]


class Surroundings(NamedTuple):
    """What an action may need beside the controls. ``known_good``: the controls to go back to, the configured ones for
    example; ``block_size`` is the model's."""

    objectives: Objectives = Objectives()
    known_good: Controls | None = None
    block_size: int = 32


_PLAIN: Final = Surroundings()


class Action(NamedTuple):
    """``make`` is None for an action outside the controls. ``needs``: what the reading must give, ``subject`` or a
    number of its signal."""

    words: str
    way_down: str
    make: Callable[[Controls, Reading, Surroundings], Values | None] | None = None
    needs: str | None = None


def change_for(
    action: str, controls: Controls, evidence: Reading, surroundings: Surroundings = _PLAIN
) -> Values | None:
    """The values that an action sets. None when it sets none: it is outside the controls, lacks what it needs, or what
    it would set is in force already. Raises KeyError for a name that is no action."""
    make = ACTIONS[action].make
    values = None if make is None else make(controls, evidence, surroundings)
    changed = {name: value for name, value in (values or {}).items() if getattr(controls, name) != value}
    return changed or None


def _tighten_prefill(controls: Controls, evidence: Reading, around: Surroundings) -> Values:
    """Half as many prompts and half the prompt tokens in a step, and no step over the objective for the pace."""
    least = controls.max_num_seqs + 2 * around.block_size
    room = max(2 * around.block_size, (controls.max_num_batched_tokens - controls.max_num_seqs) // 2)
    target = min(controls.target_itl_ms or float("inf"), around.objectives.tpot_seconds * 1000)
    return {
        "prefill_first": False,
        "max_concurrent_prefills": max(1, controls.max_concurrent_prefills // 2),
        "max_num_batched_tokens": min(controls.max_num_batched_tokens, max(least, controls.max_num_seqs + room)),
        "target_itl_ms": target,
    }


def _shrink_batch(controls: Controls, evidence: Reading, around: Surroundings) -> Values:
    """Half as many sequences at once; those over it end first."""
    return {"max_num_seqs": max(1, controls.max_num_seqs // 2)}


def _shed_newest(controls: Controls, evidence: Reading, around: Surroundings) -> Values:
    """A line no longer than what joins in half of the objective for the first token; newcomers beyond it get 503."""
    joined = evidence.numbers.get("joined_per_second", 0.0)
    room = int(joined * around.objectives.ttft_seconds / 2) if joined else controls.max_num_seqs
    return {"max_num_queued_reqs": min(controls.max_num_queued_reqs, max(1, room))}


def _shed_tenant(controls: Controls, evidence: Reading, around: Surroundings) -> Values | None:
    """Holds the tenant to an equal share of the tokens that are served, and to a short line; beyond it gets 429."""
    if evidence.subject is None:
        return None
    limits, fair = controls.limits_of(evidence.subject), evidence.numbers.get("fair_tokens_per_second", 0.0)
    rate = max(1.0, min(fair or float("inf"), limits.tokens_per_second or float("inf")))
    if rate == float("inf"):
        rate = 1.0
    queued = max(1.0, min(limits.max_num_queued_reqs or float("inf"), controls.max_num_seqs / 2))
    held = msgspec.structs.replace(limits, tokens_per_second=rate, burst_tokens=rate, max_num_queued_reqs=queued)
    return {"tenants": {**controls.tenants, evidence.subject: held}}


def _order_fair(controls: Controls, evidence: Reading, around: Surroundings) -> Values:
    return {"scheduling_policy": "fair"}


def _fall_back(controls: Controls, evidence: Reading, around: Surroundings) -> Values:
    """One policy simpler: ``static``, and from there ``sequential``."""
    simplest = controls.batching in ("static", "static-padded", "sequential")
    return {"batching": "sequential" if simplest else "static"}


def _go_back(controls: Controls, evidence: Reading, around: Surroundings) -> Values | None:
    """All rules as they were known to be good; what the guard and a release say of themselves stays."""
    good = around.known_good
    if good is None:
        return None
    apart = ("epoch", "guard", "release", "draining")
    return {name: value for name, value in msgspec.structs.asdict(good).items() if name not in apart}


def _drain(controls: Controls, evidence: Reading, around: Surroundings) -> Values:
    return {"draining": True}


_ENDS: Final = "the change ends with the rung, or when nobody renews it"
ACTIONS: Final[dict[str, Action]] = {
    "tighten_prefill": Action("prompts get a smaller share of each step", _ENDS, _tighten_prefill),
    "shrink_batch": Action("half as many sequences run at once", _ENDS, _shrink_batch),
    "shed_newest": Action(
        "newcomers are refused when the line is long (503)", _ENDS, _shed_newest, "joined_per_second"
    ),
    "shed_tenant": Action("the tenant is held to an equal share (429)", _ENDS, _shed_tenant, "subject"),
    "order_fair": Action("waiting requests join in the order `fair`", _ENDS, _order_fair),
    "fall_back": Action("a simpler batching policy: static, then sequential", _ENDS, _fall_back),
    "go_back": Action("the rules last known to be good are in force again", "a person acknowledges", _go_back),
    "page": Action("a person is paged", "nothing is in force"),
    "require_acknowledgement": Action("nothing is taken back until a person acknowledges", "a person acknowledges"),
    "restart": Action("the engine is restarted and goes on with its requests", "nothing is in force"),
    "drain": Action("newcomers are refused, what runs goes on", _ENDS, _drain),
    "stop": Action("the server stops", "a person starts it again"),
}
OUTSIDE: Final = frozenset(name for name, action in ACTIONS.items() if action.make is None)
"""Actions that set no control."""
