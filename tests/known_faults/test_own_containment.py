"""Whatever goes wrong in the work for one request ends that request, and its neighbours' answers stay as they were.

Each test plants a fault in the work for one request, the culprit, and compares the answers of those beside it, byte by
byte, with the answers that they get when nothing is planted.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from ekiden.backends.fake import FakeRunner
from ekiden.config import CacheConfig, Config, LedgerConfig, SchedulerConfig
from ekiden.engine.interface import Health
from ekiden.evidence.decision_replay import replay
from ekiden.evidence.reader import LedgerReader, end_detail_of
from ekiden.ledger.recorder import Recorder
from ekiden.models.text import IncrementalText, TextDelta
from ekiden.sampling import draw, edits, logprobs, sampler
from ekiden.sampling.structured import GrammarCompiler, GrammarMatcher
from ekiden.state.plan import Row
from ekiden.state.sampling_params import Grammar, SamplingParams
from tests.api.conftest import events
from tests.api.real_core import BLOCK, RealCore, real_core
from tests.api.scripted import VOCAB_SIZE
from tests.known_faults.conftest import CHAT, TEXT, request_of, small

CULPRIT = 666
"""The culprit's seed, by which a planted fault knows it."""
MARK = "culprit"
"""Is part of the culprit's texts where a fault sees no seed."""
TOKENS = 12
Patch = pytest.MonkeyPatch


class Planted(Exception):
    pass


class Panic(BaseException):
    """What a panic of a library in Rust is in Python: no ``Exception``."""


NEIGHBOURS: tuple[tuple[str, dict[str, Any]], ...] = (
    (TEXT, {"text": "one", "logprobs": 2}),
    (TEXT, {"text": "two", "temperature": 0.9, "seed": 7, "top_p": 0.9, "stream": True}),
    (CHAT, {"text": "three", "temperature": 1.1, "seed": 8, "top_k": 20, "frequency_penalty": 0.5}),
    (CHAT, {"text": "four", "guided_regex": "[a-z]{4,40}", "temperature": 0.8, "seed": 9, "stream": True}),
    (TEXT, {"text": "five", "stop": ["never said"], "min_tokens": 3, "repetition_penalty": 1.3}),
    (TEXT, {"text": "six " * 30, "prompt_logprobs": 1, "logit_bias": {"70": 3.0}}),
)


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[RealCore]:
    """All fit in one batch. Nothing is taken from the prefix cache, which would show in the usage of a second run."""
    config = Config(
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=8 + 4 * BLOCK),
        cache=CacheConfig(block_size=BLOCK, enable_prefix_caching=False),
        ledger=LedgerConfig(ledger_dir=str(tmp_path)),
    )
    async with real_core(config, record=True) as core:
        yield core
        await core.clean()


async def ask(core: RealCore, path: str, fields: dict[str, Any]) -> httpx.Response:
    return await core.http.post(path, json=request_of(path, **{"max_tokens": TOKENS, "ignore_eos": True, **fields}))


def content_of(answer: httpx.Response) -> bytes:
    """All of an answer but its id and its time."""
    assert answer.status_code == 200, answer.text
    streamed = answer.headers["content-type"].startswith("text/event-stream")
    parts = events(answer.text) if streamed else [answer.json()]
    return json.dumps([{k: v for k, v in part.items() if k not in ("id", "created")} for part in parts]).encode()


async def company(core: RealCore, culprit: dict[str, Any]) -> tuple[httpx.Response, list[bytes]]:
    """The culprit's answer and those of its neighbours, all begun together."""
    async with asyncio.timeout(60):
        calls = [ask(core, TEXT, {"text": "evil", "seed": CULPRIT, **culprit})]
        calls += [ask(core, path, dict(fields)) for path, fields in NEIGHBOURS]
        first, *others = await asyncio.gather(*calls)
    return first, [content_of(other) for other in others]


# --- the faults; each is planted with ``patch``, and comes with what the culprit asks for


def _raise(error: type[BaseException]) -> None:
    raise error("planted")


