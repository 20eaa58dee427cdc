"""Health, readiness, metrics, versions, models, ids, unknown paths, documentation."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

import ekiden
from ekiden.engine.interface import OTHER_TENANTS, EngineStats, Health, TenantTotals
from ekiden.engine.totals import Totals
from ekiden.state.request import Finish, FinishReason, Refusal, RefusalReason, RequestUpdate
from tests.api.conftest import Memory, assert_error
from tests.api.scripted import CONTEXT, END, FINGERPRINT, MODEL, VOCAB_SIZE


@pytest.mark.parametrize("health", list(Health))
async def test_health_tells_the_truth(memory: Memory, health):
    memory.engine.health = health
    status = 200 if health is Health.OK else 503
    response = await memory.http.get("/health")
    assert (response.status_code, response.content) == (status, b"")
    assert (await memory.http.head("/health")).status_code == status
    response = await memory.http.get("/ready")
    assert (response.status_code, response.json()) == (status, {"status": health.value})
    assert (await metric_values(memory))["ekiden:engine_healthy"] == (health is Health.OK)


async def test_draining_server_is_alive_but_not_ready(memory: Memory):
    memory.app.state.doors.generation.flight.draining = True
    assert (await memory.http.get("/health")).status_code == 200
    response = await memory.http.get("/ready")
    assert (response.status_code, response.json()) == (503, {"status": "draining"})


async def test_version_and_load(memory: Memory):
    memory.engine.snapshot = EngineStats(num_running=3, num_waiting=4)
    body = (await memory.http.get("/version")).json()
    assert body["version"] == ekiden.__version__
    assert body["system_fingerprint"] == FINGERPRINT
    assert (await memory.http.get("/load")).json()["server_load"] == 7


async def test_models(memory: Memory):
    listed = (await memory.http.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == [MODEL]
    one = (await memory.http.get(f"/v1/models/{MODEL}")).json()
    assert one == listed["data"][0]
    assert one["max_model_len"] == CONTEXT
    for path in ("nope", "%2e%2e%2fetc%2fpasswd", "..%2f..%2fetc/hostname", MODEL.upper(), "x" * 5000):
        assert_error(await memory.http.get(f"/v1/models/{path}"), 404, "model", "model_not_found")


async def metric_values(memory: Memory) -> dict[str, float]:
    response = await memory.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            assert sample.labels.pop("model_name") == MODEL
            assert sample.labels.pop("engine") == "0"
            key = sample.name + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items()))
            values[key] = sample.value
    return values


async def test_metrics_from_the_engine(memory: Memory):
    memory.engine.snapshot = EngineStats(
        num_running=2, num_waiting=5, waiting_by_reason={"slots": 4, "kv_blocks": 1}, kv_blocks_total=8,
        kv_blocks_used=2,
        prompt_tokens_total=10, generation_tokens_total=20, preemptions_total=1, prefix_cache_queries_total=9,
        prefix_cache_hits_total=4, finished_total={"stop": 3}, refused_total={"queue_full_requests": 2},
    )  # fmt: skip
    values = await metric_values(memory)
    expected = {
        "ekiden:num_requests_running": 2, "ekiden:num_requests_waiting": 5, "ekiden:kv_cache_usage_perc": 0.25,
        "ekiden:num_requests_waiting_by_reason reason=slots": 4, "ekiden:num_preemptions_total": 1,
        "ekiden:prompt_tokens_total": 10, "ekiden:generation_tokens_total": 20,
        "ekiden:prefix_cache_queries_total": 9, "ekiden:prefix_cache_hits_total": 4,
        "ekiden:request_success_total finished_reason=stop": 3,
        "ekiden:admission_rejections_total at=intake reason=queue_full_requests": 2,
    }  # fmt: skip
    assert {key: values[key] for key in expected} == expected


async def test_histograms_of_requests(memory: Memory):
    """Those of ended requests are the engine's; the gaps between tokens are seen here."""
    totals = Totals()
    ends = (
        ended(admitted=1.5, first_token=3.5, end=7.5, tokens=5),
        ended(admitted=1.5, first_token=2.0, end=2.0, tokens=1),
        ended(admitted=2.0, first_token=None, end=3.0, tokens=0),
        ended(admitted=None, first_token=None, end=4.0, tokens=0),
    )
    totals.count_ends([RequestUpdate("ended", (), end, None) for end in ends])
    memory.engine.snapshot = EngineStats(latencies=tuple(each.snapshot() for each in totals.latencies.values()))
    await memory.complete()
    await memory.chat(stream=True, n=2)
    values = await metric_values(memory)
    expected = {
        "time_to_first_token": (2, 2.5 + 1.0), "e2e_request_latency": (4, 6.5 + 1.0 + 2.0 + 3.0),
        "request_queue_time": (3, 0.5 + 0.5 + 1.0), "request_prefill_time": (2, 2.0 + 0.5),
        "request_decode_time": (2, 4.0 + 0.0), "request_time_per_output_token": (1, 1.0),
    }  # fmt: skip
    for name, (count, total) in expected.items():
        assert values[f"ekiden:{name}_seconds_count"] == values[f"ekiden:{name}_seconds_bucket le=+Inf"] == count
        assert values[f"ekiden:{name}_seconds_sum"] == pytest.approx(total)
    # On a bound means within it.
    assert values["ekiden:e2e_request_latency_seconds_bucket le=1.0"] == 1
    assert values["ekiden:request_time_per_output_token_seconds_bucket le=0.75"] == 0
    assert values["ekiden:request_time_per_output_token_seconds_bucket le=1.0"] == 1
    assert values["ekiden:inter_token_latency_seconds_count"] == 3 * 2  # three tokens an answer


