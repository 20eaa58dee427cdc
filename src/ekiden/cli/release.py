"""``ekiden release``: a change of the scheduler's settings through shadow, canary and a person's approval.

The usual order: ``shadow`` shows what a candidate would do, ``start`` tries a plan on a running server and ends when it
is a person's turn, ``approve`` and ``promote`` let it in, ``abort`` takes it out at any time.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import click
import msgspec

from ekiden.cli.options import Resolved
from ekiden.cli.runs import folder_of, folder_options
from ekiden.cli.scheduler_changes import with_changes
from ekiden.cli.terminal import out, plain_table, print_json
from ekiden.errors import UserError

_URL = "http://127.0.0.1:8000"


@click.group()
def command() -> None:
    """Change a server's scheduling by shadow, canary and approval.

    It can be taken back at any time, and goes back by itself on harm and on missing data.
    """


def _with_server(function: Callable[..., Any]) -> Any:
    """Gives a command the server and the folder of releases in place of the flags that name them."""

    @click.option("--url", metavar="URL", default=_URL, show_default=True, help="the server")
    @click.option("--api-key", "key", envvar="EKIDEN_API_KEY", help="its key of scope admin; it says who you are")
    @_release_dir
    @folder_options
    @wraps(function)
    def command(resolved: Resolved, url: str, key: str | None, release_dir: str | None, **rest: Any) -> Any:
        from ekiden.evaluation.load.target import Target
        from ekiden.release.folder import release_folder
        from ekiden.release.server import HttpServer

        server = HttpServer(Target.parse(url, api_key=key), folder_of(resolved))
        try:
            return function(server=server, folder=release_folder(release_dir), **rest)
        finally:
            server.close()

    return command


def _release_dir(function: Any) -> Any:
    return click.option(
        "--release-dir", metavar="FOLDER", help="where releases are kept  [$XDG_STATE_HOME/ekiden/release]"
    )(function)


_as_json = click.option("--json", "as_json", is_flag=True, help="print the state as one JSON object")
_named = click.argument("name", metavar="[NAME]", required=False)
_why = click.option("--reason", "why", required=True, help="why; it is recorded with the name of your key")


@command.command()
@click.argument("plan", type=click.Path(path_type=Path, dir_okay=False))
@_with_server
@_as_json
def start(server: Any, folder: Path, plan: Path, as_json: bool) -> int:
    """Try PLAN on a running server, or carry on where it was interrupted.

    Ends when it is a person's turn (status 0) or the release was rolled back (1). Interrupting it leaves nothing in
    force: a block ends by itself.
    """
    from ekiden.release.acts import carry_on, made
    from ekiden.release.plan import read_release

    store = made(folder, read_release(plan), server)
    with _stopped_by_sigterm():
        state = carry_on(store, server, told=lambda message: click.echo(message, err=as_json))
    return _shown(state, as_json)


@command.command()
@_named
@_release_dir
@_as_json
def status(name: str | None, release_dir: str | None, as_json: bool) -> int:
    """Say what a release is in: phase, step, pairs, and what they show."""
    from ekiden.release.folder import release_folder
    from ekiden.release.store import newest

    return _shown(newest(release_folder(release_dir), name).known(), as_json)


@command.command()
@_named
@_why
@click.option("--despite-inconclusive", is_flag=True, help="although the analysis could not decide")
@_with_server
@_as_json
def approve(server: Any, folder: Path, name: str | None, why: str, despite_inconclusive: bool, as_json: bool) -> int:
    """Agree to a promotion, at the release's horizon."""
    from ekiden.release.acts import approve as act
    from ekiden.release.store import newest

    return _shown(act(newest(folder, name), server, why, despite_inconclusive=despite_inconclusive), as_json)


@command.command()
@_named
@_with_server
@_as_json
def promote(server: Any, folder: Path, name: str | None, as_json: bool) -> int:
    """Make an approved candidate what the server works by."""
    from ekiden.release.acts import promote as act
    from ekiden.release.store import newest

    state = act(newest(folder, name), server)
    status = _shown(state, as_json)
    if not as_json:
        click.echo(_how_long(state, folder))
        click.echo("[scheduler]")
        for setting, value in state.plan.candidate.items():
            click.echo(f"{setting} = {_toml(value)}")
    return status


def _how_long(state: Any, folder: Path) -> str:
    """What becomes of a promotion when the server is restarted, and what makes that needless."""
    place = state.promoted_on
    if place is None or place.address is None:
        again = "the server has no address that stays the same, so it holds until it is restarted"
    else:
        again = (
            f"it is put in force again when {place.model} is served at {place.address} with the releases in {folder} "
            "(--release-dir)"
        )
    return f"{again}; to have it without that, put it into the server's file of settings:"


@command.command()
@_named
@_why
@_with_server
@_as_json
def abort(server: Any, folder: Path, name: str | None, why: str, as_json: bool) -> int:
    """Take the candidate out at once, also one that was promoted."""
    from ekiden.release.acts import abort as act
    from ekiden.release.store import newest

    state = act(newest(folder, name), server, why)
    _shown(state, as_json)
    return 0