def in_the_penalties(patch: Patch) -> dict[str, Any]:
    real = edits.edit

    def edit(row: Any, params: SamplingParams, *rest: Any) -> None:
        if params.seed == CULPRIT:
            _raise(Planted)
        real(row, params, *rest)

    patch.setattr(sampler, "edit", edit)
    return {"presence_penalty": 0.3, "temperature": 0.7}


def in_the_draw(patch: Patch) -> dict[str, Any]:
    def choose(logits: Any, reduced: Any, draws: list[draw.Draw]) -> list[int]:
        if any(each.seed == CULPRIT for each in draws):
            _raise(Panic)
        return draw.choose(logits, reduced, draws)

    patch.setattr(sampler, "choose", choose)
    return {"temperature": 1.0}


def in_the_log_probabilities(patch: Patch) -> dict[str, Any]:
    real = logprobs.token_logprobs

    def token_logprobs(row: Any, token: int, num_top: int) -> Any:
        if num_top == 5:
            _raise(Planted)
        return real(row, token, num_top)

    patch.setattr(sampler, "token_logprobs", token_logprobs)
    return {"logprobs": 5}


def in_the_prompts_log_probabilities(patch: Patch) -> dict[str, Any]:
    real = logprobs.prompt_token_logprobs

    def prompt_token_logprobs(row: Any, token: int, num_top: int) -> Any:
        if num_top == 7:
            _raise(Planted)
        return real(row, token, num_top)

    patch.setattr(sampler, "prompt_token_logprobs", prompt_token_logprobs)
    return {"prompt_logprobs": 7}


def logits_that_are_no_numbers(patch: Patch) -> dict[str, Any]:
    return _logits(patch, np.nan, temperature=0.0)


def drawn_logits_that_are_no_numbers(patch: Patch) -> dict[str, Any]:
    return _logits(patch, np.nan, temperature=0.9)


def infinite_logits(patch: Patch) -> dict[str, Any]:
    return _logits(patch, np.inf, temperature=0.9)


def _logits(patch: Patch, value: float, **fields: Any) -> dict[str, Any]:
    real = FakeRunner._logits

    def logits(self: FakeRunner, row: Row, positions: range) -> Any:
        found = real(self, row, positions)
        sampling = row.sampling
        if sampling is not None and sampling.seed == CULPRIT and row.end > sampling.num_prompt_tokens + 2:
            found[:] = value
        return found

    patch.setattr(FakeRunner, "_logits", logits)
    return fields


def in_the_model(patch: Patch) -> dict[str, Any]:
    """The runner raises, and nothing says for which row."""
    real = FakeRunner._result

    def result(self: FakeRunner, row: Row) -> Any:
        found = real(self, row)
        if row.sampling is not None and row.sampling.seed == CULPRIT and row.end > row.sampling.num_prompt_tokens + 2:
            _raise(Planted)
        return found

    patch.setattr(FakeRunner, "_result", result)
    return {}


def _matcher(patch: Patch, method: str, error: type[BaseException]) -> dict[str, Any]:
    real = GrammarCompiler.compile

    class Failing(GrammarMatcher):
        __slots__ = ()

    def fail(self: GrammarMatcher, *arguments: Any) -> Any:
        if self._walk().is_accepting():  # at least two letters have come
            _raise(error)
        return getattr(GrammarMatcher, method)(self, *arguments)

    setattr(Failing, method, fail)

    def compile_(self: GrammarCompiler, grammar: Grammar) -> GrammarMatcher:
        made = real(self, grammar)
        return Failing(made._beginning) if MARK in grammar.source else made

    patch.setattr(GrammarCompiler, "compile", compile_)
    return {"guided_regex": f"({MARK}|[a-z]{{2,50}})"}


def in_the_mask_of_its_grammar(patch: Patch) -> dict[str, Any]:
    return _matcher(patch, "masks", Planted)


def in_the_step_of_its_grammar(patch: Patch) -> dict[str, Any]:
    return _matcher(patch, "advance", Panic)


