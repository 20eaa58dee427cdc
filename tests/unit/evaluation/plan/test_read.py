"""Every fault of a plan is named with its field, its value and the way out, all of them at once."""

import contextlib
import tomllib
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekiden.evaluation.plan.parts import Known
from ekiden.evaluation.plan.read import PlanError, parse_plan, plan_digest, read_plan, remarks
from ekiden.evaluation.plan.write import PROFILES, filled, profile, render
from tests.unit.evaluation.plan.plans import DOCUMENT, KNOWN, TEXT, document, parsed

CHANGES = {
    "unknown section": (lambda d: d.update(metrix=[]), "metrix is not known; did you mean metrics?"),
    "unknown key": (lambda d: d["decision"].update(ownr="x"), "decision.ownr is not known; did you mean owner?"),
    "unknown key of a metric": (
        lambda d: d["metrics"][0].update(success_condition="result > 1"),
        "metrics[goodput].success_condition is not known; did you mean successCondition?",
    ),
    "missing section": (lambda d: d.pop("objectives"), "objectives is missing; add it"),
    "missing field": (lambda d: d["workloads"][0].pop("rate"), "workloads[conversation].rate is missing; add it"),
    "wrong type": (lambda d: d["objectives"].update(ttft="2s"), "objectives.ttft is '2s'; expected `float`"),
    "wrong kind": (lambda d: d["workloads"][0].update(kind="easy"), "workloads[conversation].kind is 'easy'"),
    "a table that is none": (lambda d: d.update(confirm=5), "confirm is 5; it must be a table, written [confirm]"),
    "a list that is none": (lambda d: d.update(metrics={}), "metrics is {}; it must be tables that each begin with"),
    "arms that are none": (lambda d: d.update(arms=[]), "arms is []; it must be tables such as [arms.name]"),
    "empty text": (lambda d: d["decision"].update(affected="  "), "decision.affected is empty; say it"),
    "no candidate": (lambda d: d["arms"]["continuous"].update(role="other"), 'role = "candidate", and none is'),
    "two candidates": (lambda d: d["arms"]["static"].update(role="candidate"), "there are 2 (continuous, static)"),
    "no baseline": (
        lambda d: [d["arms"][name].update(role="other") for name in ("static", "window")],
        'no arm has role = "baseline"',
    ),
    "unknown role": (
        lambda d: d["arms"]["window"].update(role="base"),
        "arms.window.role is 'base'; it must be one of",
    ),
    "nobody's baseline": (
        lambda d: [w.update(arms=["continuous", "static"]) for w in d["workloads"]],
        "arms.window serves no workload that the candidate serves",
    ),
    "the candidate again": (
        lambda d: d["arms"].update(static={"settings": {"batching": "continuous", "max_num_seqs": 64}}),
        "arms.static has the settings of the candidate continuous",
    ),
    "unknown setting": (
        lambda d: d["arms"]["static"]["settings"].update(max_num_seq=4),
        "arms.static.settings.max_num_seq is not a setting; did you mean max_num_seqs?",
    ),
    "a model per arm": (
        lambda d: d["arms"]["static"]["settings"].update(weights="fp16"),
        "arms.static.settings.weights cannot stand there: arms differ in scheduling only",
    ),
    "memory per arm": (
        lambda d: d["arms"]["static"]["tune"].update(kv_cache_size=["1GiB", "2GiB"]),
        "arms.static.tune.kv_cache_size cannot stand there",
    ),
    "another model in a workload": (
        lambda d: d["workloads"][0].update(engine={"weights": "fp16"}),
        "workloads[conversation].engine.weights cannot stand there",
    ),
    "a backend for all": (lambda d: d["engine"]["settings"].update(backend="fake"), "engine.settings.backend cannot"),
    "a value that cannot work": (
        lambda d: d["arms"]["continuous"]["settings"].update(max_num_seqs=0),
        "arms.continuous: max_num_seqs is 0; it must be at least 1",
    ),
    "a tuned value that cannot work": (
        lambda d: d["arms"]["static"]["tune"].update(max_num_seqs=[8, 4096]),
        "arms.static: max_num_batched_tokens is 512; with max_num_seqs 4096",
    ),
    "a setting of the wrong type": (
        lambda d: d["arms"]["continuous"]["settings"].update(max_num_seqs=True),
        "max_num_seqs is True; it must be a whole number",
    ),
    "tuned and set": (
        lambda d: d["arms"]["static"]["settings"].update(max_num_seqs=8),
        "arms.static.settings.max_num_seqs is also tuned",
    ),
    "nothing to tune": (
        lambda d: d["arms"]["static"]["tune"].update(max_num_seqs=[8]),
        "arms.static.tune.max_num_seqs is [8]; give two values or more",
    ),
    "two places": (
        lambda d: d["workloads"][0].update(engine={"max_num_seqs": 4}),
        "workloads[conversation].engine.max_num_seqs is also set by arms.static",
    ),
    "settings of another's server": (
        lambda d: d["arms"]["window"].update(url="http://localhost:1"),
        "arms.window has a url and settings",
    ),
    "no address": (
        lambda d: d["arms"].update(peer={"role": "other", "url": "localhost"}),
        "arms.peer.url is 'localhost'; write such as http://",
    ),
    "a name that names no file": (lambda d: d["arms"].update({"a/b": {}}), "arms: the name 'a/b' must be of a to z"),
    "unknown arm": (
        lambda d: d["workloads"][0].update(arms=["continuos"]),
        "workloads[conversation].arms is 'continuos', which is not known; did you mean continuous?",
    ),
    "unknown source": (
        lambda d: d["workloads"][0].update(source="azure-conversations"),
        "workloads[conversation].source is 'azure-conversations', which is not known; did you mean azure-conversation?",
    ),
    "unknown change": (
        lambda d: d["workloads"][0].update(change=["no-limit"]),
        "workloads[conversation].change is 'no-limit', which is not known",
    ),
    "unknown option": (lambda d: d["workloads"][0].update(options={"x": 1}), "options has 'x'"),
    "no rate": (lambda d: d["workloads"][0].update(rate=0.0), "workloads[conversation].rate is 0.0; it must be over 0"),
    "twice": (lambda d: d["workloads"].append(DOCUMENT["workloads"][0]), "workloads[conversation] stands there twice"),
    "no workloads": (lambda d: d.update(workloads=[]), "workloads is empty"),
    "too few blocks": (lambda d: d["confirm"].update(blocks=4), "confirm.blocks is 4; no interval can be had"),
    "too few blocks of a workload": (
        lambda d: d["workloads"][0].update(blocks=2),
        "workloads[conversation].blocks is 2; no interval",
    ),
    "confidence": (lambda d: d["confirm"].update(confidence=95), "confirm.confidence is 95.0; it must be over 0.5"),
    "unknown metric": (
        lambda d: d["metrics"][0].update(name="good_put"),
        "metrics[good_put].name is 'good_put', which is not known; did you mean goodput?",
    ),
    "wrong direction": (
        lambda d: d["metrics"][0].update(direction="down"),
        "metrics[goodput].direction is 'down'; of this metric more is better",
    ),
    "no direction": (lambda d: d["metrics"][0].update(direction="more"), "direction is 'more'; it must be up or down"),
    "no condition": (
        lambda d: d["metrics"][0].update(successCondition="result => 1"),
        "metrics[goodput].successCondition: 'result => 1' is no comparison",
    ),
    "no threshold": (lambda d: d["metrics"][2].pop("margin"), "metrics[errors] has no threshold"),
    "two thresholds": (lambda d: d["metrics"][0].update(margin=0.1), "metrics[goodput] has a margin and conditions"),
    "a margin that allows all": (lambda d: d["metrics"][2].update(margin=1.0), "metrics[errors].margin is 1.0"),
    "critical without failure": (
        lambda d: d["metrics"][0].pop("failureCondition"),
        "metrics[goodput].failureCondition is missing",
    ),
    "both at once": (
        lambda d: d["metrics"][0].update(failureCondition="result < 1.2"),
        "can both be met; let them exclude each other",
    ),
    "upside down": (
        lambda d: d["metrics"][0].update(successCondition="result < 0.9", failureCondition="result > 1"),
        "which is met by worse and worse results",
    ),
    "none critical": (
        lambda d: [metric.update(critical=False) for metric in d["metrics"]],
        "metrics: none is critical",
    ),
    "critical without data": (
        lambda d: d["metrics"][0].update(mustHaveData=False),
        "metrics[goodput].mustHaveData is false",
    ),
    "too much borne": (
        lambda d: d["metrics"][0].update(inconclusiveLimit=1),
        "metrics[goodput].inconclusiveLimit is 1; of 5 blocks at least 5 must count",
    ),
    "the same metric twice": (
        lambda d: d["metrics"].append(DOCUMENT["metrics"][0]),
        "metrics[goodput] stands there twice for workload conversation",
    ),
    "no normal workload": (
        lambda d: d["workloads"][0].update(kind="hard"),
        "metrics[tokens_equal].workloads is empty, and none is of kind normal",
    ),
    "a metric where nothing is compared": (
        lambda d: d["workloads"][0].update(arms=["static", "window"]),
        "metrics[goodput].workloads names conversation, which candidate and baseline do not both serve",
    ),
    "no falsifier": (lambda d: d.update(falsifies=[]), "falsifies is empty; name the result that would overturn"),
    "falsifier elsewhere": (
        lambda d: d["falsifies"][0].update(workload="equal"),
        "falsifies[1].workload is 'equal', which is not known",
    ),
    "falsifier of nothing": (
        lambda d: d["falsifies"][0].update(metric="speed"),
        "falsifies[1].metric is 'speed', which is not known",
    ),
    "falsifier unread": (lambda d: d["falsifies"][0].update(condition="big"), "falsifies[1].condition: 'big' is no"),
    "prediction without text": (lambda d: d["predictions"][0].update(text=""), "predictions[1] has an empty text"),
    "no time": (lambda d: d["stop"].update(seconds=0), "stop.seconds is 0.0; it must be over 0"),
    "attainment": (lambda d: d["objectives"].update(attainment=99), "objectives.attainment is 99.0"),
    "a price of what": (
        lambda d: d["objectives"].update(price_per_machine_hour=1.0),
        "objectives.currency is empty beside a price",
    ),
    "another version": (lambda d: d.update(version=2), "version is 2; this version of Ekiden reads"),
}


