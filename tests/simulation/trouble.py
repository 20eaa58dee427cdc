"""Requests of a simulated world that bring trouble: the work for one of them fails, at a place and a time drawn for it.

Nobody else may notice. The trouble is of every kind that the engine contains: an exception out of the runner, which
does not say whose row it was; a row that the runner reports as failed; and the texts and grammars of a request.
"""

import random
from collections.abc import Sequence as Tokens
from enum import StrEnum

import msgspec

from ekiden.backends.fake import FakeRunner
from ekiden.state.plan import BatchPlan, Row, RowResult, StepOutput
from ekiden.state.population import Population
from ekiden.state.request import Request
from ekiden.state.runner import CopiesLost
from ekiden.state.sampling_params import Grammar, GrammarKind, SamplingParams
from ekiden.state.sequence import StopText, TokenRules

PLANTED = "planted"
PLANTED_LOSS = "planted loss of copies"


class Kind(StrEnum):
    RUNNER = "the runner raises while it computes its row"
    ROW = "the runner reports that its row failed"
    MASKS = "its grammar raises when it is asked which tokens may come"
    ADVANCE = "its grammar raises when it is given a token"
    STOP_TEXT = "its stop strings raise"
    INTAKE = "its grammar raises when it is made"


class PlantedPanic(BaseException):
    """As a panic of a library in Rust, no ``Exception``."""


class Troubles:
    """Which requests bring trouble, of which kind, and after how many of their tokens."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"trouble-{seed}")
        self.rate = self._rng.choice([0.0, 0.0, 0.0, 0.0, 0.2, 0.5])
        self._copies_rng = random.Random(f"copies-{seed}")
        self._loses_copies = self._copies_rng.random() < 0.15
        self.of: dict[str, tuple[Kind, int]] = {}
        self.met: set[str] = set()
        """Those whose trouble has come."""

    def maybe_plant(self, request: Request) -> Request:
        """The request, perhaps with trouble."""
        if self._rng.random() >= self.rate:
            return request
        kind, after = self._rng.choice(list(Kind)), self._rng.choice([0, 0, 1, 4])
        self.of[request.request_id] = kind, after
        changed: dict[str, object] = {}
        if kind in (Kind.MASKS, Kind.ADVANCE, Kind.INTAKE):
            changed["grammar"] = Grammar(kind=GrammarKind.REGEX, source=request.request_id)
        elif kind is Kind.STOP_TEXT:
            changed["stop"] = (request.request_id,)
        sampling: SamplingParams = msgspec.structs.replace(request.sampling, **changed)
        return msgspec.structs.replace(request, sampling=sampling)

    def meet(self, request_id: str, kind: Kind, tokens: int) -> bool:
        """Whether the request's trouble comes now."""
        planted, after = self.of.get(request_id, (None, 0))
        if planted is not kind or tokens < after:
            return False
        self.met.add(request_id)
        return True

    def fail(self, request_id: str, kind: Kind, tokens: int) -> None:
        if self.meet(request_id, kind, tokens):
            raise (PlantedPanic if self._rng.random() < 0.5 else ZeroDivisionError)(PLANTED)

    def loses_copies(self) -> bool:
        return self._loses_copies and self._copies_rng.random() < 0.5

    def make_rules(self, grammar: Grammar) -> TokenRules:
        self.fail(grammar.source, Kind.INTAKE, 0)
        return PlantedRules(self, grammar.source)

    def make_stop_text(self, request: Request) -> StopText:
        seen = [0]

        def stop_text(token: int) -> str | None:
            self.fail(request.request_id, Kind.STOP_TEXT, seen[0])
            seen[0] += 1
            return None

        return stop_text


class PlantedRules:
    """A grammar that allows everything until its trouble comes."""

    error: str | None = None

    def __init__(self, troubles: Troubles, request_id: str) -> None:
        self._troubles = troubles
        self._request_id = request_id
        self._tokens = 0

    def forced(self, limit: int) -> tuple[int, ...]:
        return ()

    def masks(self, drafts: Tokens[int] = ()) -> tuple[bytes, ...]:
        self._troubles.fail(self._request_id, Kind.MASKS, self._tokens)
        return (b"",) * (len(drafts) + 1)

    def advance(self, token: int) -> bool:
        self._troubles.fail(self._request_id, Kind.ADVANCE, self._tokens)
        self._tokens += 1
        return False


class TroubledRunner(FakeRunner):
    """The fake model, which fails where the plan has a row of a request that brings trouble, half-way through it.

    It now and then loses the blocks that it is to copy. It says when a step has a number of tokens that none had
    before, as a model does that makes kernels for them.
    """

    troubles: Troubles
    population: Population
    sizes: set[int]

    def execute(self, plan: BatchPlan) -> StepOutput:
        if (plan.swap_out or plan.swap_in) and self.troubles.loses_copies():
            raise CopiesLost(PLANTED_LOSS)
        output, new = super().execute(plan), plan.total_tokens not in self.sizes
        self.sizes.add(plan.total_tokens)
        return msgspec.structs.replace(output, new_sizes=int(new))

    def _result(self, row: Row) -> RowResult:
        if not self.troubles.of:
            return super()._result(row)
        owner = next((each for each in self.population.running if each.slot == row.slot), None)
        if owner is None:  # a padding row
            return super()._result(row)
        tokens = owner.num_output_tokens
        result = super()._result(row)
        self.troubles.fail(owner.request_id, Kind.RUNNER, tokens)
        if self.troubles.meet(owner.request_id, Kind.ROW, tokens):
            return RowResult(error=PLANTED)
        return result
