"""A stored run driven through the production engine core again, with no model: the recorded outcomes stand in for it.

The core gets the recorded inbox, the recorded readings of the clock and, for each step, what the model's tokens ended.
Everything else it must decide again, and its decisions are compared with the stored ones turn by turn.
"""

import itertools
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from ekiden.config import CacheConfig, Config, LimitsConfig, SchedulerConfig, controls_of
from ekiden.engine.engine_core import EngineCore
from ekiden.errors import UserError
from ekiden.evidence.decision_difference import Difference, difference
from ekiden.evidence.reader import decisions_of, end_detail_of, inputs_of, request_detail_of
from ekiden.evidence.recorded_requests import PromptMaker, request_of
from ekiden.ledger.blobs import Drafted, RequestDetail, TurnInputs
from ekiden.ledger.details import FAILED_RULES, STOP_STRING
from ekiden.ledger.recorder import Recorder
from ekiden.ledger.records import PAUSE_REASONS, RequestRow, Rows, RunHeader
from ekiden.sampling.grammar_limits import GrammarError
from ekiden.state.controls import ControlChange, SetBy, TenantLimits
from ekiden.state.drafting import BY_GRAMMAR, NO_GUESS, Ask, Drafter, Guess
from ekiden.state.plan import NO_TOKENS, BatchPlan, RowResult, StepOutput, StepTiming
from ekiden.state.population import Population
from ekiden.state.request import Refusal, RefusalReason, RefusedCall, Request
from ekiden.state.runner import CopiesLost, RunnerInfo
from ekiden.state.sampling_params import Grammar
from ekiden.state.sequence import Sequence, Stage, StopText

_GRAMMAR_PREFIX = "the grammar cannot be used: "
_GOES_ON = "goes on"
_LIMITS_OF_OLD = {"abstain": False}
"""What an engine did that recorded no such setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """``turns`` were driven, over ``seconds`` of recorded time; ``difference`` is the first one, None for none."""

    turns: int
    tokens: int
    seconds: float
    difference: Difference | None


class _World(Drafter):
    """Plays back what came from outside the engine in the current turn: the clock, the model's outcomes, text rules."""

    def __init__(self, header: RunHeader) -> None:
        self.info = runner_info(header)
        self._base = header.clock_base
        self._eos = frozenset(header.eos_token_ids)
        self._readings: deque[int] = deque()
        self._last = 0
        self._inputs = TurnInputs()
        self._stops: dict[int, int | str | None] = {}
        self._faults: dict[int, int] = {}
        self._last_tokens: dict[int, int] = {}
        self.messages: dict[int, str | None] = {}
        """Why grammars failed in the turn, by request."""
        self.number_of: dict[str, int] = {}
        self.refused_grammars: dict[int, str] = {}
        self.failed_at_intake: set[int] = set()
        self.population: Population | None = None

    def begin(self, recorded: Rows, inputs: TurnInputs) -> None:
        """Get ready for a turn. Times are microseconds of the run."""
        self._inputs, self._stops, self._last_tokens = inputs, dict(inputs.stops), {}
        self._faults, self._new_sizes = dict(inputs.faults), recorded.turn.new_sizes
        failed = FAILED_RULES in self._stops.values()
        self.messages = {end.request: end_detail_of(end).message for end in recorded.ends} if failed else {}
        row = recorded.turn
        self._readings = deque([row.start])
        if decisions_of(row).budget > 0:  # it computed
            advance = row.start + inputs.advance_start
            advanced = [advance + inputs.advance] if inputs.failure is None else []
            self._readings.extend((advance, *advanced, row.end))

    def clock(self) -> float:
        """The next recorded reading, in seconds; the last one again when the core reads more often than it did."""
        if self._readings:
            self._last = self._readings.popleft()
        return (self._base + self._last) / 1e6

    def execute(self, plan: BatchPlan) -> StepOutput:
        """Give each row as many tokens as the recorded step gave it."""
        if self._inputs.failure is not None:
            raise CopiesLost(self._inputs.failure)
        assert self.population is not None
        by_slot = {sequence.slot: sequence for sequence in [*self.population.running, *self.population.padding]}
        given = {drafted.request: drafted.tokens for drafted in self._inputs.drafts}
        results = []
        for row in plan.rows:
            sequence = by_slot[row.slot]
            if not sequence.padding and self.fails_in(Stage.ADVANCE, self.number_of[sequence.request_id]):
                results.append(RowResult(error="as recorded"))
                continue
            if row.sampling is None:
                results.append(NO_TOKENS)
                continue
            # A row whose tokens could not be taken in has given none.
            count = 1 if sequence.padding else max(1, given.get(self.number_of[sequence.request_id], 1))
            results.append(RowResult(self._tokens(sequence, count)))
        timing = StepTiming(model=self._inputs.model / 1e6, sampling=self._inputs.sampling / 1e6)
        return StepOutput(
            rows=results,
            timing=timing,
            padding_rows=self._inputs.padding_rows,
            passes=self._inputs.passes,
            new_sizes=self._new_sizes,
            attempts=self._inputs.attempts,
        )

    @property
    def micros_per_draft(self) -> int:
        return self._inputs.micros_per_draft

    def drafted(self, number: int) -> Drafted | None:
        """What was guessed for a request in the turn."""
        return next((drafted for drafted in self._inputs.drafts if drafted.request == number), None)

    def guess(self, ask: Ask) -> Guess:
        """As many drafts as were guessed; what they are plays no part, since their outcome is recorded."""
        drafted = self.drafted(self.number_of[ask.request_id])
        return NO_GUESS if drafted is None else Guess((0,) * drafted.guessed, drafted.match)

    def _tokens(self, sequence: Sequence, count: int) -> tuple[int, ...]:
        """``count`` tokens. Where the recorded step ended the answer, the last one does, and no other is like it."""
        stops = sequence.stop_token_ids
        harmless, last = _harmless(stops)
        if not sequence.padding:
            number = self.number_of[sequence.request_id]
            stop = self._stops.get(number, STOP_STRING)
            if isinstance(stop, int):
                last = stop
            elif stop is None and (ends := stops & self._eos):
                last = min(ends)
            self._last_tokens[number] = last
        return (*(harmless,) * (count - 1), last)

    def check(self) -> None:
        """There is no model."""

    def close(self) -> None:
        """There is no model."""

    def make_stop_text(self, request: Request) -> StopText:
        number = self.number_of[request.request_id]
        if number in self.failed_at_intake:
            raise RuntimeError("as recorded")

        def stop_text(token: int) -> str | None:
            self.fail_in(Stage.RETIREMENT, number)
            return STOP_STRING if self.ended_by(number, token) == STOP_STRING else None

        return stop_text

    def make_rules(self, grammar: Grammar) -> "_Rules":
        number = int(grammar.source)
        if number in self.failed_at_intake:
            raise RuntimeError("as recorded")
        if number in self.refused_grammars:
            raise GrammarError(self.refused_grammars[number])
        return _Rules(self, number)

    def fails_in(self, stage: Stage, number: int) -> bool:
        """Whether the recorded work for a request failed at a stage of this turn."""
        return self._faults.get(number) == stage

    def fail_in(self, stage: Stage, number: int) -> None:
        """Fail as the recorded work for the request did."""
        if self.fails_in(stage, number):
            raise RuntimeError("as recorded")

    def ended_by(self, number: int, token: int) -> int | str | None:
        """What the recorded step ended the answer by with this token; :data:`_GOES_ON` when it did not."""
        if token != self._last_tokens.get(number):
            return _GOES_ON
        return self._stops.get(number, _GOES_ON)


