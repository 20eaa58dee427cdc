"""Every error response, in OpenAI's shape: ``{"error":{"message","type","param","code"}}``; under
``/v1/messages`` in Anthropic's: ``{"type":"error","error":{"type","message"}}``.

A client's mistake is a 4xx that names the field, the value and what is allowed. A tenant over its own
limits is told 429, and no capacity and no engine are 503, both with ``Retry-After``, because the clients of the
``openai`` package then wait and send the request again.
"""

from collections.abc import Iterable
from math import ceil
from typing import Any, Final

import msgspec

from ekiden.state.request import Estimate, Finish, FinishReason, Refusal, RefusalReason

INVALID_REQUEST: Final = "invalid_request_error"
SERVER_ERROR: Final = "server_error"
_KINDS: Final = {429: "rate_limit_error", 500: SERVER_ERROR, 503: SERVER_ERROR}

Headers = Iterable[tuple[bytes, bytes]]


class ApiError(Exception):
    """An error that the client sees. ``headers`` are added to the response if it has not started yet."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: Headers = (),
        estimate: Estimate | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind or _KINDS.get(status, INVALID_REQUEST)
        self.param = param
        self.code = code
        self.headers = tuple(headers)
        self.estimate = estimate

    def body(self) -> bytes:
        """The JSON object, for a response's body or an event in a stream."""
        told: dict[str, Any] = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": told | _predicted(self.estimate)})


def _predicted(estimate: Estimate | None) -> dict[str, Any]:
    """What a client is told of the prediction for which it was refused, in seconds."""
    if estimate is None:
        return {}
    ranges = {"queue_seconds": estimate.wait, "first_token_seconds": estimate.first_token, "e2e_seconds": estimate.end}
    named = {name: dict(zip(("p10", "p50", "p90"), values, strict=True)) for name, values in ranges.items()}
    return {"estimate": {"deadline_seconds": estimate.left, **named}}


MESSAGES_PATH: Final = "/v1/messages"
_MESSAGES_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def body_for(path: str, error: ApiError) -> bytes:
    """The error's body in the protocol of the path, whichever layer raised it."""
    return messages_body(error) if speaks_messages(path) else error.body()


def messages_body(error: ApiError) -> bytes:
    """The error's body in Anthropic's protocol."""
    other = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _MESSAGES_KINDS.get(error.status, other)
    told = {"type": kind, "message": error.message} | _predicted(error.estimate)
    return msgspec.json.encode({"type": "error", "error": told})


def speaks_messages(path: str) -> bool:
    """Whether a path is one of Anthropic's protocol."""
    return path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")


def shown(value: object, limit: int = 80) -> str:
    """A value for an error message, truncated so that a huge one is not sent back."""
    if isinstance(value, list | dict | tuple) and len(value) > limit:
        return f"a {type(value).__name__} of {len(value)} entries"
    if isinstance(value, str) and len(value) > limit:
        return repr(value[:limit]) + f"... ({len(value)} characters)"
    text = "null" if value is None else repr(value)
    return text if len(text) <= limit else text[:limit] + "..."


def invalid(param: str | None, message: str, *, code: str = "invalid_value") -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param, code="unsupported_parameter")


def model_not_found(name: str, served: str) -> ApiError:
    message = f"The model {shown(name)} does not exist here; this server serves {served!r}."
    return ApiError(404, message, param="model", code="model_not_found")


def no_embeddings(served: str) -> ApiError:
    message = f"The hidden states of {served} cannot be had, so it gives no embeddings; serve another export of it."
    return ApiError(400, message, param="model", code="model_not_supported")


def not_found(path: str) -> ApiError:
    return ApiError(404, f"There is nothing at {path[:200]}; see /docs.", code="not_found")


def internal(request_id: str) -> ApiError:
    """A fault of the server. Details are in the log only: they do not concern a client."""
    message = f"The server failed on request {request_id}; its log says why."
    return ApiError(500, message, code="internal")


def retry_after(seconds: float) -> tuple[tuple[bytes, bytes], ...]:
    """``Retry-After`` in whole seconds, rounded up, and its finer form, which the ``openai`` clients prefer."""
    milliseconds = max(1, ceil(seconds * 1000))
    return (
        (b"retry-after", str(ceil(milliseconds / 1000)).encode()),
        (b"retry-after-ms", str(milliseconds).encode()),
    )


def _unavailable(code: str, message: str, seconds: float = 1.0) -> ApiError:
    return ApiError(503, message, code=code, headers=retry_after(seconds))


