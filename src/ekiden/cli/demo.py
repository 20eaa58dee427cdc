"""``ekiden demo``: the defining example. Short answers finish and hand their slot to a waiting request at the next step
under continuous batching; under static batching the slot stays empty until the longest answer of the batch has ended.

Both runs share the model, the engine and every line of it but the batching policy, so the tokens must be identical:
exit status 1 when they are not.
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from ekiden.build.core import build_core
from ekiden.build.progress import progress
from ekiden.cli.figures_table import table_of
from ekiden.cli.options import Resolved, settings_options
from ekiden.cli.terminal import out
from ekiden.config import BATCHING, Config
from ekiden.dashboard.slot_svg import colours, letters
from ekiden.engine.driver import Answer, run_batch
from ekiden.engine.parts import EngineParts
from ekiden.errors import UserError
from ekiden.evaluation.benches.engine import answer_figures, plain_request, scheduled, sized
from ekiden.evaluation.charts.slot_chart import axis, chart_rows, coloured
from ekiden.evaluation.charts.slot_html import ChartData, TableData, page
from ekiden.evaluation.charts.slots import SlotFigures, slot_figures
from ekiden.evaluation.charts.trace import SlotStep, StepRecorder
from ekiden.evaluation.workloads.synthetic import DemoPrompt, demo_prompts
from ekiden.measure.figures import Figures
from ekiden.state.sampling_params import SamplingParams

OTHERS = [name for name in BATCHING if name != "continuous"]
"""What continuous batching can be compared with."""
SLOT_LABEL = 8
MOST_COLUMNS = 160
FORMULAS = (
    "TTFT: first token - arrival. E2E: last token - arrival. Throughput: output tokens / duration. Slot utilisation: "
    "slot-steps that computed a running request / (slots x steps). Freed slot stayed empty: steps between the last "
    "step of a request and the first of the next one in its slot. All requests arrive at the start; greedy; a warm-up "
    "is left out. Percentiles interpolate linearly."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRun:
    """What one policy did."""

    batching: str
    steps: Sequence[SlotStep]
    slots: SlotFigures
    answers: list[Answer]
    duration: float

    @property
    def figures(self) -> Figures:
        return answer_figures(self.answers, self.duration)


@click.command()
@settings_options("model", "cache", "engine")
@click.option("--against", type=click.Choice(OTHERS), default="static", help="the other policy  [default: static]")
@click.option("--slots", type=click.IntRange(min=1), default=8, help="requests that run at once  [default: 8]")
@click.option("--out", "folder", default="demo-out", metavar="FOLDER", help="where the HTML goes  [default: demo-out]")
@click.option("--show-text", is_flag=True, help="also print the answers")
def command(resolved: Resolved, against: str, slots: int, folder: str, show_text: bool) -> None:
    """Show static, or another policy, against continuous batching on 24 real prompts."""
    from ekiden.build.model import load_described
    from ekiden.cli.loading import describe_model
    from ekiden.models.conversation import chat_token_ids

    target = _make_folder(folder)
    # No limit on a step's predicted time, so that who runs when is the same on every machine.
    config = scheduled(sized(resolved.config, slots), target_itl_ms=0.0)
    model = describe_model(config)
    prompts = demo_prompts()
    token_ids = [
        chat_token_ids(model.tokenizer, model.chat_template, [{"role": "user", "content": p.prompt}]) for p in prompts
    ]
    parts = load_described(config, model)
    console, limits = out(), [prompt.max_tokens for prompt in prompts]
    console.print(
        f"[bold]{len(prompts)} real prompts over {slots} slots[/bold] on {parts.card.model_id}. Answers are cut at "
        f"{min(limits)} to {max(limits)} tokens, one long one among each eight.\n"
    )
    try:
        _warm_up(parts, config, token_ids[:slots])
        arms = [scheduled(config, batching=arm) for arm in (against, "continuous")]
        runs = [run_arm(parts, arm, prompts, token_ids) for arm in arms]
    finally:
        parts.runner.close()
    tokens = [[answer.token_ids for answer in run.answers] for run in runs]
    same = tokens[0] == tokens[1]
    show(console, runs, prompts, slots)
    if show_text:
        for prompt, answer in zip(prompts, runs[-1].answers, strict=True):
            console.print(Text(f"\n> {prompt.prompt}", "bold"))
            console.print(Text(model.tokenizer.decode(answer.token_ids)))
    file = target / "demo.html"
    file.write_text(html(runs, prompts, slots, same=same, model=parts.card.model_id), encoding="utf-8")
    console.print(f"The charts as a page: {file}", soft_wrap=True)
    verdict = "identical" if same else "DIFFERENT, which must not be"
    console.print(f"The tokens of the two runs are [bold]{verdict}[/bold].")
    if not same:
        raise click.exceptions.Exit(1)


def run_arm(
    parts: EngineParts, config: Config, prompts: Sequence[DemoPrompt], token_ids: Sequence[list[int]]
) -> ArmRun:
    """All prompts through a fresh engine under the policy of ``config``."""
    recorder = StepRecorder()
    core = build_core(parts, config, recorder=recorder)
    start = time.monotonic()
    requests = [
        plain_request(prompt.id, tokens, SamplingParams(temperature=0.0, max_tokens=prompt.max_tokens), start)
        for prompt, tokens in zip(prompts, token_ids, strict=True)
    ]
    with progress(config.scheduler.batching, len(requests)) as advance:
        answers = run_batch(core, requests, on_finish=lambda answer: advance())
    if lost := [answer.request.request_id for answer in answers if answer.finish is None]:
        raise UserError(f"the engine refused {', '.join(lost)}; give it more memory with --kv-cache-size")
    return ArmRun(
        batching=config.scheduler.batching,
        steps=recorder.steps,
        slots=slot_figures(recorder.steps, config.scheduler.max_num_seqs),
        answers=answers,
        duration=time.monotonic() - start,
    )


def _warm_up(parts: EngineParts, config: Config, token_ids: Sequence[list[int]]) -> None:
    """The first passes of a model are slow, and no policy should pay for them."""
    few, now = SamplingParams(temperature=0.0, max_tokens=2), time.monotonic()
    requests = [plain_request(str(index), tokens, few, now) for index, tokens in enumerate(token_ids)]
    run_batch(build_core(parts, config), requests)


def _make_folder(name: str) -> Path:
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}; name another with --out") from error
    return folder


# --- what is shown


def show(console: Console, runs: Sequence[ArmRun], prompts: Sequence[DemoPrompt], slots: int) -> None:
    """Both charts on one time scale, then the figures."""
    ids = [prompt.id for prompt in prompts]
    names = letters(ids)
    paint = {names[request_id]: colour for request_id, colour in colours(ids).items()}
    width = min(MOST_COLUMNS, console.width if console.is_terminal else shutil.get_terminal_size().columns) - SLOT_LABEL
    per_column = max(run.slots.seconds for run in runs) / max(20, width)

    def print_line(label: str, line: Text) -> None:
        console.print(Text(f"{label:<{SLOT_LABEL}}") + line, no_wrap=True, overflow="ignore", crop=False)

    for run in runs:
        console.print(f"[bold]{run.batching}[/bold]: {run.slots.steps} steps in {run.duration:.1f} s")
        rows = chart_rows(run.steps, slots, names, seconds_per_column=per_column)
        for slot, row in enumerate(rows):
            print_line(f"slot {slot}", coloured(row, paint))
        print_line("", Text(axis(max(map(len, rows)), per_column), "dim"))
        console.print()
    longest = sorted(prompts, key=lambda prompt: -prompt.max_tokens)[:3]
    told = ", ".join(sorted(names[prompt.id] for prompt in longest))
    console.print(Text(f"A letter is a request, · an empty slot. The long answers are {told}.\n"))
    console.print(table_of(["", *(run.batching for run in runs)], figure_rows(runs)))
    console.print(f"{FORMULAS}\n", style="dim")


def figure_rows(runs: Sequence[ArmRun]) -> list[list[str]]:
    """The rows of the table: a name, then each run's value."""

    def cells(figures: Figures, slots: SlotFigures) -> dict[str, str]:
        spreads = {"TTFT": figures["ttft_seconds"], "E2E": figures["e2e_seconds"]}
        rate, empty = figures["output_tokens_per_second"], slots.handover_steps or (0,)
        return {
            **{
                f"{name} {level}": f"{points[level]:.2f} s" if isinstance(points, Mapping) else "-"
                for name, points in spreads.items()
                for level in ("p50", "max")
            },
            "throughput": f"{rate:,.0f} tok/s" if isinstance(rate, float) else "-",
            "output tokens": str(figures["output_tokens"]),
            "steps": str(slots.steps),
            "slot utilisation": f"{slots.slot_utilisation:.0%}",
            "freed slot stayed empty, mean": f"{sum(empty) / len(empty):.1f} steps",
            "freed slot stayed empty, max": f"{max(empty)} steps",
        }

    columns = [cells(run.figures, run.slots) for run in runs]
    return [[name, *(column[name] for column in columns)] for name in columns[0]]


def html(runs: Sequence[ArmRun], prompts: Sequence[DemoPrompt], slots: int, *, same: bool, model: str) -> str:
    """The page with both charts, the figures and the prompts."""
    names = letters([prompt.id for prompt in prompts])
    charts = [
        ChartData(
            title=f"{run.batching}: {run.slots.steps} steps, {run.duration:.1f} s", steps=run.steps, num_slots=slots
        )
        for run in runs
    ]
    verdict = "identical" if same else "different, which must not be"
    columns = ["", *(run.batching for run in runs)]
    asked = [
        [names[prompt.id], prompt.prompt, str(len(answer.token_ids))]
        for prompt, answer in zip(prompts, runs[-1].answers, strict=True)
    ]
    return page(
        f"{runs[0].batching.capitalize()} against continuous batching",
        f"{len(prompts)} real prompts over {slots} slots on {model}; the same engine under two policies. The tokens of "
        f"the two runs are {verdict}.",
        charts,
        [
            TableData(heading="Figures", columns=columns, rows=figure_rows(runs), note=FORMULAS),
            TableData(heading="Requests", columns=["", "prompt", "answer tokens"], rows=asked),
        ],
        names=names,
        about={prompt.id: prompt.prompt for prompt in prompts},
    )
