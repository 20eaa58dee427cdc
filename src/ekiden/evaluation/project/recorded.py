"""What a recorded run gives a projection: a profile of its machine, its requests as a load, and the model's error."""

import random
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from ekiden.errors import UserError
from ekiden.evaluation.project.profile import PROFILE_VERSION, Accuracy, HardwareProfile, ReplicaModel, StepCosts
from ekiden.evaluation.workloads.offer import Kind, Offer, Workload
from ekiden.evaluation.workloads.synthetic import poisson_arrivals
from ekiden.evidence.reader import LedgerReader, request_detail_of
from ekiden.evidence.recorded_drafts import AnswerDrafts, recorded_drafts
from ekiden.evidence.recorded_speed import recorded_speed
from ekiden.evidence.what_if import WHOLE, what_if
from ekiden.ledger.records import RequestRow

_FEWEST_STEPS = 20
_DETAILS = ("device", "cpu", "instruction_set", "threads", "weights", "kv_dtype")


def profile_of(reader: LedgerReader, *, name: str = "", checked_on: LedgerReader | None = None) -> HardwareProfile:
    """The profile of the machine that made a run, with its error measured on ``checked_on``, else on the run itself.

    Raises :class:`UserError` for a run with too few steps.
    """
    header, speed = reader.header, recorded_speed(reader.turns(*reader.bounds()))
    if speed.steps < _FEWEST_STEPS:
        raise UserError(f"run {header.run_id} has {speed.steps} steps; a step-time model needs {_FEWEST_STEPS} or more")
    machine = {key: str(value) for key, value in header.lineage.machine.items() if value is not None}
    machine |= {key: header.details[key] for key in _DETAILS if key in header.details}
    profile = HardwareProfile(
        version=PROFILE_VERSION,
        name=name or f"run {header.run_id}",
        measured=True,
        step_cost=StepCosts(**{field: float(f"{value:.6g}") for field, value in speed.cost._asdict().items()}),
        gap=float(f"{speed.gap:.6g}"),
        model=ReplicaModel(
            num_blocks=header.num_blocks,
            block_size=header.block_size,
            num_swap_blocks=header.num_swap_blocks,
            bytes_per_block=header.bytes_per_block,
            max_model_len=header.max_model_len,
            vocab_size=header.vocab_size,
            chunk_border=header.chunk_border,
            least_chunk=header.least_chunk,
            least_rows=header.least_rows,
            max_drafts=header.max_drafts,
            tokens_per_change=header.tokens_per_change,
        ),
        scheduler={key: value for key, value in header.scheduler.items() if value is not None},
        cache={key: value for key, value in header.cache.items() if value is not None and key != "block_size"},
        limits={key: value for key, value in header.limits.items() if value is not None and key != "tenants_file"},
        accuracy=Accuracy(
            steps=speed.steps, median_step_error=round(speed.median_error, 4), spread=round(speed.spread, 4)
        ),
        made={"model": header.model_id, "run": header.run_id, "ekiden": header.version, **machine},
    )
    return checked(profile, checked_on or reader)


def checked(profile: HardwareProfile, reader: LedgerReader) -> HardwareProfile:
    """The profile with its error measured anew: the run is simulated at the profile's speed under its own policy."""
    told = what_if(reader, {}, speed=profile.speed)
    if not told.recorded.finished:
        raise UserError(f"run {reader.header.run_id} has no request that ended by itself; check on another run")
    accuracy = msgspec.structs.replace(
        profile.accuracy, figures_error=round(told.error, 4), checked_on=reader.header.run_id
    )
    return msgspec.structs.replace(profile, accuracy=accuracy)


class RecordedLoad(NamedTuple):
    """A workload, and what could be guessed ahead of its answers, by the offers' ids."""

    workload: Workload
    drafts: dict[str, AnswerDrafts]


class _Known(NamedTuple):
    """A request that ended by itself, with the length of its answer."""

    row: RequestRow
    output_tokens: int
    max_tokens: int | None
    """As it was stated."""
    drafts: AnswerDrafts | None


def recorded_loads(reader: LedgerReader, *, rate: float, seconds: float, seeds: Iterable[int]) -> list[RecordedLoad]:
    """For each seed, requests drawn from those that ended by themselves in a run (lengths, limits, tenants, drafts), at
    a Poisson rate.

    Raises :class:`UserError` for a run without any.
    """
    rows = reader.all_requests()
    lengths = {end.request: end.output_tokens for end in reader.all_ends() if end.reason in WHOLE}
    drafts = recorded_drafts(reader, rows, reader.bounds()[1])
    known = []
    for row in rows:
        detail, length = request_detail_of(row), lengths.get(row.request)
        if length and not detail.by_door and detail.reading is None:
            known.append(_Known(row, length, detail.sampling.get("max_tokens"), drafts.get(row.request)))
    if not known:
        raise UserError(f"run {reader.header.run_id} has no request that ended by itself; name a --source of requests")
    made = {"source": f"run {reader.header.run_id}", "rate": rate, "drawn_from": len(known)}
    return [_drawn(known, rate, seconds, seed, {**made, "seed": seed}) for seed in seeds]


def _drawn(known: list[_Known], rate: float, seconds: float, seed: int, made: dict[str, Any]) -> RecordedLoad:
    source = random.Random(seed)
    due = [at for at in poisson_arrivals(int(2 * rate * seconds) + 20, rate, seed=seed) if at < seconds]
    offers, drafts = [], {}
    for number, at in enumerate(due):
        one = source.choice(known)
        offer = Offer(
            id=f"r{number}",
            at=at,
            output_tokens=one.output_tokens,
            max_tokens=one.max_tokens,
            prompt_tokens=one.row.prompt_tokens,
            tenant=one.row.tenant,
            priority=one.row.priority,
        )
        offers.append(offer)
        if one.drafts is not None:
            drafts[offer.id] = one.drafts
    workload = Workload(name="recorded", kind=Kind.NORMAL, seconds=seconds, offers=tuple(offers), made=made, sources={})
    return RecordedLoad(workload, drafts)