def _detokenizer(patch: Patch, module: str, error: type[BaseException] = Planted) -> dict[str, Any]:
    class Failing(IncrementalText):
        fed = 0

        def feed(self, token_id: int) -> TextDelta:
            self.fed += 1
            if self.fed == 4 and MARK in self._stop:
                _raise(error)
            return super().feed(token_id)

    patch.setattr(f"{module}.IncrementalText", Failing)
    return {"stop": [MARK]}


def in_the_engines_detokenizer(patch: Patch) -> dict[str, Any]:
    return _detokenizer(patch, "ekiden.build.core")


def in_the_answers_detokenizer(patch: Patch, error: type[BaseException] = Planted) -> dict[str, Any]:
    return _detokenizer(patch, "ekiden.api.text_output", error)


IN_THE_ENGINE: tuple[Callable[[Patch], dict[str, Any]], ...] = (
    in_the_penalties,
    in_the_draw,
    in_the_log_probabilities,
    in_the_prompts_log_probabilities,
    logits_that_are_no_numbers,
    drawn_logits_that_are_no_numbers,
    infinite_logits,
    in_the_model,
    in_the_mask_of_its_grammar,
    in_the_step_of_its_grammar,
    in_the_engines_detokenizer,
)


@pytest.mark.parametrize("plant", IN_THE_ENGINE, ids=lambda plant: plant.__name__)
async def test_own_01_a_fault_in_the_engines_work_for_one_request(
    core: RealCore, monkeypatch: Patch, plant: Callable[[Patch], dict[str, Any]]
) -> None:
    with monkeypatch.context() as trial:
        fields = plant(trial)
    before, usual = await company(core, fields)
    assert before.status_code == 200, before.text
    plant(monkeypatch)
    failed, found = await company(core, fields)
    assert failed.status_code == 500, failed.text
    assert failed.json()["error"]["code"] == "engine_error"
    assert found == usual
    assert core.engine.health is Health.OK
    await core.clean()
    # The ledger has the cause, and the run is decided again as it was.
    request_id = failed.headers["x-ekiden-request-id"]
    await core.engine.stop()
    assert core.built.ledger_path is not None
    with LedgerReader(core.built.ledger_path) as reader:
        (row,) = reader.requests_named(request_id)
        end = reader.end(row.request)
        assert end is not None
        assert end.reason == "error"
        cause = end_detail_of(end).message or ""
        assert "planted" in cause or "no numbers" in cause
        assert replay(reader.header, reader.everything()).difference is None


async def test_own_01_a_stream_that_had_begun_tells_the_fault_and_ends(core: RealCore, monkeypatch: Patch) -> None:
    fields = logits_that_are_no_numbers(monkeypatch) | {"stream": True}
    failed, _ = await company(core, fields)
    *pieces, error = [json.loads(line[6:]) for line in failed.text.split("\n\n") if line[6:7] == "{"]
    assert len(pieces) >= 2
    assert "no numbers" in error["error"]["message"]
    assert failed.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("error", [Planted, Panic])
@pytest.mark.parametrize("stream", [False, True])
async def test_own_01_a_fault_in_the_answers_text(
    core: RealCore, monkeypatch: Patch, stream: bool, error: type[BaseException]
) -> None:
    """The HTTP process fails on one answer: that call is told so with its id, and what it had running ends."""
    with monkeypatch.context() as trial:
        fields = in_the_answers_detokenizer(trial) | {"stream": stream}
    _, usual = await company(core, fields)
    in_the_answers_detokenizer(monkeypatch, error)
    failed, found = await company(core, fields)
    request_id = failed.headers["x-ekiden-request-id"]
    assert failed.status_code == (200 if stream else 500)
    assert f"The server failed on request {request_id}; its log says why." in failed.text
    assert found == usual
    await core.clean()


async def test_own_01_a_grammar_that_cannot_be_made_ready(core: RealCore, monkeypatch: Patch) -> None:
    """It fails while intake takes the request in: 500 for this request, which then was never admitted."""
    fields = {"guided_regex": f"{MARK}[a-z]*"}
    _, usual = await company(core, fields)
    real = GrammarCompiler.compile

    def compile_(self: GrammarCompiler, grammar: Grammar) -> GrammarMatcher:
        if MARK in grammar.source:
            _raise(Panic)
        return real(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "compile", compile_)
    failed, found = await company(core, fields)
    assert failed.status_code == 500
    assert failed.json()["error"]["code"] == "internal_error"
    assert found == usual


