"""The steps of an engine as tests look at them."""

from dataclasses import dataclass

from ekiden.state.plan import StepOutput
from ekiden.state.request import RequestUpdate
from ekiden.state.turn import FormationOutcome, Turn


@dataclass(frozen=True, slots=True)
class StepView:
    """A turn that computed a step. A sequence that ended in it has given its slot back; the plan's row names it."""

    formed: FormationOutcome
    output: StepOutput
    updates: list[RequestUpdate]


class StepWatcher:
    """A turn recorder that is shown the turns that computed a step."""

    def record(self, turn: Turn) -> None:
        if turn.formed is not None and turn.output is not None:
            self.on_step(StepView(turn.formed, turn.output, turn.ended_at_start + turn.updates))

    def on_step(self, view: StepView) -> None:
        raise NotImplementedError
