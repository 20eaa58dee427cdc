"""How a step is divided into passes: the rules that keep bits the same, and how full the passes are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekiden.backends.openvino.passes import DUMMY, PassLimits, least_limit, split

BLOCK = 32


@st.composite
def steps(draw):
    """Rows as the engine plans them: decodes anywhere, prefill chunks from a block border on."""
    starts, counts = [], []
    for _ in range(draw(st.integers(1, 40))):
        if draw(st.booleans()):
            starts.append(draw(st.integers(0, 500)))
            counts.append(1)
        else:
            starts.append(BLOCK * draw(st.integers(0, 8)))
            counts.append(draw(st.integers(2, 300)))
    wanted = [draw(st.booleans()) for _ in counts]
    return starts, counts, wanted


@given(steps(), st.one_of(st.none(), st.integers(least_limit(BLOCK), 400)), st.one_of(st.none(), st.integers(1, 40)))
def test_passes_compute_every_token_once_and_keep_the_rules(step, limit, most_logits):
    starts, counts, wanted = step
    reached = list(starts)
    seen_wanted = []
    for each in split(starts, counts, wanted, limits=PassLimits(limit, most_logits), block_size=BLOCK):
        assert each.tokens == sum(each.counts) >= 2
        assert limit is None or each.tokens <= limit
        assert most_logits is None or len(each.wanted) <= most_logits
        assert DUMMY not in each.rows or (each.rows.count(DUMMY), each.tokens) == (1, 2), "only a lone token is padded"
        assert len(set(each.rows)) == len(each.rows), "a row appears once in a pass"
        for row, start, count in zip(each.rows, each.starts, each.counts, strict=True):
            if row == DUMMY:
                continue
            assert start == reached[row], "tokens in order, none twice, none left out"
            reached[row] += count
            ends = reached[row] == starts[row] + counts[row]
            assert ends or reached[row] % BLOCK == 0, "cut at block borders only"
            assert count > 1 or counts[row] == 1, "no lone token of a longer chunk"
        for index in each.wanted:
            row = each.rows[index]
            assert reached[row] == starts[row] + counts[row], "logits at the end of the row only"
            seen_wanted.append(row)
    assert reached == [start + count for start, count in zip(starts, counts, strict=True)]
    assert sorted(seen_wanted) == [row for row, want in enumerate(wanted) if want]


@pytest.mark.parametrize(("start", "count"), [(31, 34), (31, 2), (30, 35), (5, 100)])
def test_a_chunk_that_starts_inside_a_block_has_no_lone_token(start, count):
    pieces = split([start, 0], [count, 40], [True, True], limits=PassLimits(least_limit(BLOCK)), block_size=BLOCK)
    assert sum(each.tokens for each in pieces) == count + 40
    assert all(part > 1 for each in pieces for part in each.counts)


def test_decodes_fill_what_the_blocks_of_prefills_leave():
    starts = [100] * 64 + [0]
    counts = [1] * 64 + [448]
    passes = split(starts, counts, [True] * 65, limits=PassLimits(80), block_size=BLOCK)
    assert len(passes) == 7  # 512 tokens need at least 6.4 passes of 80
    assert max(each.tokens for each in passes) == 80


def test_a_limit_of_logits_alone_divides_decodes_and_leaves_prompts_whole():
    starts, counts = [100] * 100 + [0], [1] * 100 + [300]
    passes = split(starts, counts, [True] * 101, limits=PassLimits(None, 80), block_size=BLOCK)
    assert [(each.tokens, len(each.wanted)) for each in passes] == [(379, 80), (21, 21)]


def test_a_step_within_the_limit_is_one_pass_in_plan_order():
    passes = split([7, 0, 9], [1, 40, 1], [True, False, True], limits=PassLimits(80), block_size=BLOCK)
    assert len(passes) == 1
    assert passes[0].rows == [0, 1, 2]
    assert passes[0].wanted == [0, 2]


def test_padding_leaves_the_plan_alone():
    starts, counts = [5], [1]
    (only,) = split(starts, counts, [True], limits=PassLimits(80), block_size=BLOCK)
    assert only.rows == [0, DUMMY]
    assert (starts, counts) == ([5], [1])


def test_a_limit_that_cannot_hold_a_block_is_refused():
    with pytest.raises(ValueError, match="cannot hold a block"):
        split([0], [100], [True], limits=PassLimits(BLOCK), block_size=BLOCK)


@given(steps(), st.data(), st.one_of(st.none(), st.integers(least_limit(BLOCK), 200)), st.integers(17, 60))
def test_a_token_and_its_drafts_are_rows_of_one_token_in_one_pass(step, data, limit, most_logits):
    starts, counts, wanted = step
    drafted = frozenset(data.draw(st.sets(st.integers(0, len(counts) - 1))))
    for row in drafted:
        counts[row], wanted[row] = data.draw(st.integers(2, 17)), True
    passes = split(starts, counts, wanted, limits=PassLimits(limit, most_logits), block_size=BLOCK, drafted=drafted)
    found = dict.fromkeys(drafted, 0)
    for each in passes:
        assert len(each.wanted) <= most_logits
        assert limit is None or each.tokens <= limit
        assert each.tokens == sum(each.counts)
        for row in drafted.intersection(each.rows):
            places = [at for at, other in enumerate(each.rows) if other == row]
            assert places == list(range(places[0], places[0] + counts[row])), "its tokens stand together"
            assert [each.starts[at] for at in places] == list(range(starts[row], starts[row] + counts[row]))
            assert {each.counts[at] for at in places} == {1}
            assert set(places) <= set(each.wanted)
            found[row] += 1
    assert set(found.values()) <= {1}
    others = [row for each in passes for row in each.rows if row != DUMMY and row not in drafted]
    assert set(others) == set(range(len(counts))) - drafted
