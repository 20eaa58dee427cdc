"""Faults that other servers had in batching, on the real model. Ids: docs/known-faults.md."""

import pytest

from ekiden.build.engines import build_llm
from ekiden.config import CacheConfig, Config, SchedulerConfig
from ekiden.engine.llm import LLM
from ekiden.engine.parts import EngineParts
from ekiden.state.request import Request, RequestUpdate, TokenLogprobs
from ekiden.state.sampling_params import SamplingParams

BLOCK = 32
CONFIG = Config(
    scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=256), cache=CacheConfig(enable_prefix_caching=True)
)


def run(llm: LLM, arrivals: list[tuple[int, str, tuple[int, ...], SamplingParams]]) -> dict[str, list[RequestUpdate]]:
    """Updates by name; each request enters before the step of its number."""
    updates: dict[str, list[RequestUpdate]] = {name: [] for _, name, _, _ in arrivals}
    step = 0
    while llm.core.has_work or any(at >= step for at, *_ in arrivals):
        for at, name, prompt, sampling in arrivals:
            if at == step:
                llm.core.add_request(
                    Request(request_id=name, prompt_token_ids=prompt, sampling=sampling, arrival_time=0.0)
                )
        for update in llm.core.step().updates:
            updates[update.request_id].append(update)
        llm.core.check_integrity()
        step += 1
    return updates


def tokens(updates: list[RequestUpdate]) -> list[int]:
    return [token for update in updates for token in update.token_ids]


def logprobs(updates: list[RequestUpdate]) -> list[TokenLogprobs]:
    return [told for update in updates for told in update.logprobs or ()]


@pytest.mark.parametrize("penalty", [{"frequency_penalty": 1.5}, {"repetition_penalty": 1.8}])
def test_pb_01_penalties_touch_their_own_row_only(parts: EngineParts, penalty: dict[str, float]) -> None:
    assert parts.tokenizer is not None
    prompt = tuple(parts.tokenizer.encode("one two one two one two", add_special_tokens=False))
    penalised = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, **penalty)  # type: ignore[arg-type]
    plain = SamplingParams(temperature=1.0, top_k=1, seed=7, max_tokens=20, ignore_eos=True)
    llm = build_llm(parts, CONFIG)
    alone = {
        "P": tokens(run(llm, [(0, "P", prompt, penalised)])["P"]),
        "Q": tokens(run(llm, [(0, "Q", prompt, plain)])["Q"]),
    }
    assert alone["P"][:20] != alone["Q"], "the penalty changed nothing"
    for order in ("PQ", "QP", "PPQ", "QQP"):
        arrivals = [
            (index, f"{kind}{index}", prompt, penalised if kind == "P" else plain) for index, kind in enumerate(order)
        ]
        for name, updates in run(llm, arrivals).items():
            assert tokens(updates) == alone[name[0]], f"{name} of {order} differs from itself alone"


def test_pb_05_a_prompt_that_the_cache_covers_whole_answers_the_same(parts: EngineParts) -> None:
    llm = build_llm(parts, CONFIG)
    sampling = SamplingParams(temperature=0.0, max_tokens=8, logprobs=1, ignore_eos=True)
    near = SamplingParams(temperature=0.0, max_tokens=1)
    least = parts.runner.info.chunks.least
    long = tuple((37 * index) % 9000 + 100 for index in range(3 * BLOCK + 2))
    for length in (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 1):
        seen = []
        for attempt in range(3):
            name = f"{length}-{attempt}"
            seen.append(run(llm, [(0, name, long[:length], sampling)])[name])
        seen += run(llm, [(0, f"{length}-copy{i}", long[:length], sampling) for i in range(4)]).values()
        for other in (length + 1, max(1, length - 1)):
            run(llm, [(0, f"{length}-near{other}", long[:other], near)])
        first = seen[0]
        for updates in seen:
            assert tokens(updates) == tokens(first)
            assert logprobs(updates) == logprobs(first)
            finish = updates[-1].finish
            assert finish is not None
            assert finish.num_prompt_tokens == length
            if updates is not first:
                assert finish.num_cached_tokens == max(0, length - least) // BLOCK * BLOCK < length


def test_r_09_every_token_has_its_logprob_also_where_a_stop_ends_it(parts: EngineParts) -> None:
    llm = build_llm(parts, CONFIG)
    assert parts.tokenizer is not None
    prompt = tuple(parts.tokenizer.encode("The capital of France is", add_special_tokens=False))
    free = SamplingParams(temperature=0.0, max_tokens=12, logprobs=2)
    whole = tokens(run(llm, [(0, "free", prompt, free)])["free"])
    text = parts.tokenizer.decode(whole)
    middle = text[len(text) // 2 : len(text) // 2 + 2]
    for name, sampling in {
        "string": SamplingParams(temperature=0.0, max_tokens=12, logprobs=2, stop=(middle,)),
        "token": SamplingParams(temperature=0.0, max_tokens=12, logprobs=2, stop_token_ids=(whole[4],)),
    }.items():
        updates = run(llm, [(0, name, prompt, sampling)])[name]
        assert sum(len(update.logprobs or ()) for update in updates) == len(tokens(updates)) > 0
        assert tokens(updates) == whole[: len(tokens(updates))]