def engine_unavailable(why: str = "the engine ended while this request was in flight") -> ApiError:
    return _unavailable("engine_unavailable", f"{why[0].upper()}{why[1:]}; send the request again.")


def ends_engine(why: str) -> ApiError:
    """The request would end another engine, so the clients of the openai and anthropic packages are told not to send
    it again."""
    message = f"The server failed on this request: {why}. Do not send it again as it is."
    return ApiError(500, message, code="ends_engine", headers=((b"x-should-retry", b"false"),))


def shutting_down() -> ApiError:
    return _unavailable("draining", "The server is shutting down; send the request again.")


def client_left() -> ApiError:
    """For the ledger alone: nobody is left to be told."""
    return ApiError(400, "The client left before its request was whole.", code="client_left")


def closed_to_newcomers() -> ApiError:
    message = "An operator has closed the server to new requests; send the request again later, or to another server."
    return _unavailable("draining", message, 10.0)


def ledger_off() -> ApiError:
    return ApiError(404, "This server records no decisions (--no-ledger).", code="ledger_off")


def ledger_unavailable() -> ApiError:
    return _unavailable("ledger_unavailable", "The engine is writing no ledger now; it may be starting again.")


_STATUSES: Final = {
    RefusalReason.QUEUE_FULL_REQUESTS: 503,
    RefusalReason.QUEUE_FULL_TOKENS: 503,
    RefusalReason.QUEUE_TOO_SLOW: 503,
    RefusalReason.DEADLINE_TOO_SHORT: 408,
    RefusalReason.DEADLINE_TOO_BUSY: 503,
    RefusalReason.DRAINING: 503,
    RefusalReason.TENANT_QUEUE_FULL: 429,
    RefusalReason.TENANT_RATE: 429,
    RefusalReason.INTERNAL_ERROR: 500,
    RefusalReason.DUPLICATE_ID: 500,  # the server makes the ids, so this is its fault
}
"""All other refusals are 400."""


def refused(refusal: Refusal, retry_seconds: float) -> ApiError:
    """The engine's refusal as the client sees it. ``retry_seconds`` is the ``Retry-After`` of refusals that pass with
    time and do not carry their own."""
    status, code = _STATUSES.get(refusal.reason, 400), refusal.reason.value
    if status in (429, 503):
        seconds = retry_seconds if refusal.retry_after is None else refusal.retry_after
        headers = retry_after(seconds)
        return ApiError(status, refusal.message, code=code, headers=headers, estimate=refusal.estimate)
    if status == 408:  # it would be refused again, however idle the server
        never = ((b"x-should-retry", b"false"),)
        text, kind = refusal.message, "timeout_error"
        return ApiError(status, text, kind=kind, code=code, headers=never, estimate=refusal.estimate)
    return ApiError(status, refusal.message, param=refusal.param if status == 400 else None, code=code)


_REASONS: Final = {reason.value: reason for reason in RefusalReason} | {
    "internal": RefusalReason.INTERNAL_ERROR,
    "unsupported_parameter": RefusalReason.UNSUPPORTED,
    "headers_too_large": RefusalReason.INVALID_HTTP,
    "headers_timeout": RefusalReason.INVALID_HTTP,
}


def refusal_of(error: ApiError) -> Refusal:
    """What the ledger records of an error that the HTTP layer raised before the engine had the request."""
    reason = _REASONS.get(error.code or "", RefusalReason.INVALID)
    return Refusal(reason=reason, message=error.message.removesuffix("."), param=error.param, by_door=True)


def unfinished(finish: Finish) -> ApiError:
    """The error for an admitted request that was ended before its answer was complete."""
    if finish.reason is FinishReason.DEADLINE:
        message = finish.message or "The request's deadline passed before the answer was complete."
        return ApiError(408, message, kind="timeout_error", code="deadline")
    if finish.reason is FinishReason.ABSTAINED:
        message, estimate = finish.message or "The request's deadline could no longer be met.", finish.estimate
        over = 1.0 if estimate is None else max(1.0, min(estimate.end[0], estimate.first_token[0]) - estimate.left)
        code = RefusalReason.DEADLINE_TOO_BUSY.value
        return ApiError(503, message, code=code, headers=retry_after(over), estimate=estimate)
    if finish.reason is FinishReason.ABORT:
        message = finish.message or "the request was ended by the server before the answer was complete"
        message = f"{message[0].upper()}{message[1:]}."
        return _unavailable("aborted", message)
    message = finish.message or "The engine failed on this request."
    return ApiError(500, message, code="engine_error")