@pytest.mark.parametrize(("change", "told"), CHANGES.values(), ids=CHANGES.keys())
def test_each_fault_is_named(change, told):
    changed = document()
    change(changed)
    with pytest.raises(PlanError) as caught:
        parsed(changed)
    assert told in str(caught.value)


def test_all_faults_are_told_together():
    changed = document()
    changed["decision"]["owner"] = ""
    changed["confirm"]["blocks"] = 1
    changed["arms"]["static"]["settings"]["batch"] = "x"
    changed["metrics"][0]["name"] = "speed"
    del changed["objectives"]["tpot"]
    with pytest.raises(PlanError) as caught:
        parsed(changed)
    assert [fault.split(" ")[0] for fault in caught.value.faults] == [
        "objectives.tpot", "decision.owner", "arms.static.settings.batch", "confirm.blocks", "metrics[speed].name",
    ]  # fmt: skip
    assert "has 5 faults:" in str(caught.value)


def test_what_refers_to_a_faulty_section_is_no_fault_of_its_own():
    changed = document()
    changed["arms"]["static"]["role"] = 5
    changed["workloads"][0]["rate"] = "fast"
    with pytest.raises(PlanError) as caught:
        parsed(changed)
    assert len(caught.value.faults) == 2


@pytest.mark.parametrize("name", PROFILES)
def test_the_profiles_of_the_package_want_only_an_owner(name):
    with pytest.raises(PlanError) as caught:
        parse_plan(profile(name), KNOWN)
    assert caught.value.faults == ["decision.owner is empty; say it in a sentence"]
    plan = parse_plan(filled(profile(name), {"decision": {"owner": "Aoi"}}), KNOWN)
    assert remarks(plan) == []


