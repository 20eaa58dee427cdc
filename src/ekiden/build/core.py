"""From loaded parts and a configuration to an engine core."""

import time
from functools import partial

from ekiden.backends.fake import FakeRunner
from ekiden.build.drafter import make_drafter
from ekiden.config import Config, controls_of
from ekiden.engine.engine_core import Clock, EngineCore
from ekiden.engine.parts import EngineParts
from ekiden.models.text import IncrementalText
from ekiden.models.tokenizer import Tokenizer
from ekiden.policies.lookup import Lookup
from ekiden.state.request import Request
from ekiden.state.sequence import StopText
from ekiden.state.turn import TurnRecorder


def build_core(
    parts: EngineParts, config: Config, *, clock: Clock = time.monotonic, recorder: TurnRecorder | None = None
) -> EngineCore:
    """With a ledger's recorder the clock must read whole microseconds (:mod:`ekiden.build.recording`)."""
    grammars = parts.grammars
    return EngineCore(
        runner=parts.runner,
        controls=controls_of(config),
        cache=config.cache,
        clock=clock,
        eos_token_ids=parts.eos_token_ids,
        make_stop_text=partial(_stop_text, parts.tokenizer),
        make_rules=None if grammars is None else lambda grammar: grammars.compile(grammar),
        seed=config.engine.seed,
        max_model_len=parts.card.max_model_len,
        recorder=recorder,
        drafter=make_drafter(parts, config),
    )


def fake_core(config: Config, recorder: TurnRecorder) -> EngineCore:
    """An engine core over the model without weights, for the bench of the scheduler."""
    return EngineCore(
        runner=FakeRunner(
            num_blocks=config.scheduler.max_num_seqs * 64,
            block_size=config.cache.block_size,
            max_drafts=config.scheduler.num_speculative_tokens,
        ),
        controls=controls_of(config),
        cache=config.cache,
        clock=time.monotonic,
        recorder=recorder,
        drafter=Lookup() if config.engine.speculation != "none" else None,
    )


def _stop_text(tokenizer: Tokenizer | None, request: Request) -> StopText | None:
    """Finds stop strings with the same incremental decoding that makes the text that clients see."""
    if tokenizer is None:
        return None
    sampling = request.sampling
    text = IncrementalText(
        tokenizer,
        sampling.stop,
        sampling.include_stop_str_in_output,
        min_tokens=sampling.min_tokens,
        thinking=sampling.reasoning_marks,
    )
    return lambda token: text.feed(token).stopped
