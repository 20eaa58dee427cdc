"""Prompt files: what a line may be, what is refused by number, and the order of the answers."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from ekiden.backends.fake import FakeRunner
from ekiden.build.engines import build_llm
from ekiden.cli.prompting import read_line, sampling_of
from ekiden.cli.run import Job, answer, read_lines
from ekiden.config import CacheConfig, Config, SchedulerConfig
from ekiden.engine.interface import ModelCard
from ekiden.engine.parts import EngineParts
from ekiden.errors import UserError
from ekiden.state.sampling_params import SamplingParams


def write(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_lines_keep_their_numbers_and_blank_ones_are_passed_over(tmp_path):
    name = write(tmp_path, '{"prompt":"a"}', "", "  ", '{"prompt_token_ids":[1]}')
    assert [number for number, _ in read_lines(name)] == [1, 4]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nope", "malformed"),
        ("[]", "Expected `object`"),
        ("{}", "one of prompt, messages, prompt_token_ids is needed, and there is none"),
        ('{"prompt":"a","prompt_token_ids":[1]}', "there is prompt and prompt_token_ids"),
        ('{"prompt":"a","max_tokns":1}', "max_tokns"),
        ('{"prompt":"a","max_tokens":"1"}', "max_tokens"),
        ('{"prompt":5}', "prompt"),
        ('{"messages":[{"content":"a"}]}', "needs a role"),
    ],
)
def test_a_bad_line_says_what_is_wrong(line, message):
    with pytest.raises(ValueError, match=".") as caught:
        read_line(line.encode())
    assert message in str(caught.value)


def test_bad_lines_are_named_by_number_before_any_work(tmp_path):
    name = write(tmp_path, '{"prompt":"a"}', "nope", '{"prompt":"a"}', *["{}"] * 7)
    with pytest.raises(UserError) as caught:
        read_lines(name)
    text = str(caught.value)
    assert f"{name} line 2: " in text
    assert text.endswith("; 7 more bad lines: 4, 5, 6, 7, 8, ...")


def test_a_file_without_prompts_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no prompts"):
        read_lines(write(tmp_path, "", ""))


def test_sampling_fields_go_over_the_models_defaults():
    line = read_line(b'{"prompt":"a","max_completion_tokens":5,"stop":"x","top_p":0.5,"stop_token_ids":[3]}')
    params = sampling_of(line, {"temperature": 0.6, "top_p": 0.9}, vocab_size=10)
    assert params == SamplingParams(temperature=0.6, top_p=0.5, max_tokens=5, stop=("x",), stop_token_ids=(3,))


@pytest.mark.parametrize("field", ['"temperature":-1', '"max_tokens":-1', '"stop":""', '"stop_token_ids":[10]'])
def test_sampling_that_cannot_work_names_its_field(field):
    line = read_line(b'{"prompt":"a",' + field.encode() + b"}")
    with pytest.raises(ValueError, match=field.split('"')[1]):
        sampling_of(line, {}, vocab_size=10)


def results(jobs: list[tuple[list[int], int]]) -> tuple[int, list[dict[str, Any]]]:
    runner = FakeRunner(max_model_len=64)
    card = ModelCard(
        model_id="fake",
        max_model_len=64,
        vocab_size=1000,
        block_size=16,
        num_blocks=256,
        created=0,
        fingerprint="f",
    )
    config = Config(
        cache=CacheConfig(block_size=16), scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64)
    )
    ready = [
        Job(
            number=index + 1,
            line=read_line(json.dumps({"id": f"job-{index}", "prompt_token_ids": tokens}).encode()),
            token_ids=tokens,
            sampling=SamplingParams(temperature=0.0, max_tokens=length),
        )
        for index, (tokens, length) in enumerate(jobs)
    ]
    sink = io.BytesIO()
    with build_llm(EngineParts(runner=runner, card=card), config) as llm:
        failures = answer(llm, ready, sink)
    return failures, [json.loads(line) for line in sink.getvalue().splitlines()]


def test_answers_come_in_the_order_of_the_file_though_they_end_in_another():
    failures, rows = results([([1, 2], 20), ([3], 2), ([4, 5, 6], 7)])
    assert failures == 0
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert [row["id"] for row in rows] == ["job-0", "job-1", "job-2"]
    assert [row["usage"]["completion_tokens"] for row in rows] == [20, 2, 7]
    assert rows[1]["usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": 2,
        "total_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert {row["finish_reason"] for row in rows} == {"length"}


def test_a_refused_prompt_has_a_line_that_says_why_and_counts_as_failed():
    failures, rows = results([([1] * 70, 2), ([1], 2)])
    assert failures == 1
    assert rows[0]["finish_reason"] == "refused"
    assert "64" in rows[0]["error"]
    assert rows[1]["finish_reason"] == "length"
