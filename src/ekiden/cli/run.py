"""``ekiden run PROMPTS.jsonl``: answers to a file of prompts, batched, in the order of the file.

Every line is checked before any work is done. Answers are written as soon as all before them are there; a file given
with ``-o`` gets its name only when it is whole.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import click
import msgspec

from ekiden.build.progress import progress
from ekiden.cli.options import ENGINE_ROOMS, Resolved, settings_options
from ekiden.cli.prompting import PromptLine, line_token_ids, read_line, sampling_of
from ekiden.cli.terminal import err
from ekiden.engine.llm import LLM, Completion
from ekiden.errors import UserError
from ekiden.models.load import ModelDescription
from ekiden.state.request import check_prompt
from ekiden.state.sampling_params import SamplingParams

MOST_NAMED_LINES = 5
Line = TypeVar("Line")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One line of the file, ready for the engine. ``number`` counts lines from 1."""

    number: int
    line: PromptLine
    token_ids: list[int]
    sampling: SamplingParams


@click.command()
@click.argument("prompts", metavar="PROMPTS.jsonl")
@settings_options(*ENGINE_ROOMS, model_argument=False)
@click.option("-o", "--output", metavar="FILE", help="write there and not to stdout")
def command(resolved: Resolved, prompts: str, output: str | None) -> None:
    """Answer a file of prompts offline: JSON lines in, JSON lines out.

    Each line of PROMPTS.jsonl ("-" is stdin) is an object with one of "prompt", "messages" and "prompt_token_ids", an
    "id" if you like, and sampling fields such as "max_tokens" and "temperature".
    """
    from ekiden.build.engines import build_llm
    from ekiden.build.model import load_described
    from ekiden.cli.loading import describe_model

    lines = read_lines(prompts)
    model = describe_model(resolved.config)
    limit = resolved.config.model.max_model_len or model.max_position_embeddings
    jobs = prepare(lines, model, limit, prompts)
    partial = Path(output + ".partial") if output else None
    opened = partial.open("wb") if partial else nullcontext(sys.stdout.buffer)
    with opened as sink, build_llm(load_described(resolved.config, model), resolved.config) as llm:
        failures = answer(llm, jobs, sink)
    if partial is not None and output is not None:
        partial.replace(output)
    if failures:
        err().print(f"{failures} of {len(jobs)} prompts failed; their lines say why", soft_wrap=True)
        raise click.exceptions.Exit(1)


def read_lines(name: str) -> list[tuple[int, PromptLine]]:
    """The lines that are not blank, with their numbers. Raises :class:`UserError` naming every bad one."""
    try:
        text = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror or error}") from error
    written = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not written:
        raise UserError(f"{name} holds no prompts")
    return _each(name, written, lambda number, line: (number, read_line(line)))


def prepare(lines: Iterable[tuple[int, PromptLine]], model: ModelDescription, limit: int, name: str) -> list[Job]:
    """Token ids and sampling of each line. Raises :class:`UserError` naming every line that cannot be run."""

    def job(number: int, line: PromptLine) -> Job:
        token_ids = line_token_ids(line, model.tokenizer, model.chat_template)
        refusal = check_prompt(token_ids, vocab_size=model.vocab_size, max_model_len=limit)
        if refusal is not None:
            raise ValueError(refusal.message)
        sampling = sampling_of(line, model.generation_defaults, vocab_size=model.vocab_size)
        return Job(number=number, line=line, token_ids=token_ids, sampling=sampling)

    return _each(name, lines, job)


def _each(name: str, lines: Iterable[tuple[int, Line]], make: Callable[[int, Line], Made]) -> list[Made]:
    """What ``make`` makes of each line; raises :class:`UserError` naming all lines of which it can make nothing."""
    made, bad = [], {}
    for number, line in lines:
        try:
            made.append(make(number, line))
        except (ValueError, UserError) as error:
            bad[number] = str(error)
    if bad:
        (first, reason), *others = bad.items()
        named = [str(number) for number, _ in others[:MOST_NAMED_LINES]] + ["..."] * (len(others) > MOST_NAMED_LINES)
        more = f"; {len(others)} more bad lines: {', '.join(named)}" if others else ""
        raise UserError(f"{name} line {first}: {reason}{more}")
    return made


def answer(llm: LLM, jobs: Sequence[Job], sink: IO[bytes]) -> int:
    """Run all jobs and write their lines in order; returns how many failed."""
    done: dict[int, Completion] = {}
    written = 0
    with progress("run", len(jobs), "prompts") as advance:

        def finished(completion: Completion) -> None:
            nonlocal written
            done[completion.index] = completion
            advance()
            while written in done:
                sink.write(msgspec.json.encode(_result(jobs[written], done[written])) + b"\n")
                written += 1
            sink.flush()

        prompts, sampling = [job.token_ids for job in jobs], [job.sampling for job in jobs]
        # A line without a limit means what it means over HTTP: the rest of the context.
        completions = llm.generate(prompts, sampling, max_tokens=None, on_finish=finished)
    return sum(_error(completion) is not None for completion in completions)


def _error(completion: Completion) -> str | None:
    end = completion.refusal or completion.finish
    assert end is not None, "a completion has ended or was refused"
    return end.message


def _result(job: Job, completion: Completion) -> dict[str, Any]:
    row: dict[str, Any] = {"index": completion.index, "line": job.number}
    if job.line.id is not None:
        row["id"] = job.line.id
    row["text"] = completion.text
    finish = completion.finish
    row["finish_reason"] = finish.reason.value if finish is not None else "refused"
    if finish is not None:
        row["stop_reason"] = finish.stop_reason
        row["usage"] = {
            "prompt_tokens": finish.num_prompt_tokens,
            "completion_tokens": finish.num_output_tokens,
            "total_tokens": finish.num_prompt_tokens + finish.num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": finish.num_cached_tokens},
        }
    if (error := _error(completion)) is not None:
        row["error"] = error
    return row
