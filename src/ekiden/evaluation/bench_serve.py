"""Load on a running server, as figures. The server may be any that speaks the OpenAI completions API."""

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

from ekiden.evaluation.bench import WHOLE, Figures, Shape, lineage
from ekiden.evaluation.load import LoadRun, closed_loop, completion_requests, open_loop
from ekiden.evaluation.metrics import request_figures
from ekiden.evaluation.sse_client import Target, TargetError
from ekiden.evaluation.workload import poisson_arrivals, synthetic_prompts

_LOOKUP_TIMEOUT = 10.0


async def bench_serve(target: Target, shape: Shape, *, model_id: str | None, timeout: float, warm_up: int) -> Figures:
    """Raises :class:`TargetError` when nobody answers or the server lists no model."""
    model = model_id if model_id is not None else await asyncio.to_thread(first_model, target)
    total = warm_up + shape.requests
    prompts: list[list[int] | str] = [*synthetic_prompts(total, shape.prompt_tokens, seed=shape.seed)]
    requests = completion_requests(
        target,
        model,
        prompts,
        output_tokens=shape.output_tokens,
        temperature=shape.temperature,
        top_p=shape.top_p,
        seed=shape.seed,
    )
    if warm_up:
        await closed_loop(target, requests[:warm_up], concurrency=warm_up, timeout=timeout)
    run = await _run(target, requests[warm_up:], shape, timeout)
    figures = request_figures(run.records, duration=run.duration)
    figures["lineage"] = {
        **lineage(None, shape, None),
        "url": target.url,
        "model": model,
        "loop": "open" if shape.rate else "closed",
        "rate": shape.rate,
        "concurrency": shape.concurrency,
        "warm_up_requests": warm_up,
        **await asyncio.to_thread(_told_by, target),
    }
    return figures


def _told_by(target: Target) -> Figures:
    """What made the answers, where the server tells it as ours does."""
    try:
        return {WHOLE: get_json(target, "/lineage")}
    except TargetError:
        return {}


async def _run(target: Target, requests: list[bytes], shape: Shape, timeout: float) -> LoadRun:
    if shape.rate is not None:
        arrivals = poisson_arrivals(len(requests), shape.rate, seed=shape.seed)
        return await open_loop(target, requests, arrivals, timeout=timeout)
    return await closed_loop(target, requests, concurrency=shape.concurrency or shape.rows, timeout=timeout)


def first_model(target: Target) -> str:
    """The id of the first model that ``/v1/models`` lists."""
    answer = get_json(target, "/models")
    try:
        return str(answer["data"][0]["id"])
    except (KeyError, IndexError, TypeError) as error:
        raise TargetError(f"{target.url}/models lists no model; name one with --model-id") from error


def get_json(target: Target, route: str) -> Any:
    """One GET below ``/v1``; raises :class:`TargetError` with what went wrong and what to do."""
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    request = urllib.request.Request(target.url + route, headers=headers)  # noqa: S310 - Target allows http(s) only
    try:
        with urllib.request.urlopen(request, timeout=_LOOKUP_TIMEOUT) as answer:  # noqa: S310 - as above
            return json.load(answer)
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        hint = "; give its key with --api-key" if error.code == 401 else ""
        raise TargetError(f"{target.url}{route} answered {error.code} {error.reason}{hint}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise TargetError(f"no usable answer from {target.url}{route}: {reason}; is the server running?") from error
