"""`ekiden evaluate workloads`: the list, and what one block looks like."""

import json

import pytest
from click.testing import CliRunner

from ekiden.cli.evaluate_workloads import read_options, workloads
from ekiden.errors import UserError
from ekiden.evaluation.workloads.changes import CHANGES
from ekiden.evaluation.workloads.sources import SOURCES


def shown(*arguments):
    return CliRunner().invoke(workloads, arguments, catch_exceptions=False)


def test_the_list_names_all_sources_and_changes():
    text = shown().output
    assert all(name in text for name in (*SOURCES, *CHANGES))
    told = json.loads(shown("--json").output)
    assert told["sources"].keys() == SOURCES.keys()
    assert told["sources"]["length-variance"]["options"]["cv"]["default"] == 1.0
    assert told["changes"] == CHANGES


@pytest.mark.parametrize("name", SOURCES)
def test_a_block_of_each_source_is_shown(name):
    result = shown(name, "--rate", "0.2", "--seconds", "150")
    assert result.exit_code == 0
    assert "30" in result.output
    assert "digest" in result.output


def test_json_has_the_figures_the_options_and_the_files():
    arguments = (
        "prompts",
        "--option",
        'languages=["en"]',
        "--option",
        "arrivals=even",
        "--change",
        "abstain",
        "--json",
    )
    told = json.loads(shown(*arguments).output)
    assert told["statistics"]["languages"] == {"en": 60}
    assert told["statistics"]["deadlines"] == 60
    assert told["made"]["options"]["arrivals"] == "even"
    assert set(told["sources"]) == {"prompts/prompts_en.jsonl", "traces/azure_llm_2023_conv.csv"}


def test_what_is_wrong_is_told():
    with pytest.raises(UserError, match="options has 'cv'"):
        shown("poisson", "--option", "cv=1")
    with pytest.raises(UserError, match="write NAME=VALUE"):
        read_options(["cv"])
    assert shown("nowhere").exit_code == 2
