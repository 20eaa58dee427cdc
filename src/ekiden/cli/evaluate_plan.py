"""``ekiden evaluate init`` and ``register``: a plan is written, and then fixed before its result is known."""

import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ekiden.cli.terminal import err, out, plain_table, print_json, say
from ekiden.errors import UserError

if TYPE_CHECKING:
    from ekiden.evaluation.plan.model import Plan
    from ekiden.evaluation.plan.parts import Known

DEFAULT_PLAN = "evaluation.toml"

# field -> (flag, what is asked)
DECISION = {
    "question": ("--question", "What is to be decided?"),
    "affected": ("--affected", "Whose requests shall the figures speak for?"),
    "wrong_result": ("--wrong-result", "What does a wrong answer cost, and whom?"),
    "known_at_decision_time": ("--known", "What does the scheduler know when it decides?"),
    "simplest_alternative": ("--alternative", "What is the simplest credible alternative?"),
    "owner": ("--owner", "Who decides, and answers for it?"),
}
OBJECTIVES = {
    "ttft": ("--ttft", "Within how many seconds must an answer begin?"),
    "tpot": ("--tpot", "How many seconds may lie between its tokens, on average?"),
    "attainment": ("--attainment", "What share of all requests must be answered so?"),
}


def folder_of(plan: Path) -> Path:
    """Where the evaluation of a plan is kept unless told otherwise: beside it, under its name."""
    return plan.with_suffix("") if plan.suffix else plan.with_name(f"{plan.name}.evaluation")


@click.command()
@click.argument("plan", metavar=f"[PLAN={DEFAULT_PLAN}]", default=DEFAULT_PLAN, type=click.Path(path_type=Path))
@click.option(
    "--profile", "name", type=click.Choice(["quick", "full"]), default="full", show_default=True,
    help="quick takes minutes and is coarse; full takes about an hour",
)  # fmt: skip
@click.option("--question", help="what is to be decided")
@click.option("--affected", help="the population: whose requests the figures shall speak for")
@click.option("--wrong-result", help="what a wrong answer costs, and whom")
@click.option("--known", "known_at_decision_time", help="what the scheduler knows when it decides")
@click.option("--alternative", "simplest_alternative", help="the simplest credible alternative")
@click.option("--owner", help="who decides, and answers for it  [default: your login name]")
@click.option("--ttft", type=float, help="seconds within which an answer must begin")
@click.option("--tpot", type=float, help="seconds that may lie between tokens, on average over an answer")
@click.option("--attainment", type=float, help="share of all offered requests that must be good, such as 0.99")
@click.option("--price", type=float, help="price of an hour of the machine, for the cost of a good answer")
@click.option("--currency", help="of the price, such as EUR or JPY")
@click.option("--model", help="catalog name, .gguf file, model folder, or org/name on a hub")
@click.option(
    "--fit/--no-fit", default=True, help="measure this machine and set each rate to its share of what it can do"
)
@click.option("--force", is_flag=True, help="replace PLAN if it exists")
def init(plan: Path, name: str, price: float | None, model: str | None, fit: bool, force: bool, **given: Any) -> None:
    """Write a plan: what is to be decided, and what would decide it.

    Asks what no flag says, on a terminal only; elsewhere the profile's words are taken, and named.
    """
    from ekiden.evaluation.plan.read import parse_plan
    from ekiden.evaluation.plan.write import filled, profile

    if plan.exists() and not force:
        raise UserError(f"{plan} exists; give another name, or --force to replace it")
    text = profile(name)
    values = _stated(text, given)
    if price is not None:
        values["objectives"]["price_per_machine_hour"] = price
    if given["currency"] is not None:
        values["objectives"]["currency"] = given["currency"]
    if model is not None:
        values["engine"] = {"model": model}
    text = filled(text, values)
    read = parse_plan(text, known_names(), where="what was given")
    if fit:
        text = filled(text, {}, workloads={each: {"rate": rate} for each, rate in _rates(read).items()})
    try:
        plan.parent.mkdir(parents=True, exist_ok=True)
        plan.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {plan}: {error.strerror or error}") from error
    say(f"{plan}: read it, change what is not yours, and then fix it with `ekiden evaluate register {plan}`")


