"""The dashboard and the alerts speak of metrics that exist, with labels that they have, and are well formed.

What a real server's ``/metrics`` says is the measure. ``promtool test rules deploy/prometheus/alerts_test.yml`` checks
when the alerts fire.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its types are a package of their own
from prometheus_client.parser import text_string_to_metric_families

from ekiden.cli.main import main
from ekiden.config import CacheConfig, Config, LedgerConfig, SchedulerConfig
from ekiden.guardrails.limits import load_tenants
from tests.api.real_core import BLOCK, real_core

DEPLOY = Path(__file__).parents[3] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "ekiden.json"
PROMETHEUS = DEPLOY / "prometheus"
SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds."""
Series = dict[str, set[str]]

_SELECTOR = re.compile(r"(ekiden:[a-z0-9_]+)(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"(?:by|without)\s*\(([^)]*)\)")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*"')


@pytest.fixture
async def rendered(tmp_path: Path) -> Series:
    """Every series of a server that has answered and refused something, with its labels."""
    tenants = tmp_path / "tenants.toml"
    tenants.write_text("[tenants.acme]\nweight = 2.0\n")
    config = Config(
        scheduler=SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=2 + 2 * BLOCK),
        cache=CacheConfig(block_size=BLOCK),
        tenants=load_tenants(str(tenants)),
        ledger=LedgerConfig(ledger=False),
    )
    async with real_core(config) as core:
        await core.complete("hello", max_tokens=3, ignore_eos=True)
        await core.complete("")
        await core.clean()
        text = (await core.http.get("/metrics")).text
    found: Series = defaultdict(set)
    for family in text_string_to_metric_families(text):
        found[family.name]  # a family may have no values yet
        for sample in family.samples:
            found[sample.name] |= set(sample.labels)
    found["ekiden:num_requests_waiting_by_reason"] |= {"model_name", "engine", "reason"}  # nothing waits now
    return found


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return list(group["rules"])


def expressions() -> Iterator[tuple[str, str]]:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["definition"]
    for rule in rules():
        yield rule["alert"], rule["expr"]


def used(expression: str) -> Iterator[tuple[str, set[str]]]:
    """The metrics of an expression with the labels that it selects by."""
    for name, selector in _SELECTOR.findall(expression):
        yield name, set(_MATCHER.findall(selector))


def test_what_is_asked_for_exists(rendered: Series) -> None:
    named = set()
    for where, expression in expressions():
        labels_of_all = set(SCRAPED)
        for name, labels in used(expression):
            assert name in rendered, f"{where}: there is no {name}"
            assert labels <= rendered[name] | SCRAPED, f"{where}: {name} has {sorted(rendered[name])}"
            labels_of_all |= rendered[name]
            named.add(name)
        for grouping in _GROUPING.findall(expression):
            assert {label.strip() for label in grouping.split(",")} <= labels_of_all, f"{where}: {grouping}"
    # The dashboard leaves nothing out that a server counts.
    told = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in named}
    all_there_is = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in rendered}
    left_out = {re.sub(r"_total$", "", name) for name in all_there_is} - {re.sub(r"_total$", "", name) for name in told}
    assert left_out == {"ekiden:tenant_prompt_tokens"}, "give each new metric a panel in deploy/"


def test_the_dashboard_is_well_formed() -> None:
    board = dashboard()
    panels = board["panels"]
    assert board["id"] is None, "an import gives it one"
    assert board["uid"] == "ekiden"
    assert board["schemaVersion"] >= 39
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    titles = [panel["title"] for panel in panels]
    assert len(titles) == len(set(titles))
    assert {panel["type"] for panel in panels} == {"row", "stat", "timeseries"}
    for panel in panels:
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert references
        assert len(references) == len(set(references))
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
            assert target["expr"].count("(") == target["expr"].count(")")
            assert target["expr"].count("{") == target["expr"].count("}")


def test_panels_do_not_lie_on_each_other() -> None:
    places = [(panel["title"], panel["gridPos"]) for panel in dashboard()["panels"]]
    for title, place in places:
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24, title
    for (title, a), (other, b) in combinations(places, 2):
        apart_x = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart_y = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart_x or apart_y, f"{title} and {other}"


def test_the_dashboard_uses_the_variables_it_has() -> None:
    board = dashboard()
    names = {variable["name"] for variable in board["templating"]["list"]}
    text = json.dumps(board["panels"]) + json.dumps(board["templating"])
    told = set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval", "__all"}
    assert told == names == {"datasource", "instance", "model_name"}


def test_each_alert_says_what_to_do_next() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) >= 7
    for rule in rules():
        assert re.fullmatch(r"\d+[smh]", rule["for"])
        assert rule["labels"] in ({"severity": "warning"}, {"severity": "critical"})
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.search(r"`ekiden (explain|top)", rule["annotations"]["description"]), rule["alert"]


def test_every_alert_is_tested_and_the_scrape_example_loads_them() -> None:
    tests = (PROMETHEUS / "alerts_test.yml").read_text(encoding="utf-8")
    parsed = yaml.safe_load(tests)
    assert parsed["rule_files"] == ["alerts.yml"]
    assert {rule["alert"] for rule in rules()} == set(re.findall(r"Ekiden\w+", tests))
    example = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    assert example["rule_files"] == ["alerts.yml"]
    (job,) = example["scrape_configs"]
    assert job["job_name"] == "ekiden", "the alert for a server that is down names the job"
    assert job["metrics_path"] == "/metrics"


def test_the_commands_that_the_alerts_name_exist(capsys: pytest.CaptureFixture[str]) -> None:
    descriptions = " ".join(rule["annotations"]["description"] for rule in rules())
    commands = set(re.findall(r"`(ekiden [^`]+)`", descriptions))
    flags = set(re.findall(r"--[a-z-]+", descriptions))
    assert commands
    assert flags
    for command in sorted({command.split()[1] for command in commands}):
        assert main([command, "--help"]) == 0
    assert main(["serve", "--help"]) == 0
    known = capsys.readouterr().out
    assert {flag for flag in flags if flag not in known} == set()
