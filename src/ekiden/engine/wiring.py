"""The stages of one engine, wired together over what they share."""

from collections.abc import Callable
from dataclasses import dataclass

from ekiden.config import ConfigError, check_controls
from ekiden.engine.step_time import StepTimeModel
from ekiden.guardrails.abstention import Abstention
from ekiden.guardrails.signals import Signals
from ekiden.kv_cache.kv_cache_manager import KVCacheManager
from ekiden.policies.padding import PaddingRows
from ekiden.policies.speculation import Speculation
from ekiden.stages.advance import Advance
from ekiden.stages.formation import Formation
from ekiden.stages.intake import Intake, RulesFactory, StopTextFactory
from ekiden.stages.refill import Refill
from ekiden.stages.retirement import Retirement
from ekiden.state.controls import Controls, ControlsInForce, InvalidControls
from ekiden.state.drafting import Drafter
from ekiden.state.population import Population
from ekiden.state.runner import ModelRunner, RunnerInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What several stages read, and some of them change."""

    population: Population
    kv: KVCacheManager
    controls: ControlsInForce
    step_time: StepTimeModel
    padding: PaddingRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    abstention: Abstention
    intake: Intake
    formation: Formation
    advance: Advance
    retirement: Retirement
    refill: Refill


def make_stages(
    shared: Shared,
    runner: ModelRunner,
    *,
    clock: Callable[[], float],
    eos_token_ids: frozenset[int],
    make_stop_text: StopTextFactory,
    make_rules: RulesFactory | None,
    seed: int,
    max_model_len: int | None,
    drafter: Drafter | None,
) -> Stages:
    """The arguments are those of :class:`~ekiden.engine.engine_core.EngineCore`."""
    info, signals = runner.info, Signals()
    population, kv, controls, padding = shared.population, shared.kv, shared.controls, shared.padding
    speculation = _speculation(shared, info, drafter)
    abstention = Abstention(
        controls=controls,
        population=population,
        kv=kv,
        signals=signals,
        step_time=shared.step_time,
        tokens_per_row=lambda: 1.0 if speculation is None else speculation.tokens_per_row,
    )
    intake = Intake(
        population=population,
        kv=kv,
        controls=controls,
        vocab_size=info.vocab_size,
        max_model_len=min(max_model_len or info.max_model_len, info.max_model_len),
        signals=signals,
        abstention=abstention,
        eos_token_ids=eos_token_ids,
        make_stop_text=make_stop_text,
        make_rules=make_rules,
        gives_states=info.hidden_size is not None,
        seed=seed,
    )
    formation = Formation(
        population=population,
        kv=kv,
        controls=controls,
        padding=padding,
        step_time=shared.step_time,
        chunks=info.chunks,
        speculation=speculation,
    )
    retirement = Retirement(
        population=population,
        kv=kv,
        eos_token_ids=eos_token_ids,
        padding=padding,
        signals=signals,
        speculation=speculation,
    )
    return Stages(
        abstention=abstention,
        intake=intake,
        formation=formation,
        advance=Advance(runner=runner, clock=clock),
        retirement=retirement,
        refill=Refill(population=population, kv=kv, controls=controls, padding=padding, signals=signals),
    )


def _speculation(shared: Shared, info: RunnerInfo, drafter: Drafter | None) -> Speculation | None:
    """None where nothing guesses, or the runner takes no drafts."""
    if drafter is None or not info.max_drafts:
        return None
    return Speculation(
        drafter=drafter,
        controls=shared.controls,
        kv=shared.kv,
        step_time=shared.step_time,
        max_drafts=info.max_drafts,
        least_rows=info.chunks.least_rows,
        tokens_per_change=info.tokens_per_change,
    )


def check_for(info: RunnerInfo, controls: Controls) -> None:
    """Raise :class:`InvalidControls` for what the model was not prepared for."""
    try:
        check_controls(controls, info.block_size)
    except ConfigError as error:
        raise InvalidControls(str(error)) from None
    for name, most in (("max_num_batched_tokens", info.most_tokens), ("max_num_seqs", info.most_rows)):
        value = getattr(controls, name)
        if most is not None and value > most:
            raise InvalidControls(f"{name} is {value}; the model was loaded for at most {most}: restart for more")
