"""A recorded run decides the same again: over many worlds, through a file, in another process, and with every stop."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from ekiden.build.core import build_core
from ekiden.engine.parts import EngineParts
from ekiden.evidence.causes import Cause
from ekiden.evidence.decision_difference import difference
from ekiden.evidence.decision_replay import Replay, ReplayError, replay
from ekiden.evidence.explain import explain
from ekiden.evidence.reader import LedgerReader, decisions_of
from ekiden.evidence.token_replay import replay_tokens
from ekiden.ledger.records import LEFT_OUT_CODES, EventKind
from ekiden.policies.ordering import KeyedQueue
from ekiden.state.drafting import Ask, Drafter, Guess
from ekiden.state.request import FinishReason, RefusalReason, Request
from ekiden.state.sampling_params import Grammar, GrammarKind
from ekiden.state.sequence import StopText
from ekiden.state.turn import LeftOutReason
from tests.fake_answers import next_token
from tests.unit.engine.fake_parts import make_fake_parts
from tests.unit.evidence.directed import Directed
from tests.unit.evidence.recorded import RecordedSimulation, finished, stored

SEEDS = 150


@pytest.fixture(scope="module")
def worlds() -> list[RecordedSimulation]:
    return [finished(seed) for seed in range(SEEDS)]


def test_every_simulated_world_replays_identically(worlds: list[RecordedSimulation]) -> None:
    turns = longer = 0
    for world in worlds:
        result = replay(world.header, world.kept.turns)
        longer += sum(rows.turn.new_sizes for rows in world.kept.turns)
        assert result.difference is None, f"seed {world.header.run_id}: {result.difference}"
        assert result.turns == len(world.kept.turns)
        turns += result.turns
    assert turns > 9_000
    assert longer > 500, "what passes of a new size took is no part of what the predictions learn"


def test_the_worlds_hold_every_kind_of_event_and_end(worlds: list[RecordedSimulation]) -> None:
    kinds = {event.kind for world in worlds for rows in world.kept.turns for event in rows.events}
    assert kinds == {kind.value for kind in EventKind}
    ends = {end.reason for world in worlds for rows in world.kept.turns for end in rows.ends}
    assert ends == {*(reason.value for reason in FinishReason), "refused"}
    refusals = {row.refusal for world in worlds for rows in world.kept.turns for row in rows.requests}
    assert {RefusalReason.QUEUE_FULL_REQUESTS, RefusalReason.QUEUE_TOO_SLOW} < refusals
    assert any(decisions_of(rows.turn).victims for world in worlds for rows in world.kept.turns)


def test_runs_whose_controls_changed_replay_identically(tmp_path: Path) -> None:
    """Through a file: policies, orders, slots, limits and drains, by person and by expiry."""
    most = 0
    for seed in range(40):
        world = RecordedSimulation(seed, change_rate=0.2)
        world.run()
        with LedgerReader(stored(world, tmp_path)) as reader:
            result = replay(reader.header, reader.everything())
            epochs = {turn.epoch for turn in reader.turns(*reader.bounds())}
        assert result.difference is None, f"seed {seed}: {result.difference}"
        assert result.turns == len(world.kept.turns)
        most = max(most, len(epochs))
    assert most > 10


def test_through_a_file_in_another_process(tmp_path: Path, worlds: list[RecordedSimulation]) -> None:
    for world in worlds[:5]:
        stored(world, tmp_path)
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    for world in worlds[:5]:
        command = [sys.executable, "-m", "ekiden", "replay", world.header.run_id, "--json"]
        done = subprocess.run(
            [*command, "--ledger-dir", str(tmp_path)], capture_output=True, text=True, env=environment, check=True
        )
        told = json.loads(done.stdout)
        assert told["identical"] is True
        assert told["turns"] == len(world.kept.turns)
        assert told["tokens"] > 0


def test_a_changed_policy_shows_as_the_first_differing_decision(
    worlds: list[RecordedSimulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line of the order changed: last come, first served."""
    monkeypatch.setattr(KeyedQueue, "first", lambda self, count: list(reversed(self._sorted.values()))[:count])
    found = 0
    for world in worlds:
        result = replay(world.header, world.kept.turns)
        if result.difference is not None:
            found += 1
            fields = {name for name, _, _ in result.difference.fields}
            assert result.difference.turn == result.turns
            assert fields & {"admitted", "admitted_start", "passed_over", "head", "head_start"}, fields
    assert found > 20


