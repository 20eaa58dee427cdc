"""The real server's engine is killed at random moments under deterministic requests: each client gets the same answer
as from an undisturbed run, or a clear error."""

import asyncio
import os
import random
from pathlib import Path

from ekiden.evidence.decision_replay import replay
from ekiden.evidence.reader import LedgerReader
from ekiden.ledger.retention import runs_in
from ekiden.models.resolve import ModelFiles
from tests.endtoend.killed import CLEAR, bodies, killed_server, moments

KILLS = int(os.environ.get("SOAK_KILLS", "1"))
STREAMS = 32 if KILLS > 1 else 8
TOKENS = 24


async def test_clients_get_the_answers_of_an_undisturbed_run(smollm2_files: ModelFiles, tmp_path: Path) -> None:
    asked = bodies(STREAMS, TOKENS)
    async with killed_server(smollm2_files, str(tmp_path)) as server:
        wanted = await asyncio.gather(*(server.ask(*each) for each in asked))
        assert all("error" not in answer for answer in wanted), wanted
        killing = asyncio.create_task(server.kill_at(moments(KILLS, server.seen // 2, random.Random(KILLS))))
        rounds = []
        while not killing.done():  # streams may end before all kills have come
            rounds.append(await asyncio.gather(*(server.ask(*each) for each in asked)))
            assert len(rounds) < 10
        await killing
        assert server.kills == server.engine.restarts == KILLS
        stats = server.engine.stats()
        assert stats.num_running == stats.kv_blocks_used == 0
    told = [(answer, right) for answers in rounds for answer, right in zip(answers, wanted, strict=True)]
    same = sum(answer == right for answer, right in told)
    errors = [answer["error"]["code"] for answer, _ in told if "error" in answer]
    print(f"{server.kills} kills: {same} of {len(told)} answers are the same, {len(errors)} are errors {errors}")
    assert all(answer == right or answer["error"]["code"] in CLEAR for answer, right in told)
    assert same >= len(told) * 7 // 8
    for path in runs_in(tmp_path):
        with LedgerReader(path) as reader:
            assert reader.live_requests() == []
            assert replay(reader.header, reader.everything()).difference is None
