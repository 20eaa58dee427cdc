"""What a look at a run reads: its newest turns, the requests in the engine, and those that ended in the window.

Rules: all of it is found by index, so that it costs the same on a run of millions of turns.
"""

from ekiden.evidence.following import Following
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.timeline import merged
from ekiden.ledger.records import TurnRow


class Seen:
    """``last``: the newest turn. ``since`` and ``now`` bound the window, in microseconds of the run; ``turns`` ended in
    it, in order. ``live``: the requests in the engine; ``ended``: those that ended in the window, also refused ones;
    ``gone``: those of them that intake had taken. ``output``: how many tokens each live request has, by its number."""

    def __init__(self, reader: LedgerReader, now: float | None, window_seconds: float, known: Following) -> None:
        last = reader.turn(reader.bounds()[1]) or _before_the_first(reader.header.num_blocks)
        self.reader, self.last, self.window_seconds = reader, last, window_seconds
        asked = last.end if now is None else round((now - reader.header.started) * 1e6)
        self.now = max(last.end, asked)
        self.since = max(0, self.now - round(window_seconds * 1e6))
        self.turns = reader.newest_turns(self.since)
        self.first_turn = self.turns[0].turn if self.turns else last.turn + 1
        self.ended = reader.ended_since(self.first_turn)
        live = reader.live_requests()
        gone = [request for request, _ in self.ended if request.refusal is None]
        self.known, there = known, known.update(reader, (*live, *gone), last.turn)
        self.live, self.gone = ([there[each.request] for each in part] for part in (live, gone))
        self.order = self.setting("scheduling_policy")
        self.output = self._output_tokens()

    def setting(self, name: str) -> str:
        """The value of a control after the newest turn."""
        return self.reader.history(name).at(self.last.turn)

    def ago(self, at: int) -> float:
        """Seconds from a time of the run to now."""
        return max(0, self.now - at) / 1e6

    def _output_tokens(self) -> dict[int, int]:
        last = self.last.turn
        silent: list[int] = []
        for first, end in merged(stretch for one in self.live for stretch in one.stretches_until(last)):
            silent += self.reader.silent_turns(first, end)
        return {one.number: one.output_tokens(1, last, silent) + (one.request.carried or 0) for one in self.live}


def _before_the_first(num_blocks: int) -> TurnRow:
    """The state of an engine that has taken no turn."""
    numbers = dict.fromkeys(TurnRow._fields, 0) | {"free_blocks": num_blocks}
    return TurnRow(**{**numbers, "wait": None, "head": None, "inputs": b"", "decisions": b""})  # type: ignore[arg-type]
