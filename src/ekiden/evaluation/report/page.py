"""The report as one HTML file that asks nothing of anybody: no script, no request, all drawings inline.

``data/report/page.html`` is its template. A policy in the page itself forbids whatever is not the page's own style, so
that a name somebody chose badly could do nothing even if it were not escaped.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ekiden.dashboard.slot_svg import CHART_WIDTH, Bar, SlotPicture, TimeAxis, colours, environment, letters
from ekiden.evaluation.outcome import ArmFigures, Chart, Falsifier, MetricOutcome, Outcome, SlotChart
from ekiden.evaluation.report.figure_tables import DISTRIBUTIONS, FigureTables, unit_of
from ekiden.evaluation.report.finding_tables import FindingTables
from ekiden.evaluation.report.forest import WIDTH as FOREST_WIDTH
from ekiden.evaluation.report.forest import Forest, forests
from ekiden.evaluation.report.numbers import Numbers
from ekiden.evaluation.report.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Plot, Plots
from ekiden.evaluation.report.tables import Fold, TableMaker
from ekiden.evaluation.report.words import Words, words
from ekiden.version import __version__

SECTIONS = (
    *("falsifiers", "integrity", "metrics", "answers", "figures", "subgroups", "distributions", "sweeps", "slots"),
    *("fairness", "calibration", "failures", "tuning", "noise", "predictions", "limits", "plan", "lineage", "formulas"),
)
"""In the order of the page; the verdict comes before them."""
_LONG_WORD = re.compile(r"[\w/.:=-]{25,}", re.ASCII)
_SLOT_LABEL = 84
"""SVG units for the name of a slot, which is longer than in the demo."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfWorkload:
    """What is shown of one workload."""

    name: str
    kind: str
    figures: Fold
    subgroups: Fold | None
    plots: list[Plot]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotGroup:
    """The slot charts of one workload, on one axis."""

    workload: str
    axis: TimeAxis
    pictures: list[SlotPicture]


def page(outcome: Outcome, language: str = "en") -> str:
    """The whole file. ``language`` is ``en`` or ``ja``; UserError for any other.

    Text that the author of the plan wrote is shown as it was written.
    """
    text, templates = words(language), environment()
    numbers = Numbers(text)
    names = [str(arm.get("name", "")) for arm in outcome.arms]
    plots, make = Plots(text, numbers, names), TableMaker(outcome, text, numbers)
    figures, findings = FigureTables(make), FindingTables(make)
    css = templates.get_template("report/report.css").render() + templates.get_template("slot_svg.css").render()
    whole = [found for found in outcome.figures if not found.subgroup]
    judged = [metric for metric in outcome.metrics if _is_judged(metric)]
    return templates.get_template("report/page.html").render(
        w=text,
        n=numbers,
        o=outcome,
        make=make,
        breakable=_breakable,
        findings=findings,
        css=css,
        policy=_policy(css),
        sections=SECTIONS,
        met=[falsifier for falsifier in outcome.falsifiers if falsifier.met],
        falsifiers=sorted(outcome.falsifiers, key=_most_damning),
        metrics=_metric_groups(judged),
        measured=findings.measured([metric for metric in outcome.metrics if not _is_judged(metric)]),
        blocks_needed=(outcome.blocks_needed_ja if language == "ja" else []) or outcome.blocks_needed,
        overview=figures.overview(whole, _kinds(outcome)),
        overview_names=figures.overview_names(whole),
        workloads=_of_workloads(outcome, plots, figures),
        sweeps=_charts(outcome, plots, lambda chart: chart.kind != "fairness_time"),
        fairness_charts=_charts(outcome, plots, lambda chart: chart.kind == "fairness_time"),
        failures=findings.failures(whole),
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


def _breakable(text: str) -> list[str]:
    """The text in parts, between which a line may end: long names, such as those of tests, have parts of their own."""
    parted = _LONG_WORD.sub(lambda word: re.sub(r"(::|[_/])", r"\1\n", word[0]), text.replace("\n", " "))
    return parted.split("\n")


def _most_damning(falsifier: Falsifier) -> int:
    """Those that are met first, then those that nobody can judge."""
    return {True: 0, None: 1, False: 2}[falsifier.met]


def _is_judged(metric: MetricOutcome) -> bool:
    return metric.judged and bool(metric.success_condition or metric.failure_condition)


def _metric_groups(judged: Sequence[MetricOutcome]) -> list[tuple[str, list[tuple[MetricOutcome, Forest]]]]:
    """The verdict's grounds and other thresholds, each with its drawing."""
    groups: dict[str, list[tuple[MetricOutcome, Forest]]] = {"grounds": [], "guards": []}
    for metric, drawing in zip(judged, forests(judged), strict=True):
        groups["grounds" if metric.critical else "guards"].append((metric, drawing))
    return [(name, found) for name, found in groups.items() if found]


def _kinds(outcome: Outcome) -> dict[str, str]:
    return {str(each.get("name", "")): str(each.get("kind", "")) for each in outcome.workloads}


def _of_workloads(outcome: Outcome, plots: Plots, tables: FigureTables) -> list[OfWorkload]:
    """In the order of the plan; a workload of which there are figures is shown even where the plan forgot it."""
    kinds, found = _kinds(outcome), []
    known = {figures.workload for figures in outcome.figures}
    for name in [*(name for name in kinds if name in known), *sorted(known - set(kinds))]:
        here = [figures for figures in outcome.figures if figures.workload == name]
        whole = [figures for figures in here if not figures.subgroup]
        parts = [figures for figures in here if figures.subgroup]
        kind = kinds.get(name, "")
        found.append(
            OfWorkload(
                name=name,
                kind=kind,
                figures=tables.of_workload(name, kind, whole),
                subgroups=tables.subgroups(name, kind, parts) if parts else None,
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
        fill = colours(requests)
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
        groups.append(SlotGroup(workload=workload, axis=TimeAxis.of(pictures), pictures=pictures))
    return groups
