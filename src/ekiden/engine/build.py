"""From a model and a configuration to an engine core. Which backend the parts come from is the caller's choice."""

import time
from dataclasses import dataclass

from ekiden.config import Config
from ekiden.engine.engine_core import Clock, EngineCore, StepObserver
from ekiden.engine.interface import ModelCard
from ekiden.guardrails.limits import load_tenants
from ekiden.models.text import IncrementalText
from ekiden.models.tokenizer import Tokenizer
from ekiden.sampling.structured import GrammarCompiler
from ekiden.stages.intake import RulesFactory, StopTextFactory
from ekiden.state.request import Request
from ekiden.state.runner import ModelRunner
from ekiden.state.sampling_params import Grammar
from ekiden.state.sequence import StopText, TokenRules
from ekiden.state.turn import TurnRecorder


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """What a composition root hands over: a loaded model and all that belongs to it."""

    runner: ModelRunner
    card: ModelCard
    tokenizer: Tokenizer | None = None
    """None for a model without text (the fake one): requests then carry token ids and no stop strings."""
    grammars: GrammarCompiler | None = None
    """None for a model without text: requests with a grammar are then refused."""


def build_core(
    parts: EngineParts,
    config: Config,
    *,
    clock: Clock = time.monotonic,
    observer: StepObserver | None = None,
    recorder: TurnRecorder | None = None,
) -> EngineCore:
    """With a recorder the clock must read whole microseconds (:mod:`ekiden.engine.recording`)."""
    return EngineCore(
        runner=parts.runner,
        scheduler=config.scheduler,
        cache=config.cache,
        limits=config.limits,
        clock=clock,
        eos_token_ids=frozenset() if parts.tokenizer is None else parts.tokenizer.eos_token_ids,
        make_stop_text=_stop_text_factory(parts.tokenizer),
        make_rules=_rules_factory(parts.grammars),
        seed=config.engine.seed,
        max_model_len=parts.card.max_model_len,
        tenants=load_tenants(config.limits.tenants_file),
        observer=observer,
        recorder=recorder,
    )


def _stop_text_factory(tokenizer: Tokenizer | None) -> StopTextFactory:
    """How the engine finds stop strings: by the same incremental decoding that makes the text clients see."""

    def make(request: Request) -> StopText | None:
        if tokenizer is None:
            return None
        sampling = request.sampling
        text = IncrementalText(
            tokenizer, sampling.stop, sampling.include_stop_str_in_output, min_tokens=sampling.min_tokens
        )
        return StopText(lambda token: text.feed(token).stopped)

    return make


def _rules_factory(grammars: GrammarCompiler | None) -> RulesFactory | None:
    if grammars is None:
        return None

    def make(grammar: Grammar) -> TokenRules:
        return grammars.compile(grammar).start()

    return make
