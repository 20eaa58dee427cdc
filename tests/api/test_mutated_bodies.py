"""Bodies of agents with one thing in them changed or gone are answered or refused, and are never a fault of ours."""

import copy
import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.conftest import Memory

AGENTS = Path(__file__).parents[1] / "data" / "agents"
BODIES: list[tuple[str, dict[str, Any]]] = [
    (agent["path"], {**agent["base"], **turn["body"]})
    for agent in (json.loads(path.read_text(encoding="utf-8")) for path in sorted(AGENTS.glob("*.json")))
    for turn in agent["turns"]
]
GONE = object()
JUNK: Any = st.sampled_from(
    [
        *(GONE, None, True, 0, -1, 1.5, 2**64, "", "x", "\x00", [], {}, [[]], [{}], [None], ["x"]),
        *({"type": "x"}, {"type": "text"}, {"type": "text", "text": 5}, {"type": "function"}, {"a": {"b": []}}),
        {"type": "custom", "name": "c"},
    ]
)


def holders(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON value, as what holds it and the key."""
    keys: list[Any] = (
        list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    )
    return [(value, key) for key in keys] + [place for key in keys for place in holders(value[key])]


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.sampled_from(BODIES), st.data())
async def test_one_wrong_thing_is_no_fault_of_ours(wide: Memory, sent: tuple[str, dict[str, Any]], data: Any) -> None:
    path, body = sent[0], copy.deepcopy(sent[1])
    holder, key = data.draw(st.sampled_from(holders(body)))
    junk = data.draw(JUNK)
    if junk is GONE:
        del holder[key]
    else:
        holder[key] = junk
    response = await wide.http.post(path, json=body)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code == 400:
        error = response.json()["error"]
        assert error["message"]
        assert "pydantic" not in error["message"].lower()
