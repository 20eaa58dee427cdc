"""How late a load generator was, and when a run is void because of it.

Send lag is the generator's own lateness: the time of sending minus the intended arrival. Over HTTP both are seen by the
client, and the time to open a connection counts.

In process, one thread both offers requests and steps the engine. A request that is due while a step runs enters when
the step has ended; a server's inbox keeps it just as long, because an engine looks there between steps only. So that
wait is the engine's and counts in every latency, but not as lag. Lag is what comes on top: from the intended arrival,
or from the end of the step that ran then, to the turn in which the request entered. ``sent`` is the intended arrival
plus this lag: when an inbox that is always open would have had it.
"""

from collections.abc import Callable, Sequence

from ekiden.engine.driver import Sink
from ekiden.engine.engine_core import StepResult
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.workloads.offer import Workload
from ekiden.measure.percentiles import percentiles
from ekiden.state.turn import Turn

ALLOWED_SHARE = 0.01
"""Of the TTFT objective: the most that p99 of the send lag may be."""


def void_reason(lags: Sequence[float], objectives: Objectives) -> str | None:
    """Why a run with these send lags, in seconds, counts for nothing; None where they are small enough."""
    allowed = ALLOWED_SHARE * objectives.ttft
    p99 = percentiles(lags, (99,))[0] if lags else 0.0
    if p99 <= allowed:
        return None
    return (
        f"the load generator was late: p99 send lag {1000 * p99:.1f} ms over {len(lags)} requests, and at most "
        f"{1000 * allowed:.1f} ms is allowed ({ALLOWED_SHARE:.0%} of the TTFT objective of {objectives.ttft:g} s)"
    )


def longest_good(workload: Workload, objectives: Objectives) -> float:
    """The most seconds after its arrival in which an answer of the workload can end and still be good: with any more,
    its first token was late or its TPOT too high."""
    tokens = max((offer.output_tokens for offer in workload.offers), default=1)
    return objectives.ttft + objectives.tpot * (tokens - 1)


class EntryWatch:
    """Notes for each request when it was sent, as the module says. A turn recorder, and around a sink.

    ``now`` is the engine's clock.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._stepped = now()
        self.sent: dict[str, float] = {}
        self.intended: dict[str, float] = {}

    def record(self, turn: Turn) -> None:
        for arrival in turn.arrivals:
            request = arrival.request
            lag = max(0.0, turn.start - max(request.arrival_time, self._stepped))
            self.intended[request.request_id] = request.arrival_time
            self.sent[request.request_id] = request.arrival_time + lag

    def around(self, sink: Sink) -> Sink:
        """``sink``, and before it a note that a step has ended: what the sink takes is the generator's time."""

        def note(result: StepResult) -> None:
            self._stepped = self._now()
            sink(result)

        return note
