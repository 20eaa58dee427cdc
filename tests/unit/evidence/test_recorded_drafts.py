"""What could be guessed ahead of recorded answers: against texts of which that is known."""

from pathlib import Path

import pytest

from ekiden.engine.simulated import TOKEN
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.recorded_drafts import AnswerDrafts, RecordedDrafter, recorded_drafts
from ekiden.state.drafting import BY_GRAMMAR, NO_GUESS, Ask, Drafter, Guess
from ekiden.state.request import Carried
from tests.fake_answers import answer_to
from tests.guessing import Foreseen
from tests.unit.evidence.directed import Directed

PROMPT, OUTPUT, LIMIT = 10, 40, 4


def ask(limit: int = LIMIT, model_limit: int = LIMIT) -> Ask:
    return Ask("", (), limit, model_limit)


def drafter(right: float) -> Foreseen:
    return Foreseen(lambda ids, count: answer_to(ids, 50, count), prompt=PROMPT, right=right)


def of_all(reader: LedgerReader) -> dict[str, AnswerDrafts]:
    rows = reader.all_requests()
    found = recorded_drafts(reader, rows, reader.bounds()[1])
    return {row.request_id: found[row.request] for row in rows if row.request in found}


@pytest.mark.parametrize("right", [0.3, 0.8])
def test_each_token_is_guessed_again_as_it_was_or_would_have_been(tmp_path: Path, right: float) -> None:
    """Also those at which no step began, and those whose drafts were not tried."""
    foreseen = drafter(right)
    world = Directed(drafter=foreseen, num_blocks=8, num_swap_blocks=0, num_speculative_tokens=2)
    for number in range(8):
        world.submit(f"r{number}", prompt=PROMPT, output=OUTPUT)
        world.step()
    world.submit("went on", prompt=PROMPT, output=OUTPUT, carried=Carried(token_ids=(3,) * 5, ends=1))
    world.run()
    assert sum(update.finish.num_preemptions for update in world.updates if update.finish) > 3
    with world.stored(tmp_path) as reader:
        drafts = of_all(reader)
    assert len(drafts) == 9
    for name, known in drafts.items():
        places = range(6, OUTPUT - 2 * LIMIT)  # what follows the last token is not known
        guesses = [known.guess(number, ask()) for number in places]
        assert [guess.match for guess in guesses] == [foreseen.match(name, number) for number in places]
        right_ones = [guess.tokens.count(TOKEN) for guess in guesses]
        assert right_ones == [
            foreseen.run(name, number, LIMIT) if guess.tokens else 0
            for number, guess in zip(places, guesses, strict=True)
        ]


class ByGrammar(Drafter):
    """Three tokens that are right."""

    def guess(self, ask: Ask) -> Guess:
        return Guess(answer_to(ask.token_ids, 50, min(3, ask.limit)), BY_GRAMMAR)


def test_a_guess_that_had_an_end_has_it_again(tmp_path: Path) -> None:
    world = Directed(drafter=ByGrammar())
    world.submit("r", prompt=PROMPT, output=OUTPUT)
    world.run()
    with world.stored(tmp_path) as reader:
        (known,) = of_all(reader).values()
    guesses = [known.guess(number, ask(limit=16)) for number in range(1, OUTPUT - 4)]
    assert {guess.match for guess in guesses} == {BY_GRAMMAR}
    assert max(len(guess.tokens) for guess in guesses) == 3


def test_a_run_that_guessed_nothing_has_nothing(tmp_path: Path) -> None:
    for name, guesser in (("none", None), ("never", drafter(0.5))):
        if guesser is not None:
            guesser.found = 0.0
        world = Directed(drafter=guesser)
        world.submit("r", prompt=PROMPT, output=OUTPUT)
        world.run()
        (tmp_path / name).mkdir()
        with world.stored(tmp_path / name) as reader:
            assert of_all(reader) == {}


def test_a_request_of_which_nothing_is_known_gets_no_guess() -> None:
    world = Directed()
    known = RecordedDrafter()
    known.know(world.submit("r"), None)
    assert known.guess(Ask("r", (1, 2), 4, 4)) == NO_GUESS
