"""``ekiden evaluate run``, ``confirm`` and ``report``: the runs of a plan, and what they say.

The exit status is the verdict: 0 adopt, 3 do not adopt, 4 inconclusive; 1 when the run was given up, 2 for a mistake of
the caller. Ctrl-C stops after the answers in flight are dropped; the same command goes on where it stopped.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ekiden.cli.evaluate_plan import DEFAULT_PLAN, folder_of, known_names
from ekiden.cli.terminal import err, out, plain_table, print_json, say

if TYPE_CHECKING:
    from ekiden.evaluation.experiment.phases import Evaluation
    from ekiden.evaluation.outcome import MetricOutcome, Outcome
    from ekiden.evaluation.plan.model import Plan

_PLAN = click.argument("plan", metavar=f"[PLAN={DEFAULT_PLAN}]", default=DEFAULT_PLAN, type=click.Path(path_type=Path))
_FOLDER = click.option(
    "--folder", type=click.Path(path_type=Path), help="of the evaluation  [default: PLAN without .toml]"
)
_LANG = click.option(
    "--lang", "language", type=click.Choice(["en", "ja"]), default="en", show_default=True, help="of the report"
)
_JSON = click.option("--json", "as_json", is_flag=True, help="print the report's JSON")
_GIVEN_UP = 1


@click.command()
@_PLAN
@_FOLDER
@_LANG
@_JSON
def run(plan: Path, folder: Path | None, language: str, as_json: bool) -> int:
    """Tune the baselines on dev data and serve every arm there: what to expect, and how many blocks that takes.

    What this says is exploratory, whatever it says.
    """
    return _conducted(plan, folder, language, as_json, phase="explore")


@click.command()
@_PLAN
@_FOLDER
@_LANG
@_JSON
def confirm(plan: Path, folder: Path | None, language: str, as_json: bool) -> int:
    """Make the one run that counts, on data that nobody has tuned on. The plan must be registered."""
    return _conducted(plan, folder, language, as_json, phase="confirm")


@click.command()
@_PLAN
@_FOLDER
@_LANG
@_JSON
def report(plan: Path, folder: Path | None, language: str, as_json: bool) -> int:
    """Write the report again from what is stored. What was changed since registration is shown in it."""
    evaluation = _evaluation(plan, folder)
    return _tell(evaluation, evaluation.report(), language, as_json)


def _conducted(plan: Path, folder: Path | None, language: str, as_json: bool, *, phase: str) -> int:
    from ekiden.evaluation.experiment.serving import StoppedError

    evaluation = _evaluation(plan, folder)
    try:
        outcome = evaluation.explore() if phase == "explore" else evaluation.confirm()
    except StoppedError as stopped:
        err().print(f"The run was given up: {stopped}. What was served is kept in {evaluation.folder}.")
        return _GIVEN_UP
    except KeyboardInterrupt:
        err().print(f"Stopped. The same command goes on from what is kept in {evaluation.folder}.")
        raise
    return _tell(evaluation, outcome, language, as_json)


def _evaluation(plan: Path, folder: Path | None) -> "Evaluation":
    from ekiden.build.progress import progress
    from ekiden.cli.loading import describe_model
    from ekiden.evaluation.experiment.phases import Evaluation
    from ekiden.evaluation.experiment.subjects import EngineSubjects

    def subjects(read: "Plan", ledger_folder: Path) -> EngineSubjects:
        return EngineSubjects(read, ledger_folder, describe=describe_model)

    def bar(label: str, total: int) -> Any:
        return progress(label, total, "runs")

    return Evaluation(read_plan_at(plan), plan, folder or folder_of(plan), subjects, bar=bar)


def read_plan_at(path: Path) -> "Plan":
    """Raises :class:`ekiden.errors.UserError` with all its faults."""
    from ekiden.evaluation.plan.read import read_plan

    return read_plan(path, known_names())


def _tell(evaluation: "Evaluation", outcome: "Outcome", language: str, as_json: bool) -> int:
    from ekiden.evaluation.analysis.analyse import exit_status
    from ekiden.evaluation.outcome import Label
    from ekiden.evaluation.report.write import write_report

    evaluation.write_requests()
    # What is exploratory never takes the place of a confirmation's report.
    confirmed = outcome.label is Label.CONFIRMATORY or outcome.integrity
    page, _ = write_report(outcome, evaluation.folder if confirmed else evaluation.folder / "exploratory", [language])
    if as_json:
        print_json(msgspec.to_builtins(outcome))
    else:
        _print(outcome, language)
        say(f"\nThe report: {page}")
    return int(exit_status(outcome))


def _print(outcome: "Outcome", language: str) -> None:
    """The verdict and its grounds; all else is in the report."""
    for falsifier in outcome.falsifiers:
        if falsifier.met:
            say(f"FALSIFIED: {falsifier.claim} ({falsifier.observed})")
    for finding in outcome.integrity:
        say(f"CHANGED: {finding}")
    say(f"[bold]{outcome.verdict.value.upper()}[/bold] ({outcome.label.value}). {outcome.summary[language]}\n")
    rows = [_row(metric) for metric in outcome.metrics if metric.critical or metric.success_condition]
    out().print(plain_table("metric", "workload", "against", "ratio", "interval", "phase", rows=rows))
    for line in outcome.void:
        say(f"void: {line}")
    for line in outcome.blocks_needed:
        say(line)


def _row(metric: "MetricOutcome") -> tuple[str, ...]:
    found = metric.comparison
    ratio = "not estimable" if found.ratio is None else f"{found.ratio:.3f}"
    low, high = ("-" if bound is None else f"{bound:.3f}" for bound in (found.low, found.high))
    name = f"{metric.metric} (critical)" if metric.critical else metric.metric
    return name, metric.workload, metric.baseline, ratio, f"{low} to {high}", metric.phase.value