def ended(*, admitted: float | None, first_token: float | None, end: float, tokens: int) -> Finish:
    return Finish(
        reason=FinishReason.LENGTH, stop_reason=None, num_prompt_tokens=4, num_output_tokens=tokens,
        num_cached_tokens=0, arrival_time=1.0, admitted_time=admitted, first_token_time=first_token, finish_time=end,
    )  # fmt: skip


async def test_tenants_only_where_they_are_configured(memory: Memory):
    assert not any("tenant=" in key for key in await metric_values(memory))
    memory.engine.snapshot = EngineStats(tenants={"acme": TenantTotals(2, 1, 30, 12), OTHER_TENANTS: TenantTotals()})
    values = await metric_values(memory)
    assert values["ekiden:tenant_requests_total tenant=acme"] == 2
    assert values["ekiden:tenant_rejections_total tenant=acme"] == 1
    assert values["ekiden:tenant_prompt_tokens_total tenant=acme"] == 30
    assert values["ekiden:tenant_generation_tokens_total tenant=acme"] == 12
    assert values["ekiden:tenant_requests_total tenant=(others)"] == 0


async def test_what_has_not_happened_is_told_as_zero(memory: Memory):
    values = await metric_values(memory)
    for reason in FinishReason:
        assert values[f"ekiden:request_success_total finished_reason={reason.value}"] == 0
    for refusal in RefusalReason:
        assert values[f"ekiden:admission_rejections_total at=intake reason={refusal.value}"] == 0


async def test_rejections_are_counted_wherever_they_happen(memory: Memory):
    await memory.complete([1] * CONTEXT)
    await memory.complete("")
    memory.engine.refuse = lambda request: Refusal(reason=RefusalReason.DRAINING, message="x")
    await memory.complete()
    memory.engine.snapshot = EngineStats(refused_total={"context_length_exceeded": 2})
    values = await metric_values(memory)
    assert values["ekiden:admission_rejections_total at=api reason=context_length_exceeded"] == 1
    assert values["ekiden:admission_rejections_total at=api reason=prompt_empty"] == 1
    assert values["ekiden:admission_rejections_total at=intake reason=context_length_exceeded"] == 2


async def test_ids(memory: Memory):
    for response in (
        await memory.complete(),
        await memory.chat(stream=True),
        await memory.http.get("/health"),
        await memory.http.get("/nowhere"),
        await memory.complete(n=0),
    ):
        assert len(response.headers["x-ekiden-request-id"]) == 32
        assert "x-request-id" not in response.headers
    memory.http.headers["x-request-id"] = "mine-1"
    first, second = await memory.complete(), await memory.complete()
    assert first.headers["x-request-id"] == second.headers["x-request-id"] == "mine-1"
    assert first.headers["x-ekiden-request-id"] != second.headers["x-ekiden-request-id"]
    assert memory.engine.requests[-1].request_id == second.headers["x-ekiden-request-id"]
    assert second.json()["id"] == f"cmpl-{second.headers['x-ekiden-request-id']}"
    memory.http.headers["x-request-id"] = "x" * 1000
    assert "x-request-id" not in (await memory.complete()).headers


