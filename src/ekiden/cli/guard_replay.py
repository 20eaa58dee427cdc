"""``ekiden guard lead``: what rules would have done on a recorded run, and how long before its misses."""

from typing import Any

import click
import msgspec

from ekiden.cli.options import Resolved
from ekiden.cli.runs import folder_options, open_run
from ekiden.cli.terminal import out, plain_table, print_json, say


@click.command(name="lead")
@click.argument("run", metavar="[RUN]", required=False)
@folder_options
@click.option("--guard-rules", "rules_file", metavar="FILE.toml", help="rules to try; default: those of the package")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def command(resolved: Resolved, run: str | None, rules_file: str | None, as_json: bool) -> int:
    """Try the guard's rules on a record: what each would have done, and when.

    RUN is its id, the beginning of it, a file, or `last` (the default). The lead is the time from a rule's first step
    to when more requests had missed the objectives than these allow of all that were offered.
    """
    from ekiden.evidence.lead import leads
    from ekiden.guardrails.rules import load_rules

    rules = load_rules(rules_file)
    with open_run(resolved, run) as reader:
        told = leads(reader, rules)
    missed = told.misses.missed_at
    if as_json:
        found: dict[str, Any] = msgspec.to_builtins(told)
        print_json(found | {"missed_at": missed})
        return 0
    goal, misses = told.objectives, told.misses
    say(
        f"Run {told.run_id}, {told.seconds:.0f} s: {len(misses.times)} of {misses.offered} requests missed a first "
        f"token within {goal.ttft_seconds:g} s and {goal.tpot_seconds:g} s per token; {misses.allowed} may."
    )
    say("The objective was kept." if missed is None else f"The objective was missed at {missed:.1f} s.")
    rows = (
        [
            lead.rule,
            lead.signal,
            "-" if lead.fired_at is None else f"{lead.fired_at:.1f} s",
            "-" if lead.lead_seconds is None else f"{lead.lead_seconds:.1f} s",
            ", ".join(f"{taken.at:.0f} s to rung {taken.after}" for taken in lead.steps[:6]),
            lead.owner,
        ]
        for lead in told.rules
    )
    out().print(plain_table("rule", "signal", "fired at", "before the miss", "steps", "owner", rows=rows))
    for lead in told.rules:
        if lead.steps:
            say(f"{lead.rule}: {lead.steps[0].why}")
    return 0
