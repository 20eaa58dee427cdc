"""The record of a run on the fake model, and what the charts and figures make of it."""

import itertools
import re
import xml.etree.ElementTree as ElementTree

import pytest

from ekiden.backends.fake import FakeRunner
from ekiden.config import CacheConfig, Config, SchedulerConfig, controls_of
from ekiden.dashboard.slot_svg import colours, letters
from ekiden.engine.driver import Answer, run_batch
from ekiden.engine.engine_core import EngineCore
from ekiden.evaluation.charts.slot_chart import EMPTY, PADDED, axis, chart_rows, coloured
from ekiden.evaluation.charts.slot_html import ChartData, TableData, page
from ekiden.evaluation.charts.slots import slot_figures, stays
from ekiden.evaluation.charts.trace import SlotRow, SlotStep, StepRecorder, Work
from ekiden.state.request import FinishReason, RefusalReason, Request
from ekiden.state.sampling_params import SamplingParams
from tests.fake_answers import next_token

LENGTHS = [12, 3, 3, 3, 3, 3]


class Ticks:
    """A clock that moves by one at every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def record(batching: str, *, slots: int = 2, lengths: list[int] = LENGTHS) -> tuple[StepRecorder, list[Answer]]:
    recorder = StepRecorder()
    core = EngineCore(
        runner=FakeRunner(),
        controls=controls_of(
            Config(
                scheduler=SchedulerConfig(max_num_seqs=slots, max_num_batched_tokens=128, batching=batching),
                cache=CacheConfig(block_size=16),
            )
        ),
        cache=CacheConfig(block_size=16),
        clock=Ticks(),
        recorder=recorder,
    )
    requests = [
        Request(
            request_id=f"r{index}",
            prompt_token_ids=(index + 1,) * 4,
            sampling=SamplingParams(temperature=0.0, max_tokens=length),
            arrival_time=0.0,
        )
        for index, length in enumerate(lengths)
    ]
    return recorder, run_batch(core, requests)


def test_answers_come_back_in_order_with_their_tokens():
    _, answers = record("continuous")
    assert [len(answer.token_ids) for answer in answers] == LENGTHS
    for index, answer in enumerate(answers):
        assert answer.finish is not None
        assert answer.finish.reason is FinishReason.LENGTH
        assert answer.token_ids[0] == next_token([index + 1] * 4, 1000)


def test_a_refused_request_comes_back_with_its_reason():
    recorder = StepRecorder()
    core = EngineCore(
        runner=FakeRunner(max_model_len=8),
        controls=controls_of(
            Config(
                scheduler=SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=128), cache=CacheConfig(block_size=16)
            )
        ),
        cache=CacheConfig(block_size=16),
        clock=Ticks(),
        recorder=recorder,
    )
    request = Request(request_id="r", prompt_token_ids=(1,) * 9, sampling=SamplingParams(), arrival_time=0.0)
    (answer,) = run_batch(core, [request])
    assert answer.refusal is not None
    assert answer.refusal.reason is RefusalReason.CONTEXT_LENGTH_EXCEEDED
    assert recorder.steps == []


def test_every_step_says_who_held_which_slot_even_those_that_ended_in_it():
    recorder, _ = record("continuous", lengths=[1, 1, 1, 1])
    assert [{row.slot for row in step.rows} for step in recorder.steps] == [{0, 1}, {0, 1}]
    assert {row.request_id for step in recorder.steps for row in step.rows} == {"r0", "r1", "r2", "r3"}


def test_prompt_and_answer_tokens_are_told_apart():
    recorder, _ = record("continuous")
    samples = recorder.samples()
    assert sum(sample.prefill_tokens for sample in samples) == 4 * len(LENGTHS)
    # The first token of each answer comes from its prefill row.
    assert sum(sample.decode_tokens for sample in samples) == sum(LENGTHS) - len(LENGTHS)


def test_step_times_cover_the_run_without_gaps():
    recorder, _ = record("continuous")
    total = sum(sample.seconds for sample in recorder.samples())
    assert total == pytest.approx(recorder.steps[-1].end - recorder.steps[0].start)
    recorder.clear()
    assert recorder.samples() == []


def test_continuous_takes_a_freed_slot_at_the_next_step():
    recorder, _ = record("continuous")
    figures = slot_figures(recorder.steps, 2)
    assert len(figures.handover_steps) == 4
    assert set(figures.handover_steps) == {0}
    assert figures.slot_utilisation == pytest.approx(sum(LENGTHS) / (2 * figures.steps))


def test_static_leaves_a_freed_slot_empty_until_the_slowest_has_ended():
    recorder, _ = record("static")
    figures = slot_figures(recorder.steps, 2)
    assert figures.steps == 12 + 3 + 3
    assert max(figures.handover_steps) == 9
    assert figures.slot_utilisation == pytest.approx(27 / 36)


def test_padded_rows_do_no_useful_work():
    recorder, _ = record("static-padded")
    figures = slot_figures(recorder.steps, 2)
    works = [row.work for step in recorder.steps for row in step.rows]
    assert works.count(Work.PADDING) == 9
    assert figures.slot_utilisation == pytest.approx(27 / 36)


def test_both_policies_give_the_same_tokens():
    _, continuous = record("continuous")
    _, static = record("static")
    assert [answer.token_ids for answer in continuous] == [answer.token_ids for answer in static]


def test_no_steps_give_empty_figures():
    assert slot_figures([], 4).slot_utilisation == 0.0
    assert stays([]) == []
    assert chart_rows([], 2, {}, seconds_per_column=1.0) == ["", ""]


def steps(rows: list[str]) -> list[SlotStep]:
    """Steps of one second from drawings: a line for each slot, a character for each step, lower case for padding."""
    drawn = []
    for index in range(len(rows[0])):
        held = [(slot, row[index]) for slot, row in enumerate(rows) if row[index] != EMPTY]
        drawn.append(
            SlotStep(
                float(index),
                index + 1.0,
                tuple(
                    SlotRow(slot, name.upper(), Work.PADDING if name.islower() else Work.DECODE, 1, int(name.isupper()))
                    for slot, name in held
                ),
            )
        )
    return drawn


NAMES = {"A": "A", "B": "B", "C": "C"}


def test_the_chart_draws_what_happened():
    rows = ["AAAAAA", "BB··CC"]
    assert chart_rows(steps(rows), 2, NAMES, seconds_per_column=1.0) == rows


def test_the_chart_marks_padding_and_halves_with_its_scale():
    assert chart_rows(steps(["AAAAAA", "BBbbbb"]), 2, NAMES, seconds_per_column=1.0)[1] == "BB" + PADDED * 4
    assert chart_rows(steps(["AAAAAA", "BB··CC"]), 2, NAMES, seconds_per_column=2.0) == ["AAA", "B·C"]


def test_even_the_shortest_stay_is_seen():
    assert "B" in chart_rows(steps(["AAAAAAAAAA", "B·········"]), 2, NAMES, seconds_per_column=5.0)[1]


def test_a_request_that_comes_back_has_two_stays():
    found = stays(steps(["AA·AA"]))
    assert [(stay.first_step, stay.last_step) for stay in found] == [(0, 1), (3, 4)]


def test_a_row_counts_the_tokens_it_made_and_not_the_steps_it_took():
    rows = [
        SlotRow(0, "A", Work.PREFILL, 40, 1),
        SlotRow(0, "A", Work.DECODE, 4, 3),
        SlotRow(0, "A", Work.DECODE, 4, 0),
    ]
    recorder = StepRecorder()
    recorder.steps += [SlotStep(float(index), index + 1.0, (row,)) for index, row in enumerate(rows)]
    (stay,) = stays(recorder.steps)
    assert stay.output_tokens == 4
    assert slot_figures(recorder.steps, 1).slot_utilisation == 1.0
    assert [(sample.prefill_tokens, sample.decode_tokens) for sample in recorder.samples()] == [(40, 0), (0, 3), (0, 0)]


def test_letters_and_neighbouring_colours_differ():
    ids = [f"r{index}" for index in range(24)]
    names = letters(ids)
    assert len(set(names.values())) == 24
    painted = list(colours(ids).values())
    assert all(first != second for first, second in itertools.pairwise(painted))
    text = coloured("AB·", {"A": "#ffffff"})
    assert text.plain == "AB·"
    assert len(text.spans) == 3


def test_the_axis_names_seconds_under_their_columns():
    assert axis(20, 0.1) == "0.0s      1.0s      2.0s"


def test_the_page_is_whole_and_needs_nothing_else():
    data = ChartData(title="static & <padded>", steps=steps(["AAAA", "BBbb"]), num_slots=2)
    table = TableData(heading="Figures", columns=["", "static"], rows=[["steps", "4"]], note="n")
    html = page("Demo", "why", [data], [table], names=NAMES, about={"A": "Say <hi> & go"})
    assert "static &amp; &lt;padded&gt;" in html
    assert "Say &lt;hi&gt; &amp; go" in html
    assert not re.search(r"<script|href=|src=|url\(", html)
    assert html.count("<svg") == html.count("</svg>") == 1


def test_the_svg_is_well_formed_and_places_each_stay():
    data = ChartData(title="t", steps=steps(["AAAA", "BB·C"]), num_slots=2)
    longer = ChartData(title="u", steps=steps(["AAAAAAAA"]), num_slots=1)
    html = page("Demo", "why", [data, longer], [], names=NAMES, about={})
    root = ElementTree.fromstring(html[html.index("<svg") : html.index("</svg>") + len("</svg>")])
    space = "{http://www.w3.org/2000/svg}"
    groups = root.findall(f"{space}g")
    places = {}
    for group in groups:
        rect = group.find(f"{space}rect")
        title = group.find(f"{space}title")
        assert rect is not None
        assert title is not None
        assert title.text is not None
        places[title.text[0]] = (float(rect.attrib["x"]), float(rect.attrib["width"]))
    # Eight seconds fill 1000 units to the right of the labels.
    assert places == {"A": (56.0, 500.0), "B": (56.0, 250.0), "C": (56.0 + 375.0, 125.0)}
