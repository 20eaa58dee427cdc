"""A recorded run's requests through the real model again: the tokens must come out the same.

Needs a run whose prompts were kept. The promise is that a request's tokens do not depend on its neighbours, so the
recorded schedule is not repeated: requests run as many at once as the engine takes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from ekiden.config import Config
from ekiden.engine.driver import NO_LIMITS, run_batch
from ekiden.engine.engine_core import EngineCore
from ekiden.evidence.reader import LedgerReader, end_detail_of, request_detail_of
from ekiden.evidence.recorded_requests import kept_request_of
from ekiden.ledger.blobs import RequestDetail
from ekiden.ledger.details import digest, reading_digest
from ekiden.ledger.records import REFUSED, EndRow
from ekiden.state.request import FinishReason, Request


@dataclass(slots=True)
class TokenReplay:
    """``different`` lists the requests whose tokens were not the recorded ones; ``not_kept`` counts prompts missing."""

    same: int = 0
    different: list[str] = field(default_factory=list)
    not_kept: int = 0


def replay_tokens(
    reader: LedgerReader, make_core: Callable[[Config], EngineCore], config: Config, *, limit: int | None = None
) -> TokenReplay:
    """Answer the recorded requests again, or the first ``limit`` of them, and compare.

    An answer that was cut short is compared as far as it went; of a prompt that was only read, what was read.
    """
    result = TokenReplay()
    engine = replace(config.engine, seed=reader.header.seed)
    core = make_core(replace(config, engine=engine, limits=NO_LIMITS, tenants={}))
    requests: list[Request] = []
    expected: dict[str, EndRow] = {}
    ends = {end.request: end for end in reader.all_ends()}
    for row in reader.all_requests()[:limit]:
        end = ends.get(row.request)
        detail = request_detail_of(row)
        if end is None or end.reason == REFUSED or not (end.output_tokens or _was_read(detail, end)):
            continue
        request = kept_request_of(row, detail)
        if request is None or request.request_id in expected:
            result.not_kept += 1
            continue
        expected[request.request_id] = end
        # The recorded times are of another clock: all enter at once, and nothing may be late before it starts.
        requests.append(msgspec.structs.replace(request, arrival_time=0.0, deadline=None))
    for answer, (name, end) in zip(run_batch(core, requests), expected.items(), strict=True):
        whole = end.reason in (FinishReason.STOP, FinishReason.LENGTH)
        made = answer.token_ids if whole else answer.token_ids[: end.output_tokens]
        found = digest(made)
        if answer.request.reading is not None:
            found = reading_digest(answer.pooled, answer.prompt_logprobs or ())
        if found == end_detail_of(end).output_digest:
            result.same += 1
        else:
            result.different.append(name)
    return result


def _was_read(detail: RequestDetail, end: EndRow) -> bool:
    """Whether a prompt that was only to be read was read to its end."""
    return detail.reading is not None and end.reason == FinishReason.STOP
