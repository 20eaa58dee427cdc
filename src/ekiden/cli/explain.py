"""``ekiden explain``: one request backwards by cause and forwards step by step, or the worst requests of a period."""

import re
import time

import click
import msgspec
from rich.console import Console

from ekiden.cli.options import Resolved
from ekiden.cli.runs import folder_of, folder_options, open_run
from ekiden.cli.terminal import out, plain_table, print_json, say
from ekiden.evidence.explain import CauseShare, Drafts, Explanation, explain, worst
from ekiden.evidence.reader import LedgerReader, LedgerReadError
from ekiden.evidence.runs import find_request
from ekiden.evidence.why import Answer, Question, why
from ekiden.evidence.words import seconds
from ekiden.ledger.records import RequestRow

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LIFE_LINES = 40


@click.command()
@click.argument("request_id", metavar="[REQUEST]", required=False)
@folder_options
@click.option(
    "--why",
    "question",
    type=click.Choice([question.value for question in Question]),
    help="answer one question about the request",
)
@click.option("--than", metavar="REQUEST", help="with --why different: the request to compare with")
@click.option("--worst", "worst_count", metavar="N", type=click.IntRange(min=1), help="list the N slowest requests")
@click.option("--last", metavar="1h", help="with --worst: only what ended in this time (s, m, h or d)")
@click.option("--run", metavar="RUN", help="look in this recorded run only; with --worst the default is the newest")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def command(
    resolved: Resolved,
    request_id: str | None,
    question: str | None,
    than: str | None,
    worst_count: int | None,
    last: str | None,
    run: str | None,
    as_json: bool,
) -> None:
    """Say why a request took what it took, or ended as it did.

    REQUEST is the x-ekiden-request-id of its response.
    """
    if (request_id is None) == (worst_count is None):
        raise click.UsageError("give either REQUEST or --worst N")
    if worst_count is not None:
        with open_run(resolved, run) as reader:
            _worst(reader, worst_count, last, as_json)
        return
    assert request_id is not None
    reader = find_request(folder_of(resolved), request_id)[0] if run is None else open_run(resolved, run)
    with reader:
        rows = _named(reader, request_id)
        other = _named(reader, than)[0] if question and than else None
        asked = question and Question(question)
        told = [why(reader, row, asked, other) if asked else explain(reader, row) for row in rows]
    if as_json:  # one object for one request; a list where a call had several answers
        print_json(msgspec.to_builtins(told[0] if len(told) == 1 else told))
        return
    for one in told:
        print_explanation(out(), one) if isinstance(one, Explanation) else _print_answer(out(), one)


def _named(reader: LedgerReader, request_id: str) -> list[RequestRow]:
    rows = reader.requests_named(request_id)
    if not rows:
        raise LedgerReadError(f"no request {request_id!r} in {reader.path}")
    return rows


def print_explanation(console: Console, told: Explanation) -> None:
    """The summary in words, then the causes, then the events."""
    console.print(f"[bold]{told.request_id}[/bold]  tenant {told.tenant}, run {told.run_id}", soft_wrap=True)
    console.print(told.headline, soft_wrap=True)
    if told.expected_output is not None and told.status == "finished":
        p10, p50, p90 = told.expected_output
        made = f"{told.output_tokens} output tokens"
        console.print(f"{made}; expected at arrival: {p10} to {p90}, {p50} in the middle.", soft_wrap=True)
    if told.drafts is not None:
        console.print(_of_drafts(told.drafts), soft_wrap=True)
    if told.causes:
        console.print()
        table = plain_table("cause", "time", "share", "turns", "what", right=(1, 2))
        for cause in told.causes:
            turns = f"{cause.turns[0]}-{cause.turns[1]}"
            table.add_row(cause.cause, seconds(cause.seconds), f"{cause.share:.1%}", turns, cause.words)
        table.add_row("[bold]end to end[/bold]", f"[bold]{seconds(told.e2e_seconds)}[/bold]", "", "", "")
        console.print(table)
    for cause in told.causes:
        if text := _linked(cause):
            console.print(f"  {cause.cause}: {text}", style="dim", soft_wrap=True)
    table = plain_table("after", "turn", "what happened", right=(0, 1))
    events, half = told.life, _LIFE_LINES // 2
    cut = len(events) - _LIFE_LINES
    shown = events if cut <= 0 else [*events[:half], *events[-half:]]
    for place, event in enumerate(shown):
        if cut > 0 and place == half:
            table.add_row("", "", f"... {cut} more (--json shows them)")
        table.add_row(seconds(event.at_seconds), str(event.turn) if event.turn else "", event.words)
    console.print()
    console.print(table)


def _of_drafts(told: Drafts) -> str:
    """How many tokens were guessed, how many steps that saved, and why there were no more."""
    text = f"{told.drafts} tokens guessed ahead in {told.rows} rows, {told.accepted} of them right, each a step saved."
    most = sorted(told.without.items(), key=lambda item: -item[1])
    return f"{text} Steps without a guess: {', '.join(f'{n} {why}' for why, n in most)}." if most else text


def _linked(cause: CauseShare) -> str:
    """Where it was decided, because of whom, under which control, and what another setting would have done."""
    parts = [f"decided in {cause.stage}, turn {cause.decision['turn']}"] if cause.otherwise or cause.control else []
    if cause.named:
        parts.append("because of " + ", ".join(cause.named))
    if "runner_up" in cause.decision:
        parts.append(f"runner-up {cause.decision['runner_up'] or 'none'}")
    if cause.control is not None:
        by = f"{cause.control['set_by']} {cause.control['who']}".strip().replace("_", " ")
        parts.append(f"{cause.control['name']}={cause.control['value']} (set by {by})")
    if cause.otherwise is not None:
        parts.append(cause.otherwise)
    return "; ".join(parts)


def _print_answer(console: Console, answer: Answer) -> None:
    console.print(f"[bold]{answer.request_id}[/bold]  why {answer.question}?", soft_wrap=True)
    console.print(answer.words, soft_wrap=True)
    if answer.facts:
        console.print()
        facts = ((name, "-" if value is None else str(value)) for name, value in answer.facts.items())
        console.print(plain_table("recorded", "", rows=facts, header=False))


def _worst(reader: LedgerReader, count: int, last: str | None, as_json: bool) -> None:
    since = 0 if last is None else round((time.time() - reader.header.started - _duration(last)) * 1e6)
    found = worst(reader, count, since=since)
    if as_json:
        print_json({"run_id": reader.header.run_id, "requests": msgspec.to_builtins(found)})
        return
    say(f"The {len(found)} slowest requests of run {reader.header.run_id}:")
    table = plain_table("request", "tenant", "ended", "took", "first token", "tokens", "mostly")
    for one in found:
        times = (seconds(one.e2e_seconds), "-" if one.ttft_seconds is None else seconds(one.ttft_seconds))
        mostly = f"{seconds(one.cause_seconds)} {one.words}"
        table.add_row(one.request_id, one.tenant, one.reason, *times, str(one.output_tokens), mostly)
    out().print(table)


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if match is None:
        raise click.UsageError(f"--last is {text!r}; write a number with s, m, h or d, such as 30m")
    return float(match[1]) * _UNITS[match[2]]
