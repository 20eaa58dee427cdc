"""One OpenTelemetry span for each ended request of a run, its stages as events, made from what the ledger holds.

- A request that came with a W3C ``traceparent`` is a child of that span, and is left out where its parent's trace is
  not sampled, as is the custom. Any other begins a trace of its own.
- Ids follow from the run and the request's number, so a span that is sent twice is the same span.
- What is told is what is stored: digests and numbers, no prompts and no outputs.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import urlsplit

from ekiden.config import is_loopback
from ekiden.evidence.extras import ExportError, needed
from ekiden.evidence.reader import LedgerReader, request_detail_of
from ekiden.evidence.words import event_words
from ekiden.ledger.blobs import RequestDetail
from ekiden.ledger.records import EndRow, RequestRow

BATCH: Final = 256
"""Spans in one message to a collector."""
MAX_EVENTS: Final = 1000
"""Of one span; of more, the earliest are left out."""
TRACES_PATH: Final = "/v1/traces"


def traces_endpoint(url: str) -> str:
    """Where spans are posted. A collector's address without a path gets the usual one."""
    return url.rstrip("/") + TRACES_PATH if urlsplit(url).path in ("", "/") else url


def otlp_exporter(endpoint: str) -> Any:
    """An exporter that posts spans to an OTLP/HTTP endpoint such as ``http://localhost:4318``.

    One on this machine is reached directly, whatever proxy the environment names.
    """
    module = needed("opentelemetry.exporter.otlp.proto.http.trace_exporter", "otel")
    session, place = needed("requests", "otel").Session(), urlsplit(endpoint)
    session.trust_env = not (place.scheme == "http" and is_loopback(place.hostname or ""))
    return module.OTLPSpanExporter(endpoint=traces_endpoint(endpoint), session=session)


def export_spans(reader: LedgerReader, exporter: Any) -> int:
    """Hand the spans of a run's ended requests to an OpenTelemetry span exporter, and shut it down.

    Returns the number of spans. Raises :class:`ExportError` without the SDK, or when the exporter reports a failure.
    """
    maker, count = SpanMaker(reader), 0
    try:
        while (spans := maker.batch()) is not None:
            if not delivered(exporter, spans):
                raise ExportError("the exporter could not deliver all spans; see its log for the reason")
            count += len(spans)
            maker.go_on()
    finally:
        exporter.shutdown()
    return count


def delivered(exporter: Any, spans: Sequence[Any]) -> bool:
    """Hand spans to an exporter, and say whether it took them."""
    success = needed("opentelemetry.sdk.trace.export", "otel").SpanExportResult.SUCCESS
    return not spans or bool(exporter.export(spans) == success)