@command.command()
@folder_options
@with_changes
@click.option("--seconds", type=click.FloatRange(1.0), default=300.0, help="how long to follow  [300]")
@click.option("--ttft", type=click.FloatRange(0.0, min_open=True), default=2.0, help="objective in seconds  [2]")
@click.option("--tpot", type=click.FloatRange(0.0, min_open=True), default=0.25, help="objective in seconds  [0.25]")
@click.option(
    "--lag", type=click.FloatRange(0.0), default=30.0, help="seconds to stay behind, for answers to end  [30]"
)
@click.option(
    "--cpu-share", type=click.FloatRange(0.0, 1.0, min_open=True), default=0.01, help="most of one core  [0.01]"
)
@click.option("--json", "as_json", is_flag=True, help="print the report as one JSON object")
def shadow(
    resolved: Resolved,
    seconds: float,
    ttft: float,
    tpot: float,
    lag: float,
    cpu_share: float,
    as_json: bool,
    **changes: Any,
) -> int:
    """Show what other settings would do to the live arrivals, in the simulator beside production.

    The flags that name a setting are the candidate. Nothing is asked of the server: its ledger is read.
    """
    from ekiden.evidence.runs import open_run
    from ekiden.release.plan import Objectives
    from ekiden.release.shadow import ShadowFollower

    candidate = {name: value for name, value in changes.items() if value is not None}
    if not candidate:
        raise UserError("no setting is changed; name one, such as --max-num-seqs 16")
    folder = folder_of(resolved)
    follower = ShadowFollower(
        lambda: open_run(folder, "last"), candidate, Objectives(ttft=ttft, tpot=tpot), share=cpu_share, lag=lag
    )
    end = time.monotonic() + seconds
    with _stopped_by_sigterm():
        try:
            while time.monotonic() < end:
                follower.look()
                time.sleep(min(1.0, max(0.0, end - time.monotonic())))
        except KeyboardInterrupt:
            pass  # what was seen until now is shown
    report = follower.report()
    if as_json:
        print_json(msgspec.to_builtins(report))
        return 0
    rows = [
        (name, *(_number(getattr(kind, name)) for kind in (report.recorded, report.production, report.candidate)))
        for name in type(report.recorded).__struct_fields__
    ]
    out().print(plain_table("", "recorded", "production simulated", "candidate simulated", rows=rows, right=(1, 2, 3)))
    click.echo(f"{report.requests} requests; the simulation of production errs by {_number(report.error)} of a latency")
    click.echo(
        f"cost: {report.cpu_share:.2%} of a core; {report.behind_seconds:.0f} s behind, {report.skipped_seconds:.0f} s "
        f"skipped; {report.unknown_lengths} answers of unknown length"
    )
    return 0


@command.command()
@folder_options
@click.option("--to", "to", metavar="URL", required=True, help="the server that gets the copies")
@click.option("--to-api-key", envvar="EKIDEN_MIRROR_API_KEY", help="bearer token of that server")
@click.option("--model-id", required=True, help="the model's name there")
@click.option("--seconds", type=click.FloatRange(1.0), default=300.0, help="how long  [300]")
@click.option("--concurrency", type=click.IntRange(1, 256), default=16, help="most copies under way at once  [16]")
@click.option("--json", "as_json", is_flag=True, help="print the report as one JSON object")
def mirror(
    resolved: Resolved, to: str, to_api_key: str | None, model_id: str, seconds: float, concurrency: int, as_json: bool
) -> int:
    """Offer copies of the live requests to another server, and show what that costs here.

    The ledger must keep prompts (`serve --ledger-keep-prompts`). No client waits for a copy.
    """
    from ekiden.evaluation.load.target import Target
    from ekiden.evidence.runs import open_run
    from ekiden.release.mirror import Mirror

    folder, target = folder_of(resolved), Target.parse(to, api_key=to_api_key)
    end = time.monotonic() + seconds
    with target.client(timeout=600.0) as client:
        url = f"{target.base}"
        copies = Mirror(lambda: open_run(folder, "last"), client, url, model_id, most=concurrency)
        with _stopped_by_sigterm():
            try:
                while time.monotonic() < end:
                    copies.look()
                    time.sleep(min(0.5, max(0.0, end - time.monotonic())))
            except KeyboardInterrupt:
                pass  # what was sent until now is shown
        copies.close()
    report = copies.report()
    if as_json:
        print_json(msgspec.to_builtins(report))
        return 0
    click.echo(
        f"{report.sent} copies sent: {report.answered} answered whole, {report.failed} failed; {report.left_out} left "
        f"out for want of room, {report.without_prompt} whose prompts are not kept"
    )
    p50, p99 = _number(report.seconds_p50), _number(report.seconds_p99)
    click.echo(f"seconds to the whole answer: p50 {p50}, p99 {p99}")
    click.echo(f"cost here: {report.cpu_share:.2%} of a core; nothing on the path of a request")
    return 0


def _shown(state: Any, as_json: bool) -> int:
    """Print a state; returns the exit status."""
    from ekiden.release.state import STEPS, Phase
    from ekiden.release.store import shown_state

    if as_json:
        print_json(shown_state(state))
    else:
        click.echo(f"{state.plan.name}: {state.phase}: {state.message}")
        click.echo(
            f"step {state.current_step_index + 1} of {len(STEPS)} ({STEPS[state.current_step_index]}), asked for by "
            f"{state.started_by or 'a key without a name'}, weight {state.set_weight} %"
        )
        click.echo(f"pairs: {len(state.pairs)} of {state.plan.canary.pairs}")
        for each in state.analysis_run.metric_results:
            click.echo(f"{each.name}: {each.phase}: {each.message}; p = {_number(each.p_value)}   [{each.formula}]")
        for approval in state.approvals:
            click.echo(f"approved by {approval.who}: {approval.why}")
    return 1 if state.phase is Phase.DEGRADED else 0


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
