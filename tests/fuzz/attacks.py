"""The attacks: each sends what hypothesis draws and asserts what must be true of the answer."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks
from schemathesis.core.result import Ok
from schemathesis.specs.openapi import checks as openapi_checks

from tests.fuzz.extremes import Bodies
from tests.fuzz.neighbours import Neighbours
from tests.fuzz.strategies import body, door_body, in_http, mangled, pieces
from tests.fuzz.target import Target

CHECKS: list[Any] = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.negative_data_rejection,
    openapi_checks.unsupported_method,
]
LIMITS = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/messages": "max_tokens",
    "/v1/responses": "max_output_tokens",
}
"""Fields that keep an answer short, so that an attack sends many requests in its time."""
ROUTES = {"/v1/chat/completions": True, "/v1/completions": False}
LAST_EVENTS = {
    "/v1/messages": frozenset({"message_stop", "error"}),
    "/v1/responses": frozenset({"response.completed", "response.incomplete", "response.failed"}),
}


SHRINK = True
"""Whether hypothesis shrinks a failure, which pays where answers take no time."""


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink] if SHRINK else [Phase.generate],
    )


def bodies(target: Target, examples: int) -> None:
    """Requests of all kinds are answered or refused, and every stream ends."""

    @_settings(examples)
    @given(data=st.data(), path=st.sampled_from(sorted(ROUTES)))
    def attack(data: st.DataObject, path: str) -> None:
        content = data.draw(body(target.vocab_size, target.model, chat=ROUTES[path]))
        status, text = target.post(path, content)
        if status == 200 and content["stream"]:
            check_stream(text)
        elif status == 200:
            assert json.loads(text)["choices"]

    attack()


def check_stream(text: bytes) -> None:
    """Every event is JSON in valid UTF-8, and ``[DONE]`` is the last."""
    events = text.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    for event in events[:-2]:
        if not event.startswith(":"):
            json.loads(event.removeprefix("data: "))


def doors(target: Target, examples: int) -> None:
    """The same for the other protocols, whose streams are named events."""

    @_settings(examples)
    @given(data=st.data(), path=st.sampled_from(sorted(LAST_EVENTS)))
    def attack(data: st.DataObject, path: str) -> None:
        content = data.draw(door_body(target.model, path))
        status, text = target.post(path, content)
        if status == 200 and content["stream"]:
            check_named_events(text, LAST_EVENTS[path])
        elif status == 200:
            assert json.loads(text)["id"]

    attack()


def check_named_events(text: bytes, last: frozenset[str]) -> None:
    """Every event carries its name twice, and the last one is an end."""
    *events, rest = text.decode().split("\n\n")
    assert rest == ""
    kinds = []
    for event in events:
        if not event.startswith(":"):
            name, data = event.split("\n")
            kinds.append(json.loads(data.removeprefix("data: "))["type"])
            assert name == f"event: {kinds[-1]}"
    assert kinds[-1] in last
    assert not last & set(kinds[:-1])


def leavers(target: Target, examples: int) -> None:
    """Clients that leave during their request or its answer, with or without closing properly, leave no work behind."""

    @_settings(examples)
    @given(data=st.data(), path=st.sampled_from(sorted(ROUTES)), reset=st.booleans(), read=st.integers(0, 2000))
    def attack(data: st.DataObject, path: str, reset: bool, read: int) -> None:
        content = data.draw(body(target.vocab_size, target.model, chat=ROUTES[path], stream=True))
        content["max_tokens"] = 200
        whole = in_http(path, content)
        target.send(data.draw(pieces(whole)), read=read, reset=reset, patience=target.seconds)

    attack()


def http(target: Target, examples: int) -> None:
    """Malformed HTTP gets an HTTP answer or a closed connection, never a 500."""

    @_settings(examples)
    @given(data=st.data(), path=st.sampled_from(sorted(ROUTES)))
    def attack(data: st.DataObject, path: str) -> None:
        content = data.draw(body(target.vocab_size, target.model, chat=ROUTES[path], stream=False))
        whole = data.draw(mangled(path, content))
        answer = target.send(data.draw(pieces(whole)), patience=0.1)
        for status in re.findall(rb"^HTTP/1\.1 (\d{3}) ", answer, re.MULTILINE):
            assert int(status) < 500, answer[:1000]
        assert not answer or answer.startswith(b"HTTP/1.1 ")

    attack()


def schema(target: Target, examples: int) -> None:
    """``/openapi.json`` is true: valid requests are answered as documented, and invalid ones are refused."""
    document = schemathesis.openapi.from_url(f"http://{target.host}:{target.port}/openapi.json")
    operations = [found.ok() for found in document.get_all_operations() if isinstance(found, Ok)]
    assert len(operations) == sum(len(methods) for methods in document.raw_schema["paths"].values()) > 10
    for operation in operations:
        modes = list(GenerationMode) if operation.body else [GenerationMode.POSITIVE]
        for mode in modes:
            _attack_operation(target, operation, mode, examples if operation.body else min(examples, 5))


def _attack_operation(target: Target, operation: Any, mode: GenerationMode, examples: int) -> None:
    @_settings(examples)
    @given(data=st.data(), case=operation.as_strategy(generation_mode=mode))
    def attack(data: st.DataObject, case: Any) -> None:
        if isinstance(case.body, dict) and mode is GenerationMode.POSITIVE:
            few = set(data.draw(st.lists(st.sampled_from(sorted(case.body)), max_size=3))) if case.body else set()
            needed = {"model", "messages", "prompt", "tokens", "input"}
            case.body = {key: value for key, value in case.body.items() if key in few | needed}
            case.body |= {name: 2 for name in ("n", "best_of") if name in case.body}
            if operation.path in LIMITS:
                case.body[LIMITS[operation.path]] = 2
        if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            case.body["model"] = target.model
        answer = case.call(timeout=target.seconds)
        target.answers[answer.status_code] = target.answers.get(answer.status_code, 0) + 1
        case.validate_response(answer, checks=CHECKS)

    try:
        attack()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE, f"{operation.path} has no valid request"


AT_ONCE = 6
BESIDE = 4
"""How many attacks run together, and how many innocent neighbours beside them."""
OURS = re.compile(rb'"code": ?"(internal|internal_error|engine_error|engine_unavailable)"')
"""In a stream that had begun, what would have been a 5xx."""


def extremes(target: Target, examples: int) -> None:
    """Any two fields of any door at their extremes: no fault of the server's, and its neighbours' answers unchanged."""
    if target.drawn is None:
        document = json.loads(target.get("/openapi.json")[1])
        target.drawn = Bodies(document, model=target.model, vocab_size=target.vocab_size, seed=target.seed)
        target.neighbours = Neighbours(target)
        target.neighbours.learn()
    assert target.neighbours is not None
    with ThreadPoolExecutor(AT_ONCE + BESIDE) as pool:
        for _ in range(0, examples, AT_ONCE):
            beside = target.neighbours.start(pool, BESIDE)
            drawn = [target.drawn.draw() for _ in range(AT_ONCE)]
            for each, call in [(each, pool.submit(target.post, *each)) for each in drawn]:
                try:
                    status, text = call.result()
                    assert not (status == 200 and OURS.search(text)), f"a fault after the first byte: {text[-500:]!r}"
                except Exception as error:
                    raise AssertionError(f"{each[0]} {each[2]} {each[1][:3000]!r}: {error!r}") from error
            target.neighbours.check(beside)


ATTACKS = {
    "bodies": bodies, "doors": doors, "leavers": leavers, "http": http, "schema": schema, "extremes": extremes,
}  # fmt: skip
