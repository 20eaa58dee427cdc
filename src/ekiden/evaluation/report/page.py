"""The report as one HTML file that asks nothing of anybody: no script, no request, all drawings inline.

``data/report/page.html`` is its template. A policy in the page itself forbids whatever is not the page's own style, so
that a name somebody chose badly could do nothing even if it were not escaped.
"""

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ekiden.evaluation.charts.slot_chart import PALETTE
from ekiden.evaluation.charts.slot_svg import CHART_WIDTH, Bar, SlotPicture, TimeAxis, environment
from ekiden.evaluation.charts.slots import letters
from ekiden.evaluation.outcome import ArmFigures, Chart, Falsifier, MetricOutcome, Outcome, SlotChart
from ekiden.evaluation.report.forest import WIDTH as FOREST_WIDTH
from ekiden.evaluation.report.forest import Forest, forests
from ekiden.evaluation.report.numbers import Numbers
from ekiden.evaluation.report.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Plot, Plots
from ekiden.evaluation.report.tables import DISTRIBUTIONS, Table, Tables, unit_of
from ekiden.evaluation.report.words import Words, words
from ekiden.version import __version__

SECTIONS = (
    *("falsifiers", "integrity", "metrics", "answers", "figures", "subgroups", "distributions", "sweeps", "slots"),
    *("fairness", "calibration", "failures", "tuning", "noise", "predictions", "limits", "plan", "lineage", "formulas"),
)
"""In the order of the page; the verdict comes before them."""
_SLOT_LABEL = 84
"""SVG units for the name of a slot, which is longer than in the demo."""
_METRIC_GROUPS = ("grounds", "guards", "measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class OfWorkload:
    """What is shown of one workload."""

    name: str
    kind: str
    scalars: Table
    quantiles: Table | None
    subgroups: Table | None
    plots: list[Plot]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotGroup:
    """The slot charts of one workload, on one axis."""

    axis: TimeAxis
    pictures: list[SlotPicture]


def page(outcome: Outcome, language: str = "en") -> str:
    """The whole file. ``language`` is ``en`` or ``ja``; UserError for any other.

    Text that the author of the plan wrote is shown as it was written.
    """
    text, templates = words(language), environment()
    numbers = Numbers(text)
    names = [str(arm.get("name", "")) for arm in outcome.arms]
    plots, tables = Plots(text, numbers, names), Tables(outcome, text, numbers)
    css = templates.get_template("report/report.css").render() + templates.get_template("slot_svg.css").render()
    whole = [figures for figures in outcome.figures if not figures.subgroup]
    return templates.get_template("report/page.html").render(
        w=text,
        n=numbers,
        o=outcome,
        tables=tables,
        css=css,
        policy=_policy(css),
        sections=SECTIONS,
        met=[falsifier for falsifier in outcome.falsifiers if falsifier.met],
        falsifiers=sorted(outcome.falsifiers, key=_most_damning),
        metrics=_metric_groups(outcome),
        workloads=_of_workloads(outcome, plots, tables),
        sweeps=_charts(outcome, plots, lambda chart: chart.kind != "fairness_time"),
        fairness_charts=_charts(outcome, plots, lambda chart: chart.kind == "fairness_time"),
        failures=tables.failures(whole),
        slots=_slot_groups(outcome.slots, text, numbers),
        sizes={"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM},
        forest_width=FOREST_WIDTH,
        chart_width=CHART_WIDTH,
        slot_label=_SLOT_LABEL,
        version=__version__,
    )


def _policy(css: str) -> str:
    """Content security policy: this very style, pictures that are in the page, and nothing else."""
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"


def _most_damning(falsifier: Falsifier) -> int:
    """Those that are met first, then those that nobody can judge."""
    return {True: 0, None: 1, False: 2}[falsifier.met]


def _metric_groups(outcome: Outcome) -> list[tuple[str, list[tuple[MetricOutcome, Forest]]]]:
    """The verdict's grounds, other thresholds and mere measurements, each with its drawing."""
    groups: dict[str, list[tuple[MetricOutcome, Forest]]] = {name: [] for name in _METRIC_GROUPS}
    for metric, drawing in zip(outcome.metrics, forests(outcome.metrics), strict=True):
        judged = bool(metric.success_condition or metric.failure_condition)
        groups["grounds" if metric.critical else "guards" if judged else "measured"].append((metric, drawing))
    return [(name, found) for name, found in groups.items() if found]


def _of_workloads(outcome: Outcome, plots: Plots, tables: Tables) -> list[OfWorkload]:
    """In the order of the plan; a workload of which there are figures is shown even where the plan forgot it."""
    kinds = {str(workload.get("name", "")): str(workload.get("kind", "")) for workload in outcome.workloads}
    names = dict.fromkeys([*kinds, *(figures.workload for figures in outcome.figures)])
    found = []
    for name in names:
        here = [figures for figures in outcome.figures if figures.workload == name]
        whole, parts = [f for f in here if not f.subgroup], [f for f in here if f.subgroup]
        if not here:
            continue
        kind = kinds.get(name, "")
        found.append(
            OfWorkload(
                name=name,
                kind=kind,
                scalars=tables.scalars(name, kind, whole),
                quantiles=tables.quantiles(name, kind, whole),
                subgroups=tables.subgroups(name, parts) if parts else None,
                plots=_distributions(name, whole, plots),
            )
        )
    return found


def _distributions(workload: str, arms: Sequence[ArmFigures], plots: Plots) -> list[Plot]:
    drawn = (plots.distribution(figure, workload, arms, unit_of(figure)) for figure in DISTRIBUTIONS)
    return [plot for plot in drawn if plot is not None]


def _charts(outcome: Outcome, plots: Plots, wanted: Callable[[Chart], bool]) -> list[Plot]:
    return [plots.chart(chart) for chart in outcome.charts if wanted(chart)]


def _slot_groups(charts: Sequence[SlotChart], text: Words, numbers: Numbers) -> list[SlotGroup]:
    groups = []
    for workload in dict.fromkeys(chart.workload for chart in charts):
        here = [chart for chart in charts if chart.workload == workload]
        requests = list(dict.fromkeys(segment.request_id for chart in here for segment in chart.segments))
        names = letters(requests)
        fill = {request: PALETTE[index % len(PALETTE)] for index, request in enumerate(requests)}
        pictures = []
        for chart in here:
            bars = [
                Bar(
                    slot=segment.slot,
                    start=segment.start,
                    end=segment.end,
                    name=names[segment.request_id],
                    about=text(
                        "plot.slot_about",
                        name=names[segment.request_id],
                        id=segment.request_id,
                        tokens=segment.output_tokens,
                        start=f"{segment.start:.2f} s",
                        end=f"{segment.end:.2f} s",
                    ),
                    fill=fill[segment.request_id],
                )
                for segment in chart.segments
            ]
            title = text("plot.slots", arm=chart.arm, workload=workload, seconds=numbers.seconds(chart.seconds))
            pictures.append(SlotPicture(title=title, slots=chart.slots, seconds=chart.seconds, bars=bars))
        groups.append(SlotGroup(axis=TimeAxis.of(pictures), pictures=pictures))
    return groups
