"""What a recorded run's engine had around it, played back turn by turn: clock, model, drafts and text rules.

No token is the recorded one, as a ledger may not keep them: where the recorded step ended an answer the last token of
its row does, and all others are such that end nothing.
"""

import itertools
from collections import deque
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from functools import lru_cache

from ekiden.evidence.reader import decisions_of, end_detail_of
from ekiden.ledger.blobs import Drafted, TurnInputs
from ekiden.ledger.details import FAILED_RULES, STOP_STRING
from ekiden.ledger.records import Rows, RunHeader
from ekiden.sampling.grammar_limits import GrammarError
from ekiden.state.drafting import BY_GRAMMAR, NO_GUESS, Ask, Drafter, Guess
from ekiden.state.plan import NO_TOKENS, BatchPlan, RowResult, StepOutput, StepTiming
from ekiden.state.population import Population
from ekiden.state.request import Request
from ekiden.state.runner import CopiesLost, RunnerInfo
from ekiden.state.sampling_params import Grammar
from ekiden.state.sequence import Sequence, Stage, StopText

_GOES_ON = "goes on"


class RecordedWorld(Drafter):
    """Plays back the current turn: a runner, a drafter, a clock and the text rules of requests in one.

    ``population`` is that of the engine core that is driven, once there is one.
    """

    def __init__(self, header: RunHeader, info: RunnerInfo) -> None:
        self.info = info
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

    world: RecordedWorld
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
