"""Blocks are the same for the same arguments, share nothing between dev and confirm, and have the rate asked for."""

from collections import defaultdict

import msgspec
import pytest

from ekiden.errors import UserError
from ekiden.evaluation.workloads.offer import Kind
from ekiden.evaluation.workloads.package_data import digest_of, trace
from ekiden.evaluation.workloads.source import SPLITS
from ekiden.evaluation.workloads.sources import COMMON, SOURCES, blocks_available, check, faults, make
from ekiden.evaluation.workloads.traces import TRACES
from tests.unit.evaluation.workloads.making import made, spec_of

TRACE_NAMES = [source.name for source in TRACES]


@pytest.mark.parametrize("source", SOURCES)
def test_the_same_arguments_give_the_same_digest_and_others_another(source):
    first = made(source)
    assert first.digest == made(source).digest
    others = {made(source, block=1).digest, made(source, split="confirm").digest, made(source, seed=2).digest}
    assert len({first.digest, *others}) == 4


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_block_is_in_order_and_has_the_rate_asked_for(source, split):
    workload = made(source, split=split, block=3)
    assert len(workload.offers) == round(workload.seconds * workload.made["rate"])
    times = [offer.at for offer in workload.offers]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= workload.seconds
    assert len({offer.id for offer in workload.offers}) == len(workload.offers)
    for offer in workload.offers:
        assert (offer.prompt_tokens >= 1) != (offer.text is not None)
        assert offer.max_tokens == offer.output_tokens >= 1
        assert offer.prefix_tokens <= offer.prompt_tokens
        assert not offer.prefix_of or offer.prefix_of < offer.id  # a request begins like an earlier one
    assert workload.sources == {path: digest_of(path) for path in workload.sources}
    assert workload.made["options"].keys() == {o.name for o in (*SOURCES[source].options, *COMMON)}


@pytest.mark.parametrize("source", SOURCES)
def test_ids_of_different_blocks_differ(source):
    ids = [
        offer.id for split in SPLITS for block in range(3) for offer in made(source, split=split, block=block).offers
    ]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("source", TRACE_NAMES)
def test_all_blocks_of_a_trace_share_no_row(source):
    seen, halves = set[int](), defaultdict[str, set[int]](set)
    for split in SPLITS:
        for block in range(blocks_available(spec_of(source), split) or 0):
            first, last = made(source, split=split, block=block).made["rows"]
            rows = set(range(first, last))
            assert not rows & seen
            seen |= rows
            halves[split] |= rows
    total = len(trace(made(source).made["file"]))
    assert max(halves["dev"]) < total // 2 <= min(halves["confirm"])
    assert len(seen) > total - 2 * 48


@pytest.mark.parametrize("source", TRACE_NAMES)
def test_a_window_of_a_trace_is_scaled_and_nothing_else(source):
    scale = 0.125
    workload = made(source, block=5, length_scale=scale)
    rows = trace(workload.made["file"])[slice(*workload.made["rows"])]
    assert [offer.tenant for offer in workload.offers] == [row.tenant for row in rows]
    assert [offer.prompt_tokens for offer in workload.offers] == [
        max(1, round(row.prompt_tokens * scale)) for row in rows
    ]
    assert [offer.output_tokens for offer in workload.offers] == [
        max(1, round(row.output_tokens * scale)) for row in rows
    ]
    factor = workload.made["time_scale"]
    wanted = [(row.arrival_s - rows[0].arrival_s) * factor for row in rows]
    assert [offer.at for offer in workload.offers] == pytest.approx(wanted, abs=1e-3)
    assert workload.made["trace_seconds"] * factor == pytest.approx(workload.seconds, rel=1e-3)


def test_prefixes_of_a_trace_are_those_of_its_rows():
    workload = made("mooncake-conversation", block=2, length_scale=0.25)
    rows = trace(workload.made["file"])[slice(*workload.made["rows"])]
    index = {offer.id: place for place, offer in enumerate(workload.offers)}
    shared = 0
    for place, offer in enumerate(workload.offers):
        longest = max((_common(rows[place].blocks, earlier.blocks) for earlier in rows[:place]), default=0)
        assert bool(offer.prefix_of) == bool(longest)
        if longest:
            like = index[offer.prefix_of]
            assert _common(rows[place].blocks, rows[like].blocks) == longest
            whole = min(longest * 128, offer.prompt_tokens, workload.offers[like].prompt_tokens)
            assert offer.prefix_tokens == whole
            shared += 1
    assert shared > len(rows) // 2


