"""``ekiden evaluate project``: what larger fleets and other hardware would do, simulated from measured step costs.

The production engine core runs in every replica, in virtual time. The error of the model behind it, against a real run,
stands beside every projection.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ekiden.cli.options import Resolved
from ekiden.cli.runs import folder_options, open_run
from ekiden.cli.scheduler_changes import with_changes
from ekiden.cli.terminal import out, plain_table, print_json, say
from ekiden.errors import UserError
from ekiden.evidence.words import seconds as in_words

if TYPE_CHECKING:
    from ekiden.evaluation.project.profile import HardwareProfile
    from ekiden.evaluation.project.projection import Needed, Projected
    from ekiden.evaluation.workloads.offer import Workload
    from ekiden.evidence.reader import LedgerReader

ROUTER_NAMES = ("round-robin", "least-outstanding", "prefix-affinity")
_DEFAULT_SOURCE = "azure-conversation"
_POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command()
@click.option("--replicas", type=click.IntRange(min=1), help="engines in the fleet; left out, the fewest that do")
@click.option("--rate", type=_POSITIVE, help="requests a second that the whole fleet is offered")
@click.option(
    "--profile", "profile_name", metavar="FILE", help="hardware profile: a TOML file, or a packaged one's name"
)
@click.option("--run", metavar="RUN", help="take the profile from this recorded run (`last`: the newest)")
@click.option("--check", "check_run", metavar="RUN", help="measure the model's error on this recorded run")
@click.option("--save-profile", metavar="FILE", type=click.Path(path_type=Path), help="write the profile that was used")
@click.option(
    "--source", help=f"requests, as `ekiden evaluate workloads` lists; default: of --run, else {_DEFAULT_SOURCE}"
)
@click.option("--seconds", type=_POSITIVE, default=120.0, show_default=True, help="how long requests arrive")
@click.option("--length-scale", type=_POSITIVE, default=1.0, show_default=True, help="factor on the source's lengths")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="runs, each its own arrivals")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--router", type=click.Choice(ROUTER_NAMES), default="least-outstanding", show_default=True)
@click.option("--ttft", type=_POSITIVE, default=2.0, show_default=True, help="objective: seconds to the first token")
@click.option(
    "--tpot", type=_POSITIVE, default=0.2, show_default=True, help="objective: seconds for each further token"
)
@click.option(
    "--attainment", type=click.FloatRange(0, 1), default=0.99, show_default=True, help="the share that must be good"
)
@click.option("--most", type=click.IntRange(min=1), default=64, show_default=True, help="replicas that may be tried")
@with_changes
@folder_options
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def command(
    resolved: Resolved,
    replicas: int | None,
    rate: float | None,
    profile_name: str | None,
    run: str | None,
    check_run: str | None,
    save_profile: Path | None,
    source: str | None,
    seconds: float,
    length_scale: float,
    repeats: int,
    seed: int,
    router: str,
    ttft: float,
    tpot: float,
    attainment: float,
    most: int,
    as_json: bool,
    **changes: Any,
) -> int:
    """Simulate a fleet of engines, or find how many a rate needs.

    Step costs come from a recorded run (--run) or a profile's file (--profile). Give --replicas for the figures of a
    fleet; leave it out for the fewest replicas that attain the objectives at the rate.
    """
    from ekiden.evaluation.plan.model import Objectives
    from ekiden.evaluation.project.profile import toml_of
    from ekiden.evaluation.project.projection import FORMULAS, Projector

    with _profile(resolved, profile_name, run, check_run) as (profile, reader):
        if save_profile is not None:
            try:
                save_profile.write_text(toml_of(profile), encoding="utf-8")
            except OSError as error:
                raise UserError(f"cannot write the profile {save_profile}: {error.strerror or error}") from error
            if rate is None:
                say(f"Wrote {save_profile}. {_accuracy(profile)}")
                return 0
        if rate is None:
            raise UserError("--rate is missing; give the requests a second that the fleet is offered")
        seeds, drafts = range(seed, seed + repeats), []
        if source is None and reader is not None:
            from ekiden.evaluation.project.recorded import recorded_loads

            loads = recorded_loads(reader, rate=rate, seconds=seconds, seeds=seeds)
            workloads, drafts = [load.workload for load in loads], [load.drafts for load in loads]
        else:
            workloads = _made(source or _DEFAULT_SOURCE, rate, seconds, length_scale, seeds, profile)
    objectives = Objectives(ttft=ttft, tpot=tpot, attainment=attainment)
    changed = {name: value for name, value in changes.items() if value is not None}
    projector = Projector(profile, workloads, objectives, router=router, changed=changed, drafts=drafts, seed=seed)
    needed: Needed | None = None
    if replicas is not None:
        figures = projector.fleet(replicas)
    else:
        needed, figures = projector.needed(most=most)
    if as_json:
        print_json(
            {
                "profile": msgspec.to_builtins(profile),
                "workload": workloads[0].made,
                "changed": changed,
                "router": router,
                "objectives": msgspec.to_builtins(objectives),
                "needed": msgspec.to_builtins(needed),
                "projected": msgspec.to_builtins(figures),
                "formulas": FORMULAS,
            }
        )
    else:
        _print(profile, workloads, router, needed, figures, objectives_text=f"TTFT {ttft:g} s, TPOT {tpot:g} s")
    return 1 if needed is not None and needed.replicas is None else 0


@contextmanager
def _profile(
    resolved: Resolved, name: str | None, run: str | None, check_run: str | None
) -> "Iterator[tuple[HardwareProfile, LedgerReader | None]]":
    """The profile with its error, and the recorded run that it came from."""
    from ekiden.evaluation.project.packaged import packaged_profiles, profile_path
    from ekiden.evaluation.project.profile import read_profile
    from ekiden.evaluation.project.recorded import checked, profile_of

    if (name is None) == (run is None):
        named = ", ".join(packaged_profiles())
        raise UserError(f"give either --profile (a file, or one of {named}) or --run, for how fast a replica is")
    with ExitStack() as stack:
        check = None if check_run is None else stack.enter_context(open_run(resolved, check_run))
        reader = None if run is None else stack.enter_context(open_run(resolved, run))
        if reader is not None:
            profile = profile_of(reader, checked_on=check)
        else:
            assert name is not None
            profile = read_profile(profile_path(name))
            profile = profile if check is None else checked(profile, check)
        yield profile, reader


def _made(
    source: str, rate: float, seconds: float, length_scale: float, seeds: range, profile: "HardwareProfile"
) -> "list[Workload]":
    """A workload of the named source for each repeat: blocks of dev, whose lengths are cut to the context."""
    from ekiden.evaluation.workloads.offer import Kind
    from ekiden.evaluation.workloads.sources import make
    from ekiden.evaluation.workloads.spec import WorkloadSpec

    half = profile.model.max_model_len // 2
    spec = WorkloadSpec(
        name=source,
        source=source,
        kind=Kind.NORMAL,
        seconds=seconds,
        rate=rate,
        length_scale=length_scale,
        options={"max_prompt_tokens": half, "max_output_tokens": half},
    )
    return [make(spec, split="dev", block=number, seed=seed) for number, seed in enumerate(seeds)]


def _accuracy(profile: "HardwareProfile") -> str:
    told = profile.accuracy
    if not profile.measured:
        return "HYPOTHETICAL: nobody has measured this profile's coefficients, so the error is not known."
    if told.figures_error is None:
        return "The model's error was not measured; --check RUN measures it against a recorded run."
    fit = "" if told.median_step_error is None else f"; single steps are off by {told.median_step_error:.0%} (median)"
    own = " (the run that it was fitted to)" if told.checked_on == profile.made.get("run") else ""
    return (
        f"Error: simulating run {told.checked_on}{own} misses its recorded p50 and p99 of TTFT and end to end by up to "
        f"{told.figures_error:.0%}{fit}."
    )


def _print(
    profile: "HardwareProfile",
    workloads: "list[Workload]",
    router: str,
    needed: "Needed | None",
    figures: "Projected",
    *,
    objectives_text: str,
) -> None:
    from ekiden.cli.figures_table import NOT_ESTIMABLE
    from ekiden.evaluation.project.projection import FORMULAS
    from ekiden.measure.percentiles import MIN_VALUES_FOR_P99

    made = workloads[0].made
    say(f"Profile {profile.name}, requests of {made['source']}, router {router}; objectives: {objectives_text}.\n")
    if needed is not None:
        tried = ", ".join(f"{count}: {share:.1%}" for count, share in needed.tried)
        found = "more than were allowed" if needed.replicas is None else str(needed.replicas)
        say(f"Replicas needed for {needed.target:.1%}: {found}  (attainment by replicas tried: {tried})")
        if needed.replicas is None:
            say("Where more replicas no longer help, some requests miss the objectives even on an idle one.")
        out().print()
    low, high = figures.attainment_range
    rows = [
        ("replicas", str(figures.replicas)),
        ("offered", f"{figures.rate:.2f} requests/s, {figures.requests:,} in all"),
        ("attainment", f"{figures.attainment:.1%} (runs {low:.1%} to {high:.1%})"),
        ("goodput", f"{figures.goodput:.2f} requests/s"),
        ("output", f"{figures.output_tokens_per_second:,.0f} tokens/s"),
    ]
    for name in ("ttft", "tpot", "e2e"):
        points = getattr(figures, name)
        if points is not None:
            p99 = in_words(points["p99"]) if points["n"] >= MIN_VALUES_FOR_P99 else NOT_ESTIMABLE
            rows.append((name, f"p50 {in_words(points['p50'])}, p90 {in_words(points['p90'])}, p99 {p99}"))
    rows.append(("busy", f"{min(figures.busy):.0%} to {max(figures.busy):.0%} of the time"))
    rows.append(("imbalance", f"{figures.imbalance:.2f}"))
    rows.append(("preemptions", f"{figures.preemptions:,}"))
    kinds = ", ".join(f"{kind} x{count}" for kind, count in figures.failures.items())
    rows.append(("failures", kinds or "none"))
    out().print(plain_table("", "", rows=rows, header=False))
    out().print()
    for name, formula in FORMULAS.items():
        out().print(f"{name} = {formula}", style="dim", soft_wrap=True)
    say(f"\n{_accuracy(profile)} Simulated: swapping, network and router cost nothing.")