@pytest.mark.parametrize("always", [False, True], ids=["one turn", "every turn"])
async def test_own_01_a_reporter_that_raises(core: RealCore, monkeypatch: Patch, always: bool) -> None:
    """A turn that cannot be recorded is missing, and counted; nobody's answer, and no later turn, is the worse."""
    _, usual = await company(core, {})
    real = Recorder._arrived

    def arrived(self: Recorder, arrival: Any, start: int) -> None:
        if arrival.request.sampling.seed == CULPRIT:
            _raise(Planted)
        real(self, arrival, start)

    monkeypatch.setattr(Recorder, "_rows_of" if always else "_arrived", _raise_always if always else arrived)
    culprit, found = await company(core, {})
    assert culprit.status_code == 200, "nor is the answer of the one that cannot be recorded"
    assert found == usual
    assert core.engine.health is Health.OK
    missing = core.engine.stats().turns_unrecorded_total
    assert missing > 1 if always else missing == 1
    monkeypatch.undo()
    later = await ask(core, TEXT, {"text": "later"})
    await core.engine.stop()
    assert core.built.ledger_path is not None
    with LedgerReader(core.built.ledger_path) as reader:
        (row,) = reader.requests_named(later.headers["x-ekiden-request-id"])
        assert reader.end(row.request) is not None, "what comes later is recorded as ever"
        first, last = reader.bounds()
        assert last - first + 1 - len(reader.turns(first, last)) == missing, "the gap shows what is missing"


def _raise_always(*arguments: Any) -> None:
    raise Planted("planted")


async def test_own_01_two_culprits_in_one_batch(core: RealCore, monkeypatch: Patch) -> None:
    """Halving finds each of them; the model computes no other request's row in vain more than a few times."""
    fields = in_the_model(monkeypatch)
    with monkeypatch.context():
        pair = [ask(core, TEXT, {"text": f"evil {at}", "seed": CULPRIT, **fields}) for at in range(2)]
        others = [ask(core, path, dict(fields)) for path, fields in NEIGHBOURS]
        answers = await asyncio.gather(*pair, *others)
    assert [answer.status_code for answer in answers] == [500, 500, *[200] * len(NEIGHBOURS)]
    assert core.engine.stats().steps_run_again_total in (1, 2)


# --- values that no arithmetic can bear


@pytest.mark.parametrize("penalty", [1e-300, 1e-40, 5e-324, 0.0, -0.0, 0.009, 10.1, 1e300, 2**63, 2**64, -1])
@pytest.mark.parametrize("path", [TEXT, CHAT])
async def test_own_01_penalties_that_cannot_be_used_are_refused(core: RealCore, path: str, penalty: float) -> None:
    answer = await ask(core, path, {"temperature": 1, "repetition_penalty": penalty})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "repetition_penalty"
    assert "0.01 and 10" in error["message"]


@pytest.mark.parametrize("more", [{"top_p": 1e-300}, {"top_k": 1}, {"min_p": 1.0}, {"min_p": 5e-324}, {"logprobs": 5}])
@pytest.mark.parametrize("penalty", [0.01, 10])
async def test_own_01_the_outermost_penalties_give_sound_answers(
    core: RealCore, penalty: float, more: dict[str, Any]
) -> None:
    bias = {"1": 100.0, "2": -100.0}
    fields = {"temperature": 1e-5, "repetition_penalty": penalty, "presence_penalty": 2, "frequency_penalty": -2}
    answer = await ask(core, TEXT, {**fields, "logit_bias": bias, **more})
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == TOKENS


