"""What the stages did with the requests of a turn, as numbers and events.

Only changes are told, so it keeps what was so in the turn before: the rows of one token, who has a slot and is in no
step, who did not fit the KV pool, and whose dropped KV blocks are being computed again.
"""

from ekiden.ledger.blobs import Admitted, Drafted
from ekiden.ledger.numbering import Events, Numbering
from ekiden.ledger.records import LEFT_OUT_CODES, EventKind, Resumed
from ekiden.state.sequence import Sequence, Status
from ekiden.state.turn import FormationOutcome, RefillOutcome, Turn


class Scheduling:
    def __init__(self, numbering: Numbering, events: Events) -> None:
        self._number, self._live, self._add = numbering.of, numbering.live, events.add
        self._decodes: list[Sequence] = []
        self._left_out: dict[int, int] = {}
        self._passed_over: list[Sequence] = []
        self._recomputing: set[Sequence] = set()

    def forget(self, sequence: Sequence) -> None:
        """The request has ended, and has its number still."""
        self._recomputing.discard(sequence)
        self._left_out.pop(self._number[sequence], None)

    # --- stages 2 and 3

    def rows(self, formed: FormationOutcome) -> tuple[list[int] | None, list[tuple[int, int]]]:
        """The decode rows when they changed, and the prefill chunks, which stand after them."""
        number, rows = self._number, formed.plan.rows
        count = len(rows)
        while count and rows[count - 1].prefill:
            count -= 1
        decodes = formed.sequences[:count]
        changed = None
        if decodes != self._decodes:
            self._decodes = decodes
            changed = [number[sequence] for sequence in decodes]
        prefills: list[tuple[int, int]] = []
        for sequence, row in zip(formed.sequences[count:], rows[count:], strict=True):
            prefills.append((number[sequence], len(row.token_ids)))
            self._add(number[sequence], EventKind.PREFILL, len(row.token_ids))
        return changed, prefills

    def left_out(self, formed: FormationOutcome) -> list[tuple[int, int]]:
        """Who is in no step from this turn on, and why; code 0: it is in again."""
        now = {self._number[sequence]: LEFT_OUT_CODES[reason] for sequence, reason in formed.left_out}
        changes = [(number, code) for number, code in now.items() if self._left_out.get(number) != code]
        changes += [(number, 0) for number in self._left_out if number not in now]
        for number, code in changes:
            self._add(number, EventKind.LEFT_OUT, code)
        self._left_out = now
        return changes

    def victims(self, formed: FormationOutcome) -> list[tuple[int, int]]:
        """The preempted sequences, each with the runner-up; 0 when there was none."""
        number = self._number
        for sequence, kept in zip(formed.preempted, formed.kept_blocks, strict=True):
            self._add(number[sequence], EventKind.PREEMPTED, kept)
        pairs = zip(formed.preempted, formed.runners_up, strict=True)
        return [(number[victim], number[other] if other else 0) for victim, other in pairs]

    def guessed(self, turn: Turn) -> list[Drafted]:
        """Rows for which something was guessed, and how many tokens each of them gave."""
        formed = turn.formed
        if formed is None or not formed.guesses:
            return []
        given = {update.request_id: len(update.token_ids) for update in turn.updates}
        found = []
        for index, (count, match, allowed) in formed.guesses.items():
            sequence = formed.sequences[index]
            tokens = given.get(sequence.request_id, 0)
            found.append(Drafted(self._number[sequence], count, tokens, match, allowed))
            if tokens > 1:
                self._add(self._number[sequence], EventKind.TOKENS, tokens, late=1)
        return found

    def first_tokens(self, formed: FormationOutcome, end: float) -> None:
        """Note which sequences got their first token, and which have computed their dropped KV blocks again."""
        live = self._live
        for sequence, row in zip(formed.sequences, formed.plan.rows, strict=True):
            if row.prefill and sequence.first_token_time == end and live.get(sequence.request_id) is sequence:
                self._add(self._number[sequence], EventKind.FIRST_TOKEN, late=1)
        caught_up = [s for s in self._recomputing if s.status is Status.RUNNING and s.num_uncomputed_tokens == 1]
        for sequence in sorted(caught_up, key=self._number.__getitem__):
            self._recomputing.discard(sequence)
            self._add(self._number[sequence], EventKind.CAUGHT_UP, late=1)

    # --- stage 5

    def admitted(self, outcome: RefillOutcome | None, *, late: int) -> list[Admitted]:
        if outcome is None:
            return []
        admitted = []
        for sequence, (slot, blocks, standing) in zip(outcome.admitted, outcome.places, strict=True):
            number = self._number[sequence]
            admitted.append(Admitted(number, slot, blocks, sequence.num_cached_tokens, standing))
            self._add(number, EventKind.ADMITTED, sequence.num_cached_tokens, late=late)
            carried = sequence.request.carried  # by now the turn may have brought a token of its own
            if carried is not None and carried.token_ids:
                self._recomputing.add(sequence)
        return admitted

    def resumed(self, outcome: RefillOutcome | None, *, late: int) -> list[int]:
        if outcome is None:
            return []
        for sequence in outcome.resumed:
            # One that has ended in this turn has no slot any more.
            back = Resumed(sequence.slot or 0, whole=sequence.num_uncomputed_tokens <= 1)
            self._add(self._number[sequence], EventKind.RESUMED, back.value, late=late)
            if not back.whole and sequence.num_output_tokens:
                self._recomputing.add(sequence)
        return [self._number[sequence] for sequence in outcome.resumed]

    def passed_over(self, outcome: RefillOutcome | None) -> list[int] | None:
        """The requests that were looked at for admission and did not fit; None when they are those of before."""
        now = self._passed_over if outcome is None else outcome.passed_over
        if now == self._passed_over:
            return None
        gone = [(sequence, 0) for sequence in self._passed_over if sequence not in now and sequence in self._number]
        come = [(sequence, 1) for sequence in now if sequence not in self._passed_over]
        for sequence, blocked in gone + come:
            self._add(self._number[sequence], EventKind.BLOCKED, blocked, late=1)
        self._passed_over = now
        return [self._number[sequence] for sequence in now]