@lru_cache
def _harmless(stops: frozenset[int]) -> tuple[int, int]:
    """Two tokens that stop nothing."""
    first, second = itertools.islice((token for token in itertools.count() if token not in stops), 2)
    return first, second


@dataclass(slots=True)
class _Rules:
    """Follows the recorded end of one request's grammar."""

    world: _World
    number: int
    error: str | None = None

    def forced(self, limit: int) -> tuple[int, ...]:
        drafted = self.world.drafted(self.number)
        return (0,) * drafted.guessed if drafted is not None and drafted.match == BY_GRAMMAR else ()

    def masks(self, drafts: Tokens[int] = ()) -> tuple[bytes, ...]:
        self.world.fail_in(Stage.FORMATION, self.number)
        drafted, count = self.world.drafted(self.number), len(drafts)
        if drafted is not None and drafted.allowed is not None:
            count = min(count, drafted.allowed)
        return (b"",) * (count + 1)

    def advance(self, token: int) -> bool:
        self.world.fail_in(Stage.RETIREMENT, self.number)
        ended_by = self.world.ended_by(self.number, token)
        self.error = self.world.messages.get(self.number) if ended_by == FAILED_RULES else None
        return ended_by in (None, FAILED_RULES)


class Replay:
    """The engine core of a recorded run, given again what came from outside it."""

    def __init__(self, header: RunHeader) -> None:
        self._world = _World(header)
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


def config_of(header: RunHeader) -> Config:
    """The configuration that a run started with, as far as it decides anything."""
    tenants = {name: msgspec.convert(limits, TenantLimits) for name, limits in header.tenants.items()}
    return Config(
        scheduler=SchedulerConfig(**header.scheduler),
        cache=CacheConfig(**header.cache),
        limits=LimitsConfig(**(_LIMITS_OF_OLD | header.limits)),
        tenants=tenants,
    )
