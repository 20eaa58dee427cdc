"""Load on a running server, as figures. The server may be any that speaks the OpenAI completions API."""

import asyncio
from typing import Any

import httpx

from ekiden.evaluation.benches.engine import WHOLE, Shape, lineage
from ekiden.evaluation.load.loops import closed_loop, completion_requests, open_loop
from ekiden.evaluation.load.target import Target, TargetError
from ekiden.evaluation.workloads.synthetic import poisson_arrivals, synthetic_prompts
from ekiden.measure.figures import Figures, stream_figures

_LOOKUP_TIMEOUT = 10.0


async def bench_serve(target: Target, shape: Shape, *, model_id: str | None, timeout: float, warm_up: int) -> Figures:
    """Raises :class:`TargetError` when nobody answers or the server lists no model."""
    model = model_id if model_id is not None else await asyncio.to_thread(first_model, target)
    requests = completion_requests(
        target,
        model,
        synthetic_prompts(warm_up + shape.requests, shape.prompt_tokens, seed=shape.seed),
        output_tokens=shape.output_tokens,
        temperature=shape.temperature,
        top_p=shape.top_p,
        seed=shape.seed,
    )
    first, measured = requests[:warm_up], requests[warm_up:]
    await closed_loop(target, first, concurrency=warm_up, timeout=timeout)
    if shape.rate is not None:
        due = poisson_arrivals(len(measured), shape.rate, seed=shape.seed)
        run = await open_loop(target, measured, due, timeout=timeout)
    else:
        run = await closed_loop(target, measured, concurrency=shape.concurrency or shape.rows, timeout=timeout)
    return stream_figures(run.records, duration=run.duration) | {
        "lineage": {
            **lineage(None, shape, None),
            "url": target.url,
            "model": model,
            "loop": "open" if shape.rate else "closed",
            "rate": shape.rate,
            "concurrency": shape.concurrency,
            "warm_up_requests": warm_up,
            **await asyncio.to_thread(_own_lineage, target),
        }
    }


def _own_lineage(target: Target) -> Figures:
    """The server's own account of what made the answers, where it gives one as ours does."""
    try:
        return {WHOLE: get_json(target, "/lineage")}
    except TargetError:
        return {}


def first_model(target: Target) -> str:
    """The id of the first model that ``/v1/models`` lists."""
    answer = get_json(target, "/models")
    try:
        return str(answer["data"][0]["id"])
    except (KeyError, IndexError, TypeError) as error:
        raise TargetError(f"{target.url}/models lists no model; name one with --model-id") from error


def get_json(target: Target, route: str) -> Any:
    """One GET below ``/v1``; raises :class:`TargetError` with what went wrong and what to do."""
    url = target.url + route
    try:
        with target.client(timeout=_LOOKUP_TIMEOUT, follow_redirects=True) as client:
            answer = client.get(f"{target.base}{route}")
        if answer.is_success:
            return answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise TargetError(target.no_answer(url, error)) from error
    hint = "; give its key with --api-key" if answer.status_code == httpx.codes.UNAUTHORIZED else ""
    raise TargetError(f"{url} answered{target.through} {answer.status_code} {answer.reason_phrase}{hint}")
