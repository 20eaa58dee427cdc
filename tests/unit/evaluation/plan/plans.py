"""A sound plan to change in tests, and the names that it may use."""

import copy
import tomllib
from pathlib import Path
from typing import Any

import tomlkit

from ekiden.evaluation.plan.model import Plan
from ekiden.evaluation.plan.parts import Known
from ekiden.evaluation.plan.read import parse_plan
from ekiden.evaluation.plan.write import filled
from ekiden.evaluation.workloads.changes import CHANGES
from ekiden.evaluation.workloads.sources import SOURCES, check

KNOWN = Known(
    metrics={
        "goodput": "up", "tokens_equal": "up", "errors": "down", "ttft_p95": "down", "ttft_p99": "down",
        "tpot_p50": "down", "tpot_p99": "down", "e2e_p50": "down", "worst_tenant_attainment": "up",
        "language_gap": "down", "output_tokens_per_second": "up",
    },
    sources=SOURCES,
    changes=CHANGES,
    check_workload=check,
)  # fmt: skip
TEXT = filled(Path(__file__).with_name("sound.toml").read_text(encoding="utf-8"), {"decision": {"owner": "Aoi"}})
DOCUMENT: dict[str, Any] = tomllib.loads(TEXT)


def document() -> dict[str, Any]:
    """The sound plan as a document of its own."""
    return copy.deepcopy(DOCUMENT)


def parsed(changed: dict[str, Any]) -> Plan:
    return parse_plan(tomlkit.dumps(changed), KNOWN)
