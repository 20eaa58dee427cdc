"""Plans of releases: all that is wrong with one is told at once."""

import pytest

from ekiden.evaluation.plan.read import PlanError
from ekiden.release.plan import parse_release, release_digest
from tests.unit.release.world import PLAN, plan_with


def test_a_plan_reads_and_its_digest_is_that_of_what_it_says():
    plan = parse_release(PLAN)
    assert plan.candidate == {"max_num_seqs": 16}
    assert release_digest(plan) == release_digest(parse_release("# a remark\n" + PLAN))
    assert release_digest(plan) != release_digest(plan_with(pairs="7"))


@pytest.mark.parametrize(
    ("replaced", "told"),
    [
        ({"version": "2"}, "version is 2"),
        ({"name": '"a b"'}, "name is 'a b'"),
        ({"owner": '" "'}, "owner is empty"),
        ({"max_num_seqs": '"many"'}, "max_num_seqs is 'many'"),
        ({"max_num_seqs": "16\nguard = 'x'"}, "candidate.guard cannot be released"),
        ({"ttft": "0"}, "objectives.ttft is 0"),
        ({"pairs": "4"}, "canary.pairs is 4; at alpha 0.05 the fewest that can show harm are 5"),
        ({"pairs": "6\nalpha = 0.7"}, "canary.alpha is 0.7"),
        ({"block_seconds": "3"}, "canary.block_seconds is 3; burn_in_seconds and drain_seconds leave less"),
        ({"drain_seconds": "-1"}, "canary.drain_seconds is -1"),
        ({"successCondition": '"value < 3"'}, "successCondition: 'value < 3' is no comparison"),
        ({"failureCondition": '"result < 1"'}, "can both be met"),
        ({"seed": "3\nsede = 4"}, "canary.sede is not known; did you mean seed?"),
        ({"why": '"x"\n[approvals]\nneeded = 0'}, "nothing promotes itself"),
    ],
)  # fmt: skip
def test_faults(replaced, told):
    with pytest.raises(PlanError) as caught:
        plan_with(**replaced)
    assert told in str(caught.value)


def test_all_faults_are_told_at_once():
    with pytest.raises(PlanError) as caught:
        parse_release(PLAN.replace('"anna"', '""').replace("pairs = 6", "pairs = 1").replace("slo_missed", "slo_mist"))
    assert len(caught.value.faults) == 3
