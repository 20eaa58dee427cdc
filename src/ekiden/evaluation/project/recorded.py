"""What a recorded run gives a projection: a profile of its machine, its requests as a load, and the model's error."""

import random

import msgspec

from ekiden.errors import UserError
from ekiden.evaluation.project.profile import PROFILE_VERSION, Accuracy, HardwareProfile, ReplicaModel, StepCosts
from ekiden.evaluation.workloads.offer import Kind, Offer, Workload
from ekiden.evaluation.workloads.synthetic import poisson_arrivals
from ekiden.evidence.reader import LedgerReader, request_detail_of
from ekiden.evidence.recorded_speed import recorded_speed
from ekiden.evidence.what_if import what_if
from ekiden.state.request import FinishReason

_WHOLE = (FinishReason.STOP.value, FinishReason.LENGTH.value)
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


def recorded_workload(reader: LedgerReader, *, rate: float, seconds: float, seed: int) -> Workload:
    """Requests drawn from those that ended by themselves in a run (lengths, limits, tenants), at a Poisson rate.

    Raises :class:`UserError` for a run without any.
    """
    ends = {end.request: end.output_tokens for end in reader.all_ends() if end.reason in _WHOLE}
    known = []
    for row in reader.all_requests():
        detail = request_detail_of(row)
        if ends.get(row.request) and not detail.by_door and detail.reading is None:
            stated = detail.sampling.get("max_tokens")
            known.append((row.prompt_tokens, ends[row.request], stated, row.tenant, row.priority))
    if not known:
        raise UserError(f"run {reader.header.run_id} has no request that ended by itself; name a --source of requests")
    source = random.Random(seed)
    due = [at for at in poisson_arrivals(int(2 * rate * seconds) + 20, rate, seed=seed) if at < seconds]
    offers = []
    for number, at in enumerate(due):
        prompt, output, stated, tenant, priority = source.choice(known)
        offers.append(
            Offer(
                id=f"r{number}",
                at=at,
                output_tokens=output,
                max_tokens=stated,
                prompt_tokens=prompt,
                tenant=tenant,
                priority=priority,
            )
        )
    made = {"source": f"run {reader.header.run_id}", "rate": rate, "seed": seed, "drawn_from": len(known)}
    return Workload(name="recorded", kind=Kind.NORMAL, seconds=seconds, offers=tuple(offers), made=made, sources={})
