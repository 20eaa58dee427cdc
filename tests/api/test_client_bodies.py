"""Bodies as programs that people run send them, written after their documentation, are answered, and what they ask for
is done or named.

Each file of ``tests/data/client_bodies`` holds a body with what must come of it: the names of the fields without
effect, sampling values that the engine is given, texts that the prompt holds, or the field for which it is refused.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import Memory, assert_error, events

BODIES = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((Path(__file__).parent.parent / "data" / "client_bodies").glob("*.json"))
}


@pytest.mark.parametrize("name", BODIES)
async def test_bodies_of_clients_are_answered(wide: Memory, name: str) -> None:
    case: dict[str, Any] = BODIES[name]
    response = await wide.http.post(case["path"], json=case["body"])
    if "refused" in case:
        assert_error(response, 400, case["refused"])
        return
    assert response.status_code == 200, response.text
    told = response.headers.get("x-ekiden-ignored-fields", "")
    assert sorted(filter(None, told.split(", "))) == sorted(case["ignored"])
    answer = events(response.text)[1] if case["body"].get("stream") else response.json()
    assert answer["choices"]
    (request,) = wide.engine.requests
    sampling = request.sampling
    given = {key: getattr(sampling, key) for key in case.get("sampling", {})}
    assert {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()} == case.get(
        "sampling", {}
    )
    constrained = ("structured_outputs", "grammar", "format", "extra_body")
    assert (sampling.grammar is not None) is any(key in case["body"] for key in constrained)
    prompt = wide.engine.tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)
    for text in case.get("prompt", []):
        assert text in prompt