def test_a_changed_victim_is_seen(worlds: list[RecordedSimulation], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ekiden.stages.refill._LOOKAHEAD", 0)
    results = [replay(world.header, world.kept.turns).difference for world in worlds]
    assert any(result is not None for result in results)


def test_every_way_to_stop(tmp_path: Path) -> None:
    """End of sequence, the client's stop tokens, stop strings and length: the replay ends each as it was."""

    def make(request: Request) -> StopText:
        left = [5]

        def feed(token: int) -> str | None:
            left[0] -= 1
            return "stop" if left[0] == 0 else None

        return feed

    world = Directed(make_stop_text=make)
    for number in range(12):
        every = {"ignore_eos": False, "stop_token_ids": tuple(range(1, 50, 7)), "min_tokens": number % 4}
        world.submit(f"token-{number}", output=60, sampling=every)
        world.submit(f"natural-{number}", output=200, sampling={"ignore_eos": False})
        world.submit(f"string-{number}", output=60, sampling={"stop": ("abc", "d")})
        world.submit(f"length-{number}", output=7)
    world.run()
    stops = {str(update.finish.stop_reason) for update in world.updates if update.finish is not None}
    assert {"None", "stop"} < stops
    assert any(stop.isdigit() for stop in stops)
    with world.stored(tmp_path) as reader:
        assert replay(reader.header, reader.everything()).difference is None


class Oracle(Drafter):
    """Drafts that are always right."""

    def guess(self, ask: Ask) -> Guess:
        drafts: list[int] = []
        for _ in range(ask.limit):
            drafts.append(next_token([*ask.token_ids, *drafts], 50))
        return Guess(drafts, match=10)


class CountedRules:
    """A grammar that allows everything, and ends or fails after some tokens."""

    def __init__(self, grammar: Grammar) -> None:
        self.error: str | None = None
        self._left, self._fails = int(grammar.source[1:]), grammar.source[0] == "-"

    def forced(self, limit: int) -> tuple[int, ...]:
        return ()

    def masks(self, drafts: Sequence[int] = ()) -> tuple[bytes, ...]:
        return (b"\xff" * 7,) * (len(drafts) + 1)

    def advance(self, token: int) -> bool:
        self._left -= 1
        if self._left == 0 and self._fails:
            self.error = "the grammar is ambiguous"
        return self._left == 0


def test_answers_that_end_within_a_row_of_several_tokens_end_there_again(tmp_path: Path) -> None:
    def make(request: Request) -> StopText:
        left = [int(request.sampling.stop[0])]

        def feed(token: int) -> str | None:
            left[0] -= 1
            return "stop" if left[0] == 0 else None

        return feed

    world = Directed(make_stop_text=make, make_rules=CountedRules, drafter=Oracle(), max_num_seqs=8)
    for count in range(5, 10):
        world.submit(f"string-{count}", output=60, sampling={"stop": (str(count),)})
        for sign in "+-":
            grammar = Grammar(kind=GrammarKind.REGEX, source=f"{sign}{count}")
            world.submit(f"grammar-{sign}{count}", output=60, sampling={"grammar": grammar})
        every = {"ignore_eos": False, "stop_token_ids": tuple(range(1, 50, 7)), "min_tokens": count - 3}
        world.submit(f"token-{count}", output=60, sampling=every)
        world.submit(f"natural-{count}", output=200, sampling={"ignore_eos": False})
        world.submit(f"length-{count}", output=count)
    world.run()
    finishes = {update.request_id: update.finish for update in world.updates if update.finish is not None}
    assert [finishes[f"string-{count}"].num_output_tokens for count in range(5, 10)] == [5, 6, 7, 8, 9]
    assert [finishes[f"grammar-+{count}"].num_output_tokens for count in range(5, 10)] == [5, 6, 7, 8, 9]
    assert finishes["grammar--7"].reason is FinishReason.ERROR
    kinds = {event.kind for rows in world.kept.turns for event in rows.events}
    assert EventKind.TOKENS in kinds
    with world.stored(tmp_path) as reader:
        assert replay(reader.header, reader.everything()).difference is None


def test_refused_requests_are_refused_again(tmp_path: Path) -> None:
    world = Directed(num_blocks=10)
    world.submit("bad token", tokens=(1, 2, 999))
    world.submit("negative", tokens=(1, -5))
    world.submit("empty", tokens=())
    world.submit("huge", prompt=300)
    world.submit("invalid", sampling={"temperature": -1.0})
    world.submit("empty stop", sampling={"stop": ("ok", "")})
    world.submit("fine", output=4)
    world.submit("fine", output=4)  # the id is still in use
    world.run()
    reasons = {rows.refusal for turn in world.kept.turns for rows in turn.requests}
    assert len(reasons) == 6
    with world.stored(tmp_path) as reader:
        assert replay(reader.header, reader.everything()).difference is None


def test_a_run_with_a_gap_is_refused() -> None:
    world = Directed()
    world.submit("r", output=10)
    world.run()
    del world.kept.turns[3]
    with pytest.raises(ReplayError, match=r"turn 4 is not in the ledger \(the next stored one is 5\)"):
        replay(world.header, world.kept.turns)


def test_replayed_prompts_share_blocks_as_the_recorded_ones_did() -> None:
    world = Directed(prefix_caching=True, max_num_seqs=1)
    shared = tuple(1 + n % 40 for n in range(64))
    for number in range(6):
        world.submit(f"r{number}", tokens=(*shared, 1 + number, 2), output=3)
    world.run()
    engine = Replay(world.header)
    for rows in world.kept.turns:
        assert difference(rows, engine.turn(rows)) is None
    assert engine.core.kv.prefix_hits == world.core.kv.prefix_hits == 5 * 64


def test_tokens_are_made_again_with_the_model(tmp_path: Path) -> None:
    """The same model gives the recorded tokens; another one is caught."""
    world = Directed(keep_prompts=True)
    for number in range(6):
        world.submit(f"r{number}", prompt=5 + number, output=8)
    world.step(9)
    world.core.abort("r5")
    world.run()
    parts = make_fake_parts(world.config)
    with world.stored(tmp_path) as reader:
        # The directed world's vocabulary has 50 tokens and these parts have 1000: other tokens.
        assert len(replay_tokens(reader, partial(build_core, parts), world.config).different) >= 5
        same = Directed()
        result = replay_tokens(reader, partial(build_core, _parts_of(same)), world.config)
    assert (result.same, result.different, result.not_kept) == (6, [], 0)


def _parts_of(world: Directed) -> EngineParts:
    return replace(make_fake_parts(world.config), runner=world.runner)


def test_without_kept_prompts_no_token_is_stored_or_made_again(tmp_path: Path) -> None:
    world = Directed()
    secret = (41, 42, 43, 44, 45, 46, 47, 48, 49, 41, 42, 43, 44, 45, 46, 47)
    world.submit("r", tokens=secret, output=4)
    world.run()
    with world.stored(tmp_path) as reader:
        result = replay_tokens(reader, partial(build_core, make_fake_parts(world.config)), world.config)
        content = reader.path.read_bytes()
    assert (result.same, result.not_kept) == (0, 1)
    assert bytes(secret) not in content


def test_every_reason_to_leave_a_sequence_out_is_recorded(worlds: list[RecordedSimulation]) -> None:
    codes = {code for world in worlds for rows in world.kept.turns for _, code in decisions_of(rows.turn).left_out}
    # Refill keeps a block for everybody that runs when it brings somebody back, so a decode without a block and
    # without a victim does not come about by itself; below its block is taken by hand.
    assert codes >= {LEFT_OUT_CODES[reason] for reason in LeftOutReason} - {LEFT_OUT_CODES[LeftOutReason.KV_BLOCKS]}


def test_a_decode_that_finds_neither_a_block_nor_a_victim_sits_out(tmp_path: Path) -> None:
    world = Directed(num_blocks=8)
    world.submit("old", prompt=14, output=40)
    world.submit("back", prompt=14, output=40)
    world.step()
    world.core.pause("back")
    world.step()
    world.core.resume("back")
    world.step()  # "back" has its blocks again, so it is no victim now; "old" needs one more
    pool = world.core.kv.pool
    taken = pool.allocate(pool.num_available)
    world.step()
    assert decisions_of(world.kept.turns[-1].turn).left_out == [(1, LEFT_OUT_CODES[LeftOutReason.KV_BLOCKS])]
    pool.release(taken)
    world.run()
    assert [update.finish.num_output_tokens for update in world.updates if update.finish] == [40, 40]
    with world.stored(tmp_path) as reader:
        causes = {cause.cause: cause for cause in explain(reader, reader.requests_named("old")[0]).causes}
    assert causes[Cause.RUNNING_KV_BLOCKS].turns == (4, 4)


def test_reading_a_ledger_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    path.write_bytes(b"not a database at all, but long enough to be taken for one" * 40)
    with pytest.raises(ValueError, match="is not a ledger"):
        LedgerReader(path)
