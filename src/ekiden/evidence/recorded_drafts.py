"""Which tokens of recorded answers could be guessed ahead, so that a simulation drafts as the recorded engine could.

The ledger needs no text for this. It has each guess of each step: how long the text before it agreed (its *match*), how
many tokens it had, how many of them were tried and how many were right. So for each token of an answer it is known with
which match it was guessed, and whether rightly: by the verdict on a draft, and for one that was not tried by the next
guess, since a guess by lookup that was right goes on, with a match that is longer by one. A step that asked for no
guess tells nothing; what is known of the same answer's other tokens stands in, in turn, by the number of the token.

With that a :class:`RecordedDrafter` guesses at any token, whether or not the recorded engine had a step there. How many
drafts are taken stays the production rule's decision. docs/decisions/0033 has the figures.
"""

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ekiden.engine.simulated import TOKEN
from ekiden.evidence.reader import LedgerReader, decisions_of, inputs_of
from ekiden.ledger.blobs import Drafted, TurnDecisions, TurnInputs
from ekiden.ledger.records import NO_DRAFT_CODES, EventKind, RequestRow, Resumed, TurnRow
from ekiden.policies.lookup import LONGEST_MATCH
from ekiden.state.drafting import BY_GRAMMAR, BY_MODEL, NO_GUESS, Ask, Drafter, Guess, NoDrafts
from ekiden.state.request import Request

_NONE: Final = BY_GRAMMAR - 1
"""In the place of a match: no guess was found."""
_NOT_ASKED: Final = BY_GRAMMAR - 2
_AS_ASKED: Final = -1
"""In the place of a guess's length: as many tokens as are wanted."""
_WRONG, _RIGHT, _UNCLEAR = 0, 1, 2
_NO_GUESS: Final = NO_DRAFT_CODES[NoDrafts.NO_GUESS]
_FORBIDDEN: Final = NO_DRAFT_CODES[NoDrafts.FORBIDDEN]
_NEVER: Final = 2**62


@dataclass(frozen=True, slots=True)
class AnswerDrafts:
    """Of one answer, for each of its tokens: the match of the guess that begins there, how many tokens that has, and
    whether the token was guessed rightly. ``micros_per_draft`` is what a draft of the draft model took by its end."""

    matches: "array[int]"
    lengths: "array[int]"
    right: bytearray
    micros_per_draft: int = 0

    def guess(self, place: int, ask: Ask) -> Guess:
        """At the token of this number, from 0. Beyond the tokens that are known they begin anew."""
        count = len(self.matches)
        match, length = self.matches[place % count], self.lengths[place % count]
        if match == _NONE:
            return NO_GUESS
        limit = ask.model_limit if match == BY_MODEL else ask.limit
        if length != _AS_ASKED:
            limit = min(limit, length)
        right = 0
        while right < limit and self.right[(place + right) % count] == _RIGHT:
            right += 1
        return Guess((TOKEN,) * right + (TOKEN + 1,) * (limit - right), match)


@dataclass(slots=True)
class _Answer:
    """What was read of one answer so far, token by token."""

    matches: "array[int]" = field(default_factory=lambda: array("b"))
    lengths: "array[int]" = field(default_factory=lambda: array("h"))
    right: bytearray = field(default_factory=bytearray)
    without: int = 0
    """Why its steps have no drafts now: a code of NO_DRAFT_CODES."""

    def add(self, match: int, length: int = _AS_ASKED, right: int = _UNCLEAR) -> None:
        self.matches.append(match)
        self.lengths.append(length)
        self.right.append(right)

    def step(self, drafted: Drafted | None, drafts: int) -> None:
        """A row that gave it tokens: what was guessed, and how many drafts were tried."""
        if drafted is None:
            match = _NONE if self.without == _NO_GUESS else _NOT_ASKED
            self._settle(match)
            self.add(match)
            return
        match, right = drafted.match, drafted.tokens - 1
        failed = right < drafts or self.without == _FORBIDDEN
        self._settle(match)
        for place in range(right + 1):
            verdict = _RIGHT if place < right else _WRONG if failed else _UNCLEAR
            if match > BY_MODEL:
                self.add(min(match + place, LONGEST_MATCH), _AS_ASKED, verdict)
            elif place < drafted.guessed:
                self.add(match, drafted.guessed - place, verdict)
            else:  # all of the guess was right, and the token after it was none of it
                self.add(_NOT_ASKED)

    def _settle(self, match: int) -> None:
        """Whether the last token was guessed rightly, where no draft tried it, as the next guess tells."""
        if self.right and self.right[-1] == _UNCLEAR and self.matches[-1] > BY_MODEL:
            if match > BY_MODEL:
                self.right[-1] = match > min(self.matches[-1], LONGEST_MATCH - 1)
            elif match == _NONE:
                self.right[-1] = _WRONG

    def drafts(self, micros_per_draft: int) -> AnswerDrafts | None:
        """None where nothing was guessed."""
        known = [place for place, match in enumerate(self.matches) if match != _NOT_ASKED]
        guessed = [place for place in known if self.matches[place] != _NONE]
        clear = [self.right[place] for place in guessed if self.right[place] != _UNCLEAR]
        if not guessed:
            return None
        matches, lengths, right = self.matches[:], self.lengths[:], self.right[:]
        for place in guessed:
            if right[place] == _UNCLEAR:
                right[place] = clear[place % len(clear)] if clear else _WRONG
        for place, match in enumerate(self.matches):
            if match == _NOT_ASKED:
                other = known[place % len(known)]
                matches[place], lengths[place], right[place] = matches[other], lengths[other], right[other]
        return AnswerDrafts(matches, lengths, right, micros_per_draft)


