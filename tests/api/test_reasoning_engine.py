"""The real engine core under a model that thinks: where stops and grammars begin, and what the ledger replays."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ekiden.api.app import create_app
from ekiden.backends.fake import FakeRunner
from ekiden.build.core import build_core
from ekiden.build.engines import build_engine
from ekiden.config import Config, LedgerConfig
from ekiden.engine.async_engine import AsyncEngine
from ekiden.engine.interface import ModelCard
from ekiden.engine.parts import EngineParts
from ekiden.evidence.decision_replay import replay
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.token_replay import replay_tokens
from ekiden.ledger.retention import runs_in
from ekiden.models.chat_template import ChatTemplate
from ekiden.sampling.sampler import Sampler
from ekiden.sampling.structured import GrammarCompiler
from tests.api.conftest import memory_client
from tests.api.scripted import MODEL
from tests.api.test_reasoning import SCHEMA
from tests.api.thinking_model import OPENED, SWITCHED
from tests.unit.sampling.thinking_tokens import CLOSE, OPEN, SIZE, thinking_tokenizer

TOKENIZER = thinking_tokenizer(special=False)
USER = [{"role": "user", "content": "hi"}]


def parts() -> EngineParts:
    sampler = Sampler(eos_token_ids=TOKENIZER.eos_token_ids)
    runner = FakeRunner(vocab_size=SIZE, num_blocks=64, block_size=16, max_model_len=400, sampler=sampler)
    card = ModelCard(
        model_id=MODEL, max_model_len=400, vocab_size=SIZE, block_size=16, num_blocks=64, created=0, fingerprint="test"
    )
    return EngineParts(runner=runner, card=card, tokenizer=TOKENIZER, grammars=GrammarCompiler(TOKENIZER, SIZE))


class Chat:
    def __init__(self, engine: AsyncEngine, config: Config) -> None:
        self._engine, self._config = engine, config

    async def __call__(self, template: str = OPENED, **fields: Any) -> dict[str, Any]:
        app = create_app(self._engine, TOKENIZER, ChatTemplate(template), self._config)
        async with memory_client(app) as http:
            body = {"model": MODEL, "messages": USER, "temperature": 0, **fields}
            response = await http.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        choice: dict[str, Any] = response.json()["choices"][0]
        return choice


@asynccontextmanager
async def thinking_engine(folder: Path) -> AsyncIterator[tuple[Chat, Config]]:
    config = Config(ledger=LedgerConfig(ledger_dir=str(folder), ledger_keep_prompts=True))
    async with AsyncEngine(build_engine(parts(), config, record=True)) as engine:
        yield Chat(engine, config), config


async def test_stops_and_grammars_begin_with_the_answer(tmp_path: Path) -> None:
    async with thinking_engine(tmp_path) as (chat, config):
        # Nothing but x: as reasoning it goes on to the limit, as an answer it stops at once.
        only_x: dict[str, Any] = {"stop": "x", "logit_bias": {ord("x"): 100}, "max_tokens": 5}
        thought = await chat(**only_x)
        assert (thought["finish_reason"], thought["message"]["reasoning_content"]) == ("length", "xxxxx")
        plain = await chat(SWITCHED, **only_x, chat_template_kwargs={"enable_thinking": False})
        assert (plain["finish_reason"], plain["stop_reason"], plain["message"]["content"]) == ("stop", "x", "")

        # The closing mark as the first token: the grammar's answer follows, whatever the model would rather write.
        for template, mark in ((OPENED, CLOSE), (SWITCHED, OPEN)):
            choice = await chat(template, response_format=SCHEMA, logit_bias={mark: 100}, max_tokens=200)
            if mark == CLOSE:
                assert choice["finish_reason"] == "stop"
                assert list(json.loads(choice["message"]["content"])) == ["a"]
            else:  # it opens its reasoning and never closes it: no token of an answer can come
                assert choice["finish_reason"] == "length"
                assert choice["message"]["content"] == ""
                assert choice["message"]["reasoning_content"]
        ended = await chat(response_format=SCHEMA, logit_bias={256 + 1: 100}, max_tokens=20)
        assert ended["finish_reason"] == "length", "the model ended its answer while it was thinking"

    (path,) = runs_in(tmp_path)
    with LedgerReader(path) as reader:
        assert replay(reader.header, reader.everything()).difference is None
        again = replay_tokens(reader, partial(build_core, parts()), config)
        assert (again.same, len(again.different), again.not_kept) == (5, 0, 0)
