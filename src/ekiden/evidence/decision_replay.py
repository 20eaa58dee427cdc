"""A stored run driven through the production engine core again, with no model: the recorded outcomes stand in for it.

The core gets the recorded inbox, the recorded readings of the clock and, for each step, what the model's tokens ended.
Everything else it must decide again, and its decisions are compared with the stored ones turn by turn.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from ekiden.config import CacheConfig, Config, LimitsConfig, SchedulerConfig, controls_of
from ekiden.engine.engine_core import EngineCore
from ekiden.errors import UserError
from ekiden.evidence.decision_difference import Difference, difference
from ekiden.evidence.reader import inputs_of, request_detail_of
from ekiden.evidence.recorded_requests import PromptMaker, request_of
from ekiden.evidence.recorded_world import RecordedWorld
from ekiden.ledger.blobs import RequestDetail
from ekiden.ledger.recorder import Recorder
from ekiden.ledger.records import PAUSE_REASONS, RequestRow, Rows, RunHeader
from ekiden.state.controls import ControlChange, SetBy, TenantLimits
from ekiden.state.request import Refusal, RefusalReason, RefusedCall, Request
from ekiden.state.runner import RunnerInfo

_GRAMMAR_PREFIX = "the grammar cannot be used: "
_LIMITS_OF_OLD = {"abstain": False}
"""What an engine did that recorded no such setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """``turns`` were driven, over ``seconds`` of recorded time; ``difference`` is the first one, None for none."""

    turns: int
    tokens: int
    seconds: float
    difference: Difference | None


class Replay:
    """The engine core of a recorded run, given again what came from outside it."""

    def __init__(self, header: RunHeader) -> None:
        self._world = RecordedWorld(header, runner_info(header))
        self._decided: list[Rows] = []
        """What the core decided in the turn just driven."""
        self._prompts = PromptMaker(vocab_size=header.vocab_size, block_size=header.block_size)
        self._ids: dict[int, str] = {}
        config = config_of(header)
        self._old_format = header.format == 2
        self.core = EngineCore(
            runner=self._world,
            controls=controls_of(config),
            cache=config.cache,
            clock=self._world.clock,
            eos_token_ids=frozenset(header.eos_token_ids),
            make_stop_text=self._world.make_stop_text,
            make_rules=self._world.make_rules if header.has_grammars else None,
            seed=header.seed,
            max_model_len=header.max_model_len,
            recorder=Recorder(
                self._decided.append,
                clock_base=header.clock_base,
                block_size=header.block_size,
                prefix_caching=config.cache.enable_prefix_caching,
            ),
            drafter=self._world,
            joins_at_start=joins_at_start(header),
        )
        self._world.population = self.core.population

    def turn(self, recorded: Rows) -> Rows:
        """Drive one turn with the recorded inputs; returns what the core decided."""
        inputs, core = inputs_of(recorded.turn), self.core
        self._world.begin(recorded, inputs)
        if self._old_format and inputs.draining != core.controls.now.draining:
            drain = ControlChange(values={"draining": inputs.draining}, set_by=SetBy.PERSON, who="operator")
            core.set_controls(drain)
        changes = deque(inputs.controls)
        for place, request in enumerate(recorded.requests):
            while changes and changes[0][0] == place:
                core.set_controls(changes.popleft()[1])
            detail = request_detail_of(request)
            self._ids[request.request] = request.request_id
            if request.refusal is not None and detail.by_door:
                core.note_refusal(self._refused(request, detail))
            else:
                core.add_request(self._request(request, detail))
        for _, change in changes:
            core.set_controls(change)
        for number in inputs.aborts:
            core.abort(self._ids[number])
        for number, bit, paused, by in inputs.pauses:
            (core.pause if paused else core.resume)(self._ids[number], PAUSE_REASONS[bit], by)
        core.step()  # not through `drive`: the recorded turns are iterated, and each gives its rows back
        for end in recorded.ends:
            request_id = self._ids.pop(end.request)
            if self._world.number_of.get(request_id) == end.request:
                del self._world.number_of[request_id]
        return self._decided.pop()

    def _refused(self, row: RequestRow, detail: RequestDetail) -> RefusedCall:
        """What the HTTP layer refused is no decision of the engine's: it is noted again, and not submitted."""
        return RefusedCall(
            request=request_of(row, detail, ()),
            refusal=Refusal(
                reason=RefusalReason(row.refusal or ""),
                message=detail.message or "",
                param=detail.param,
                retry_after=detail.retry_after,
                by_door=True,
            ),
        )

    def _request(self, row: RequestRow, detail: RequestDetail) -> Request:
        world = self._world
        if row.refusal != RefusalReason.DUPLICATE_ID:
            world.number_of[row.request_id] = row.request
        if row.refusal == RefusalReason.INTERNAL_ERROR:
            world.failed_at_intake.add(row.request)
        if row.refusal == RefusalReason.INVALID and detail.param == "grammar":
            world.refused_grammars[row.request] = (detail.message or "").removeprefix(_GRAMMAR_PREFIX)
        return request_of(row, detail, self._prompts.prompt(row, detail))


def replay(header: RunHeader, turns: Iterable[Rows]) -> ReplayResult:
    """Drive a whole run, from its first turn, until it ends or its decisions differ from the recorded ones."""
    engine = Replay(header)
    count = tokens = first = last = 0
    found: Difference | None = None
    for recorded in turns:
        row = recorded.turn
        if row.turn != count + 1:
            raise ReplayError(
                f"turn {count + 1} is not in the ledger (the next stored one is {row.turn}); a replay needs every turn "
                "from the run's start"
            )
        replayed = engine.turn(recorded)
        count, tokens, last = count + 1, tokens + row.tokens, row.end
        first = row.start if count == 1 else first
        found = difference(recorded, replayed)
        if found is not None:
            break
    return ReplayResult(turns=count, tokens=tokens, seconds=(last - first) / 1e6, difference=found)


class ReplayError(UserError, ValueError):
    """A stored run that cannot be replayed; the message says why."""


def runner_info(header: RunHeader) -> RunnerInfo:
    return msgspec.convert(header, RunnerInfo, from_attributes=True)


def joins_at_start(header: RunHeader) -> bool:
    """Whether newcomers joined a running step: engines did that from the fourth format on."""
    return header.format >= 4


def config_of(header: RunHeader) -> Config:
    """The configuration that a run started with, as far as it decides anything."""
    tenants = {name: msgspec.convert(limits, TenantLimits) for name, limits in header.tenants.items()}
    return Config(
        scheduler=SchedulerConfig(**header.scheduler),
        cache=CacheConfig(**header.cache),
        limits=LimitsConfig(**(_LIMITS_OF_OLD | header.limits)),
        tenants=tenants,
    )