@click.command()
@click.argument("plan", metavar=f"[PLAN={DEFAULT_PLAN}]", default=DEFAULT_PLAN, type=click.Path(path_type=Path))
@click.option("--folder", type=click.Path(path_type=Path), help="of the evaluation  [default: PLAN without .toml]")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def register(plan: Path, folder: Path | None, as_json: bool) -> None:
    """Fix PLAN before its result is known: with its data, the model, this machine, and the analysis.

    Note the digest that this prints where others can see it.
    """
    from ekiden.cli.loading import load_model
    from ekiden.config import Config
    from ekiden.evaluation.plan import registration
    from ekiden.evaluation.plan.basis import basis_of
    from ekiden.evaluation.plan.read import read_plan
    from ekiden.evaluation.plan.settings import with_settings

    known, folder = known_names(), folder or folder_of(plan)
    read = read_plan(plan, known)
    parts = load_model(with_settings(Config(), {"model": read.engine.model, **read.engine.settings}))
    try:
        basis = basis_of(read, parts.card.lineage.as_object())
    finally:
        parts.runner.close()
    made = registration.register(plan, folder, known, basis)
    if as_json:
        print_json({"digest": made.digest, "plan": made.plan_digest, "analysis": basis.analysis, "folder": str(folder)})
        return
    _tell(read)
    earlier = registration.superseded(folder)
    for line in earlier:
        say(line)
    say(
        f"\nregistered in {folder}: {len(read.arms)} arms, {len(basis.workloads)} blocks of {len(read.workloads)} "
        f"workloads, {len(basis.data)} data files\ndigest [bold]{made.digest}[/bold]\n"
        "Note it where others can see it: only that shows a journal that was rewritten whole."
    )


def _rates(plan: "Plan") -> dict[str, float]:
    """By workload, what makes its load on this machine."""
    from ekiden.cli.loading import describe_model
    from ekiden.evaluation.experiment.capacity import fitted_rates
    from ekiden.evaluation.experiment.subjects import EngineSubjects

    subjects = EngineSubjects(plan, Path(), describe=describe_model)
    try:
        say("measuring this machine, so that the rates suit it")
        rates = fitted_rates(plan, subjects)
    finally:
        subjects.close()
    for name, rate in rates.items():
        say(f"  {name}: {rate:g} requests a second")
    return rates


def _stated(text: str, given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What the flags say, then what is answered; the rest stays as the profile has it."""
    import tomllib

    default = tomllib.loads(text)
    default["decision"]["owner"] = default["decision"]["owner"] or _login()
    values: dict[str, dict[str, Any]] = {"decision": {}, "objectives": {}}
    asking, taken = _may_ask(), []
    for section, questions in (("decision", DECISION), ("objectives", OBJECTIVES)):
        for field, (flag, question) in questions.items():
            value = given[field]
            if value is None and asking:
                value = click.prompt(question, default=default[section][field], err=True)
            elif value is None:
                taken.append(flag)
                value = default[section][field]
            values[section][field] = value
    if taken:
        err().print(f"not stated, so as the profile has it: {', '.join(taken)}", soft_wrap=True)
    return values


def _may_ask() -> bool:
    return sys.stdin.isatty()


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return ""


def known_names() -> "Known":
    """The names that this version of Ekiden knows."""
    from ekiden.evaluation.analysis.metrics import METRICS
    from ekiden.evaluation.plan.parts import Known
    from ekiden.evaluation.workloads.changes import CHANGES
    from ekiden.evaluation.workloads.sources import SOURCES, check

    return Known(
        metrics={name: metric.direction for name, metric in METRICS.items()},
        sources=SOURCES,
        changes=CHANGES,
        check_workload=check,
    )


def _tell(plan: "Plan") -> None:
    """What is fixed."""
    from ekiden.evaluation.plan.read import remarks, workloads_of

    rows = []
    for metric in plan.metrics:
        success, failure = metric.success_condition or "", metric.failure_condition or ""
        if metric.margin is not None:
            success = f"worse by {metric.margin:g} at most"
        critical = "critical" if metric.critical else ""
        rows.append((metric.name, ", ".join(workloads_of(metric, plan)), success, failure, critical))
    out().print(plain_table("metric", "workloads", "succeeds", "fails", "", rows=rows))
    for falsifier in plan.falsifies:
        say(f"falsified if {falsifier.metric} on {falsifier.workload}: {falsifier.condition} ({falsifier.claim})")
    say(f"{plan.confirm.blocks} blocks, each bound at {plan.confirm.confidence:.0%}")
    for remark in remarks(plan):
        say(f"note: {remark}")


__all__ = ["folder_of", "init", "known_names", "register"]