def _common(one, other):
    pairs = zip(one, other, strict=False)
    return next((depth for depth, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def test_caps_cut_what_is_longer_and_are_counted():
    free = made("azure-conversation")
    options = {"max_prompt_tokens": 200, "max_output_tokens": 50}
    capped = made("azure-conversation", options=options)
    assert [o.prompt_tokens for o in capped.offers] == [min(200, o.prompt_tokens) for o in free.offers]
    assert [o.output_tokens for o in capped.offers] == [min(50, o.output_tokens) for o in free.offers]
    assert [o.max_tokens for o in capped.offers] == [o.output_tokens for o in capped.offers]
    assert capped.made["cut"] == {
        "prompts": sum(o.prompt_tokens > 200 for o in free.offers),
        "answers": sum(o.output_tokens > 50 for o in free.offers),
    }
    assert free.made["cut"] == {"prompts": 0, "answers": 0}


def test_a_block_that_is_not_there_is_refused_with_how_many_there_are():
    there = blocks_available(spec_of("servegen-reason"), "confirm")
    assert there is not None
    made("servegen-reason", split="confirm", block=there - 1)
    with pytest.raises(UserError, match=f"block {there} of confirm does not exist.*make {there} blocks"):
        made("servegen-reason", split="confirm", block=there)
    with pytest.raises(UserError, match="counted from 0"):
        made("poisson", block=-1)
    with pytest.raises(UserError, match="dev, confirm"):
        make(spec_of("poisson"), split="test", block=0, seed=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"source": "azure"}, "source is 'azure'; there are azure-conversation"),
        ({"rate": 0.0}, "rate is 0.0; give a number above 0"),
        ({"seconds": -1.0}, "seconds is -1.0"),
        ({"length_scale": float("nan")}, "length_scale is nan"),
        ({"rate": 0.001}, "makes no request"),
        ({"change": ["no-limits"]}, "change has 'no-limits'; there are no-max-tokens"),
        ({"change": ["abstain", "abstain"]}, "names one twice"),
        ({"options": {"cv": 1}}, "options has 'cv', which poisson does not know; there are prompt_tokens"),
        ({"options": {"output_cv": "high"}}, "output_cv must be a number, not 'high'"),
        ({"options": {"output_cv": float("inf")}}, "output_cv must be a number, not inf"),
        ({"options": {"output_cv": -0.5}}, "output_cv must be at least 0, not -0.5"),
        ({"options": {"output_cv": 50}}, "output_cv must be at most 5, not 50"),
        ({"options": {"output_tokens": 1.5}}, "output_tokens must be a whole number, not 1.5"),
        ({"options": {"group": True}}, "group must be a whole number, not True"),
        ({"options": {"arrivals": "often"}}, "arrivals must be one of poisson, gamma, even, together, not 'often'"),
        ({"source": "prompts", "options": {"languages": ["fr"]}}, "languages knows en, ja, not 'fr'"),
        ({"source": "prompts", "options": {"languages": []}}, "languages must be a list of different names"),
        ({"source": "prompts", "options": {"languages": ["en", "en"]}}, "languages must be a list of different"),
        ({"source": "prompts", "rate": 20.0}, "480 different tasks in en and ja, and there are 234"),
        ({"source": "flood", "seconds": 20.0}, "20 requests, and a flood of 20 to 1 needs at least 21"),
        (
            {"source": "lone-client"},
            "a lone client waits for its answer, which may take 3.84 s, and has 1.00 s; ask for a rate of at most 0.26",
        ),
        ({"source": "servegen-reason", "rate": 50.0}, "2400 requests, and half of the trace has 878"),
    ],
)
def test_a_wrong_section_is_refused_with_field_value_and_way_out(fields, said):
    spec = msgspec.structs.replace(spec_of("poisson"), **fields)
    assert any(said in fault for fault in faults(spec)), faults(spec)
    with pytest.raises(UserError, match="workload 'case'"):
        check(spec)


def test_all_faults_are_told_at_once():
    spec = spec_of("poisson", rate=0.0, change=["none"], options={"x": 1, "group": 0})
    assert len(faults(spec)) == 4


def test_every_kind_has_its_sources_and_each_says_in_a_line_what_it_is():
    assert {source.kind for source in SOURCES.values()} == set(Kind)
    assert all(source.summary and "\n" not in source.summary for source in SOURCES.values())