async def test_deadlines(memory: Memory):
    await memory.complete()
    memory.http.headers["x-request-deadline-ms"] = "2500"
    await memory.complete()
    free, bound = memory.engine.requests
    assert free.deadline is None
    assert bound.deadline == pytest.approx(bound.arrival_time + 2.5)


async def test_unknown_paths_and_methods(memory: Memory):
    assert "/nowhere" in assert_error(await memory.http.get("/nowhere"), 404, code="not_found")
    response = await memory.http.get("/v1/completions")
    assert_error(response, 405, code="method_not_allowed")
    assert response.headers["allow"] == "POST"
    assert_error(await memory.http.post("/v1/models"), 405)
    assert_error(await memory.http.post("/v1/completions/", json={}), 404)


async def test_no_cors(memory: Memory):
    response = await memory.http.get("/v1/models", headers={"origin": "http://evil.example"})
    assert not any(name.startswith("access-control") for name in response.headers)


async def test_our_own_faults_are_errors_in_the_same_shape(memory: Memory):
    def broken(request):
        raise ZeroDivisionError

    memory.engine.script = broken
    response = await memory.complete()
    message = assert_error(response, 500, code="internal")
    assert response.headers["x-ekiden-request-id"] in message


async def test_documentation(memory: Memory):
    assert (await memory.http.get("/docs")).status_code == 200
    document = (await memory.http.get("/openapi.json")).json()
    schema = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/ChatRequest"}
    schemas = document["components"]["schemas"]
    told = schemas["ChatRequest"]["properties"]
    assert told["prediction"]["description"].startswith("Taken without effect: ")
    assert told["functions"] == {"description": told["functions"]["description"], "enum": [[], None]}
    assert {"ChatMessage", "CompletionRequest", "Error", "StreamOptions"} <= set(schemas)
    references = [
        part.split('"')[0] for part in (await memory.http.get("/openapi.json")).text.split("#/components/schemas/")[1:]
    ]
    assert set(references) <= set(schemas)


async def test_tokenize_and_back(memory: Memory):
    body = (await memory.http.post("/tokenize", json={"prompt": "hé<|im_end|>", "return_token_strs": True})).json()
    assert body == {
        "count": 4,
        "max_model_len": CONTEXT,
        "tokens": [104, 0xC3, 0xA9, 257],
        "token_strs": ["h", "\ufffd", "\ufffd", "<|im_end|>"],
    }
    back = await memory.http.post("/detokenize", json={"model": MODEL, "tokens": body["tokens"]})
    assert back.json() == {"prompt": "hé<|im_end|>"}
    messages = [{"role": "user", "content": "hi"}]
    rendered = (await memory.http.post("/tokenize", json={"messages": messages})).json()["tokens"]
    await memory.chat(messages)
    assert tuple(rendered) == memory.engine.requests[0].prompt_token_ids
    shorter = await memory.http.post("/tokenize", json={"messages": messages, "add_generation_prompt": False})
    assert shorter.json()["count"] < len(rendered)
    assert (await memory.http.post("/tokenize", json={"prompt": ""})).json()["tokens"] == []


async def test_tokenizer_info(memory: Memory):
    about = (await memory.http.get("/tokenizer_info")).json()
    assert about == {
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "add_bos_token": False,
        "vocab_size": VOCAB_SIZE,
        "model_max_length": CONTEXT,
    }
    (end,) = (await memory.http.post("/tokenize", json={"prompt": about["eos_token"]})).json()["tokens"]
    assert end == END


async def test_tokenize_bad_input(memory: Memory):
    assert_error(await memory.http.post("/tokenize", json={"prompt": "x", "messages": []}), 400, "messages")
    messages = [{"role": "user", "content": "x"}]
    assert_error(await memory.http.post("/tokenize", json={"prompt": "x", "messages": messages}), 400, "prompt")
    assert_error(await memory.http.post("/tokenize", json={"prompt": "x", "model": "other"}), 404, "model")
    assert_error(await memory.http.post("/detokenize", json={"tokens": [10**6]}), 400, "tokens")
    assert_error(await memory.http.post("/detokenize", json={"tokens": ["a"]}), 400, "tokens[0]")