class SpanMaker:
    """Makes the spans of one run, also batch by batch in the order in which its requests ended.

    Raises :class:`ExportError` without the SDK.
    """

    def __init__(self, reader: LedgerReader) -> None:
        sdk, resources = needed("opentelemetry.sdk.trace", "otel"), needed("opentelemetry.sdk.resources", "otel")
        self._trace, self._context = needed("opentelemetry.trace", "otel"), needed("opentelemetry.context", "otel")
        propagation = needed("opentelemetry.trace.propagation.tracecontext", "otel")
        self._extract = propagation.TraceContextTextMapPropagator().extract
        self.reader = reader
        self._after = self._newest = (0, 0)
        header = reader.header
        self._ids = _Ids(header.run_id)
        service = {"service.name": "ekiden", "service.version": header.version, "service.instance.id": header.run_id}
        provider = sdk.TracerProvider(
            resource=resources.Resource.create(service | {"ekiden.run_id": header.run_id}),
            id_generator=self._ids,
            span_limits=sdk.SpanLimits(max_events=MAX_EVENTS),
            shutdown_on_exit=False,
        )
        self._tracer = provider.get_tracer("ekiden")

    def batch(self) -> list[Any] | None:
        """The spans of the next ended requests, the same ones until :meth:`go_on`; None while there are no more."""
        ends = self.reader.ends_after(*self._after, BATCH)
        if not ends:
            return None
        self._newest = (ends[-1].turn, ends[-1].request)
        return self.spans(ends)

    def go_on(self) -> None:
        """Take the requests of the newest batch as done."""
        self._after = self._newest

    def spans(self, ends: Sequence[EndRow]) -> list[Any]:
        """The spans of some requests, without those whose parent is not sampled."""
        requests = ((self.reader.request(end.request), end) for end in ends)
        made = [self._span(row, end) for row, end in requests if row is not None]
        return [span for span in made if span is not None]

    def _span(self, row: RequestRow, end: EndRow) -> Any | None:
        trace, started, detail = self._trace, self.reader.header.started, request_detail_of(row)
        self._ids.number = row.request
        parent = self._context.Context()
        if detail.traceparent is not None:
            parent = self._extract({"traceparent": detail.traceparent}, context=parent)
        span = self._tracer.start_span(
            "ekiden.request",
            context=parent,
            kind=trace.SpanKind.SERVER,
            start_time=_nanos(started, row.arrival),
            attributes=_attributes(self.reader, row, detail, end),
        )
        if not span.is_recording():
            return None
        for event in self.reader.events(row.request):
            if event.at is not None:
                told = {"ekiden.turn": event.turn, "ekiden.value": event.value, "ekiden.words": event_words(event)}
                span.add_event(event.kind.name.lower(), told, timestamp=_nanos(started, event.at))
        if end.reason in ("error", "refused"):
            span.set_status(trace.Status(trace.StatusCode.ERROR, row.refusal or end.reason))
        span.end(end_time=_nanos(started, end.at))
        return span


class _Ids:
    """An OpenTelemetry id generator for the request ``number`` of a run."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.number = 0

    def _id(self, kind: str, size: int) -> int:
        text = f"{self._run_id}:{kind}:{self.number}".encode()
        return int.from_bytes(blake2b(text, digest_size=size).digest(), "big") or 1

    def generate_span_id(self) -> int:
        return self._id("span", 8)

    def generate_trace_id(self) -> int:
        return self._id("trace", 16)

    def is_trace_id_random(self) -> bool:
        return False


def _nanos(started: float, micros: int) -> int:
    return round(started * 1e9) + micros * 1000


def _attributes(reader: LedgerReader, row: RequestRow, detail: RequestDetail, end: EndRow) -> dict[str, Any]:
    """The semantic conventions for generative AI, and our own under ``ekiden``; only those that have a value."""
    sampling, pooled = detail.sampling, detail.reading is not None and detail.reading.pooling is not None
    attributes = {
        "gen_ai.operation.name": "embeddings" if pooled else "text_completion",
        "gen_ai.provider.name": "ekiden",
        "gen_ai.request.model": reader.header.model_id,
        "gen_ai.response.model": reader.header.model_id,
        "gen_ai.response.id": row.request_id,
        "gen_ai.response.finish_reasons": [end.reason],
        "gen_ai.usage.input_tokens": row.prompt_tokens,
        "gen_ai.usage.output_tokens": end.output_tokens,
        "gen_ai.request.temperature": float(sampling.get("temperature", 1.0)),
        "gen_ai.request.top_p": float(sampling.get("top_p", 1.0)),
        "gen_ai.request.max_tokens": sampling.get("max_tokens"),
        "gen_ai.request.seed": sampling.get("seed"),
        "gen_ai.server.time_to_first_token": row.seconds_until(end.first_token),
        "error.type": row.refusal,
        "ekiden.tenant": row.tenant,
        "ekiden.preemptions": end.preemptions,
        "ekiden.cached_tokens": end.cached_tokens,
        "ekiden.fingerprint": reader.header.fingerprint,
        "ekiden.external_id": detail.external_id,
        "ekiden.time_in_queue": row.seconds_until(end.admitted),
    }
    return {name: value for name, value in attributes.items() if value is not None}
