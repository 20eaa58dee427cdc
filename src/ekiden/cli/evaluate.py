"""``ekiden evaluate``: does continuous batching, or another change of scheduling, help here?

The usual order: ``init`` writes a plan, ``run`` tunes the baselines and shows what is to be expected (exploratory),
``register`` fixes the plan, ``confirm`` makes the one run that counts, ``report`` draws it again.
"""

import click

from ekiden.cli.lazy import LazyGroup

# command -> (where it lies, one line of help)
COMMANDS = {
    "init": ("ekiden.cli.evaluate_plan:init", "Write a plan: what is to be decided, by which figures."),
    "run": ("ekiden.cli.evaluate_run:run", "Tune the baselines and try the plan on dev data (exploratory)."),
    "register": ("ekiden.cli.evaluate_plan:register", "Fix the plan, the data and the analysis, tamper-evident."),
    "confirm": ("ekiden.cli.evaluate_run:confirm", "Make the one run that counts. Its status is the verdict."),
    "report": ("ekiden.cli.evaluate_run:report", "Write the report of an evaluation again, as HTML and JSON."),
    "workloads": ("ekiden.cli.evaluate_workloads:workloads", "List the workloads and changes of premise."),
    "load": ("ekiden.cli.evaluate_load:load", "Offer one workload to an engine or any server."),
    "sweep": ("ekiden.cli.evaluate_load:sweep", "Find the highest rate at which the objectives hold."),
    "project": ("ekiden.cli.evaluate_project", "Simulate more replicas or another machine."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def command() -> None:
    """Compare ways of scheduling, with thresholds fixed beforehand.

    All arms run on one engine and one trace, and the verdict can be "no".
    """