@pytest.mark.parametrize("name", PROFILES)
def test_a_plan_that_is_written_out_reads_back_equal(name):
    plan = parse_plan(filled(profile(name), {"decision": {"owner": "Aoi"}}), KNOWN)
    again = parse_plan(render(plan), KNOWN)
    assert again == plan
    assert plan_digest(again) == plan_digest(plan)


HOSTILE = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(lambda text: text.strip())


@settings(max_examples=15)
@given(HOSTILE, HOSTILE)
def test_any_words_are_kept(question, owner):
    text = filled(TEXT, {"decision": {"question": question, "owner": owner}})
    plan = parse_plan(text, KNOWN)
    assert (plan.decision.question, plan.decision.owner) == (question, owner)
    assert parse_plan(render(plan), KNOWN) == plan
    assert "# the name of whoever decides" in text


def test_the_digest_is_of_what_a_plan_says():
    plan = parse_plan(TEXT, KNOWN)
    assert plan_digest(parse_plan("# a remark\n" + TEXT, KNOWN)) == plan_digest(plan)
    changed = document()
    changed["confirm"]["seed"] += 1
    assert plan_digest(parsed(changed)) != plan_digest(plan)


def test_remarks_name_what_a_reader_would_ask():
    changed = document()
    changed["workloads"] = changed["workloads"][:1]
    changed["workloads"][0]["arms"] = []
    del changed["arms"]["static"]["tune"]
    changed["metrics"] = [changed["metrics"][0], {"name": "ttft_p99", "direction": "down", "margin": 0.1}]
    changed["falsifies"][0]["workload"] = "conversation"
    changed["predictions"] = []
    told = remarks(parsed(changed))
    assert [remark.partition(" ")[0] for remark in told] == ["no", "no", "arms.static", "ttft_p99"]
    assert "needs 299 requests and about 125" in told[-1]


def test_files_that_are_no_plan(tmp_path):
    path = tmp_path / "plan.toml"
    with pytest.raises(PlanError, match="No such file or directory; `ekiden evaluate init` makes one"):
        read_plan(path, KNOWN)
    path.write_bytes(b"version = \xff")
    with pytest.raises(PlanError, match="byte 10 is no UTF-8"):
        read_plan(path, KNOWN)
    path.write_text("version = ")
    with pytest.raises(PlanError, match="no valid TOML"):
        read_plan(path, KNOWN)
    path.write_text("#" * 2**20 + "\n")
    with pytest.raises(PlanError, match="over 1048576 bytes"):
        read_plan(path, KNOWN)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
).filter(lambda value: value is not None)
PLACES = [
    (section, *rest)
    for section, value in DOCUMENT.items()
    for rest in [(), *([(name,) for name in value] if isinstance(value, dict) else [])]
]


@given(st.sampled_from(PLACES), VALUES)
def test_any_value_anywhere_is_read_or_told(place, value):
    """Not through TOML, which could not write all of these; so nothing but a PlanError may come out."""
    changed = document()
    inner = changed
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with patch.object(tomllib, "loads", lambda _: changed), contextlib.suppress(PlanError):
        parse_plan("", Known())
