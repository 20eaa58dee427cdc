"""``ekiden replay``: a recorded run through the production engine core again.

Without more, the recorded times and outcomes stand in for the model, and every decision must come out the same. With
a setting of the scheduler changed it tells what would have been; with ``--with-model`` it makes the tokens again.
"""

import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from ekiden.cli.options import Resolved
from ekiden.cli.runs import folder_of, folder_options, open_run
from ekiden.cli.scheduler_changes import with_changes
from ekiden.cli.terminal import out, plain_table, print_json, say
from ekiden.errors import UserError
from ekiden.evidence.reader import LedgerReader
from ekiden.evidence.runs import open_runs
from ekiden.evidence.words import seconds

_FIGURES = {
    "ttft_p50": "first token p50",
    "ttft_p99": "first token p99",
    "e2e_p50": "end to end p50",
    "e2e_p99": "end to end p99",
    "duration": "whole run",
    **{name: name for name in ("finished", "refused", "cut")},
}


@click.command()
@click.argument("run", metavar="[RUN]", required=False)
@folder_options
@with_changes
@click.option("--num-blocks", type=click.IntRange(min=1), help="what if the KV pool had held so many blocks")
@click.option("--with-model", metavar="MODEL", help="make the tokens again with this model (prompts must be kept)")
@click.option("--list", "list_runs", is_flag=True, help="list the recorded runs")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def command(
    resolved: Resolved,
    run: str | None,
    num_blocks: int | None,
    with_model: str | None,
    list_runs: bool,
    as_json: bool,
    **changes: Any,
) -> int:
    """Run a record again and compare every decision, or ask what would have been.

    RUN is its id, the beginning of it, a file, or `last` (the default). With no settings changed the recorded times and
    outcomes stand in for the model. With one changed, the recorded load is served again in simulated time.
    """
    changed = {name: value for name, value in changes.items() if value is not None}
    if list_runs:
        return _list(folder_of(resolved), as_json)
    with open_run(resolved, run) as reader:
        if with_model is not None:
            return _tokens(reader, resolved, with_model, as_json)
        if changed or num_blocks is not None:
            return _what_if(reader, changed, num_blocks, as_json)
        return _decisions(reader, as_json)


def _list(folder: Path, as_json: bool) -> int:
    found = []
    for reader in open_runs(folder):
        with reader:
            header, (_, last) = reader.header, reader.bounds()
            began = datetime.fromtimestamp(header.started, UTC).isoformat(timespec="seconds")
            policy = {name: header.scheduler[name] for name in ("batching", "scheduling_policy")}
            found.append({"run": reader.path.stem, "started": began, "model": header.model_id, "turns": last, **policy})
    if as_json:
        print_json(found)
        return 0
    columns = ("run", "started", "model", "turns")
    rows = ([*(str(one[name]) for name in columns), f"{one['batching']}, {one['scheduling_policy']}"] for one in found)
    out().print(plain_table(*columns, "policy", rows=rows))
    return 0


def _decisions(reader: LedgerReader, as_json: bool) -> int:
    from ekiden.evidence.decision_replay import replay

    began = time.perf_counter()
    result = replay(reader.header, reader.everything())
    took = time.perf_counter() - began
    speed = result.seconds / took if took else 0.0
    found, run_id = result.difference, reader.header.run_id
    if as_json:
        print_json(
            {"run_id": run_id, "identical": found is None, "turns": result.turns, "tokens": result.tokens}
            | {"recorded_seconds": result.seconds, "seconds": took, "speed": speed}
            | {"first_difference": found and asdict(found)}
        )
        return int(found is not None)
    if found is None:
        say(f"Run {run_id}: all {result.turns:,} turns decided as recorded.")
    else:
        say(f"Run {run_id}: turn {found.turn} was decided differently.")
        rows = ((name, str(old), str(new)) for name, old, new in found.fields)
        out().print(plain_table("what", "recorded", "replayed", rows=rows))
    say(f"{seconds(result.seconds)} of the run in {seconds(took)}: {speed:,.0f} times as fast.")
    return int(found is not None)


def _what_if(reader: LedgerReader, changed: dict[str, Any], num_blocks: int | None, as_json: bool) -> int:
    from ekiden.evidence.what_if import what_if

    told = what_if(reader, changed, num_blocks=num_blocks)
    settings = changed | ({} if num_blocks is None else {"num_blocks": num_blocks})
    if as_json:
        print_json({"run_id": reader.header.run_id, "changed": settings, **asdict(told)})
        return 0
    words = ", ".join(f"{name}={value}" for name, value in settings.items())
    say(f"Run {reader.header.run_id}, had it been {words}:\n")
    table = plain_table("", "recorded", "simulated as recorded", "simulated otherwise")
    for name, label in _FIGURES.items():
        values = [getattr(figures, name) for figures in (told.recorded, told.same, told.other)]
        table.add_row(label, *(f"{value:,}" if isinstance(value, int) else seconds(value) for value in values))
    out().print(table)
    say(
        f"\nError: simulating the recorded policy misses the recorded figures by up to {told.error:.0%}; the step-time "
        f"model is off by {told.step_error:.0%} (median) on single steps. {told.unknown_lengths} answers have an "
        "assumed length."
    )
    return 0


def _tokens(reader: LedgerReader, resolved: Resolved, model: str, as_json: bool) -> int:
    from ekiden.build.core import build_core
    from ekiden.cli.loading import load_model
    from ekiden.evidence.decision_replay import config_of
    from ekiden.evidence.token_replay import replay_tokens

    header = reader.header
    if not header.prompts_kept:
        raise UserError(f"run {header.run_id} kept no prompts; record one with --ledger-keep-prompts")
    recorded, chosen = config_of(header), replace(resolved.config.model, model=model)
    config = replace(resolved.config, model=chosen, scheduler=recorded.scheduler, cache=recorded.cache)
    parts = load_model(config)
    if parts.card.fingerprint != header.fingerprint:
        say(f"This is {parts.card.fingerprint}; the run was made by {header.fingerprint}.")
    result = replay_tokens(reader, partial(build_core, parts), config)
    parts.runner.close()
    if as_json:
        print_json({"run_id": header.run_id, "identical": not result.different, **asdict(result)})
    else:
        say(
            f"Run {header.run_id}: {result.same} answers have the recorded tokens, {len(result.different)} have "
            f"others, {result.not_kept} were not kept."
        )
        for name in result.different:
            say(f"  different: {name}")
    return 1 if result.different else 0