async def test_own_02_no_token_is_left_to_choose(core: RealCore) -> None:
    """Where every token ends the answer and none may come yet, that is known at once."""
    every = list(range(core.built.parts.card.vocab_size))
    answer = await ask(core, TEXT, {"temperature": 1, "min_tokens": 5, "stop_token_ids": every})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "stop_token_ids"
    fine = await ask(core, TEXT, {"temperature": 1, "min_tokens": 5, "stop_token_ids": every[:-1], "ignore_eos": False})
    assert fine.status_code == 200
    assert fine.json()["choices"][0]["finish_reason"] in ("stop", "length")


async def test_own_02_a_grammar_that_allows_only_what_may_not_come(core: RealCore) -> None:
    """A grammar at its end allows only end tokens: then they may come, whatever ``min_tokens`` says."""
    answer = await ask(core, TEXT, {"guided_regex": "ab", "min_tokens": 9, "ignore_eos": False})
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"] == "ab"


@pytest.mark.parametrize("number", [2**31, 2**53, 2**63 - 1, 2**63, 2**64, 2**64 + 1, 10**30, -2, -(2**63), -(2**64)])
@pytest.mark.parametrize("path", [TEXT, CHAT])
async def test_own_03_a_top_k_that_no_message_holds_is_refused(core: RealCore, path: str, number: int) -> None:
    answer = await ask(core, path, {"temperature": 1, "top_k": number})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "top_k"
    assert "2147483647" in answer.json()["error"]["message"]


def test_own_03_every_whole_number_that_the_engine_is_sent_is_bounded() -> None:
    """The messages between the processes hold 64 bits. Token ids are bounded by the vocabulary."""
    from ekiden.state.sampling_params import BOUNDS

    whole = {name for name, kind in SamplingParams.__annotations__.items() if kind in (int, int | None)}
    assert whole, "the annotations are types"
    for name in whole:
        least, most = BOUNDS[name].least, BOUNDS[name].most
        for edge in (least, most):
            assert edge is not None, name
            params = msgspec.structs.replace(SamplingParams(), **{name: int(edge)})
            assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


# --- a head with more rows than the tokenizer has tokens


PADDED = VOCAB_SIZE + 77


@pytest.fixture
async def padded() -> AsyncIterator[RealCore]:
    async with real_core(small(), vocab_size=PADDED) as core:
        yield core
        await core.clean()


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.3, "seed": 1}, {"temperature": 0.7, "top_k": 5, "seed": 2}])
async def test_own_05_ids_without_a_token_are_never_chosen(padded: RealCore, fields: dict[str, Any]) -> None:
    """The fake model wants one in each few of its answers."""
    bias = {str(token): 100.0 for token in range(VOCAB_SIZE, PADDED)}
    for more in ({}, {"logit_bias": bias}, {"min_tokens": 20}):
        answers = await asyncio.gather(
            *(
                ask(padded, TEXT, {"text": f"text {at}", "max_tokens": 20, "return_token_ids": True, **fields, **more})
                for at in range(8)
            )
        )
        for answer in answers:
            assert answer.status_code == 200, answer.text
            ids = answer.json()["choices"][0]["token_ids"]
            assert len(ids) == 20
            assert max(ids) < VOCAB_SIZE


async def test_own_05_structured_output_beside_plain_answers(padded: RealCore) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    shape = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    answers = await asyncio.gather(
        *(ask(padded, CHAT, {"text": f"{at}", "response_format": shape, "ignore_eos": False, "temperature": at % 2,
                             "max_tokens": 40}) for at in range(6)),
        ask(padded, TEXT, {}),
    )  # fmt: skip
    assert [answer.status_code for answer in answers] == [200] * 7
    for answer in answers[:6]:
        assert json.loads(answer.json()["choices"][0]["message"]["content"])["a"] in ("x", "y")


async def test_own_05_log_probabilities_know_no_ids_without_a_token(padded: RealCore) -> None:
    answer = await ask(padded, TEXT, {"logprobs": 5, "prompt_logprobs": 20, "text": "a few tokens"})
    choice = answer.json()["choices"][0]
    named = {int(token) for place in choice["prompt_logprobs"][1:] for token in place}
    assert max(named) < VOCAB_SIZE