class DraftReader:
    """Reads what was guessed from the turns of a run, for requests from number ``first`` on, from a turn on."""

    def __init__(self, *, first: int, turn: int) -> None:
        self._first, self._next = first, turn
        self._rows: list[int] = []
        """The decode rows of the last step."""
        self._prefilling: set[int] = set()
        self._no_tokens_until: dict[int, int] = {}
        """The turn up to which a request's rows give it no tokens: it computes its dropped KV blocks again, or it has
        ended and is computed as padding."""
        self._answers: defaultdict[int, _Answer] = defaultdict(_Answer)
        self._micros_per_draft = 0

    def read(self, reader: LedgerReader, last: int) -> None:
        """Go on up to a turn."""
        for row in reader.turns_with_decisions(self._next, last):
            self._add(reader, row)
        self._next = max(self._next, last + 1)

    def _add(self, reader: LedgerReader, row: TurnRow) -> None:
        decisions = decisions_of(row)
        for number in (*decisions.resumed_start, *decisions.resumed):
            if number >= self._first:
                self._no_tokens_until[number] = _recomputed_by(reader, number, row.turn)
        if decisions.budget:  # it computed something
            if decisions.decodes is not None:
                self._rows = decisions.decodes
            inputs = inputs_of(row)
            if inputs.failure is None:
                self._add_step(row.turn, inputs, decisions)
        self._no_tokens_until.update((number, _NEVER) for number, _ in decisions.retired if number >= self._first)

    def _add_step(self, turn: int, inputs: TurnInputs, decisions: TurnDecisions) -> None:
        self._micros_per_draft = inputs.micros_per_draft
        for number, code in decisions.no_drafts:
            if number >= self._first:
                self._answers[number].without = code
        guesses = {drafted.request: drafted for drafted in inputs.drafts if drafted.tokens}
        drafts = dict(decisions.drafts)
        for number in self._rows:
            if self._gets_tokens(number, turn):
                answer = self._answers[number]
                if number in self._prefilling:  # its last chunk gave it a token
                    self._prefilling.discard(number)
                    answer.add(_NOT_ASKED)
                answer.step(guesses.get(number), drafts.get(number, 0))
        self._prefilling.update(number for number, _ in decisions.prefills if self._gets_tokens(number, turn))

    def _gets_tokens(self, number: int, turn: int) -> bool:
        return number >= self._first and turn > self._no_tokens_until.get(number, 0)

    def take(self, row: RequestRow) -> AnswerDrafts | None:
        """What is known of a request's answer by now, and is then forgotten; None where nothing was guessed. Requests
        are taken in their order: those before it are passed over from then on."""
        self._first = row.request + 1
        self._prefilling.discard(row.request)
        self._no_tokens_until.pop(row.request, None)
        answer = self._answers.pop(row.request, None)
        return None if answer is None else answer.drafts(self._micros_per_draft)


def _recomputed_by(reader: LedgerReader, number: int, turn: int) -> int:
    """The turn in which a request that resumes in ``turn`` has its dropped KV blocks again; 0 where it needs none."""
    back = False
    for event in reader.events_after([number], turn - 1):
        match event.kind:
            case EventKind.RESUMED if not back and event.turn == turn:
                if Resumed.of(event.value).whole:
                    return 0
                back = True
            case EventKind.FIRST_TOKEN if back:
                return 0
            case EventKind.CAUGHT_UP | EventKind.PREEMPTED | EventKind.RESUMED if back:
                return event.turn
    return _NEVER


def recorded_drafts(reader: LedgerReader, rows: Sequence[RequestRow], last: int) -> dict[int, AnswerDrafts]:
    """Of recorded requests, in their order, by number; the turns up to ``last`` are read."""
    if not rows or not reader.header.max_drafts:
        return {}
    drafts = DraftReader(first=rows[0].request, turn=rows[0].turn)
    drafts.read(reader, last)
    return {row.request: found for row in rows if (found := drafts.take(row)) is not None}


class RecordedDrafter(Drafter):
    """Guesses for a simulated model, all of whose tokens are the same, as was guessed for the recorded answers."""

    def __init__(self) -> None:
        self._answers: dict[str, tuple[int, AnswerDrafts]] = {}
        self._micros_per_draft = 0

    @property
    def micros_per_draft(self) -> int:
        return self._micros_per_draft

    def know(self, request: Request, drafts: AnswerDrafts | None) -> None:
        """What could be guessed of a request's answer."""
        if drafts is not None:
            self._answers[request.request_id] = len(request.prompt_token_ids), drafts
            self._micros_per_draft = drafts.micros_per_draft

    def guess(self, ask: Ask) -> Guess:
        if ask.request_id not in self._answers:
            return NO_GUESS
        prompt_tokens, drafts = self._answers[ask.request_id]
        return drafts.guess(len(ask.token_ids) - prompt_tokens, ask)

    def forget(self, request_id: str) -> None:
        self._answers.pop(request_id, None)
