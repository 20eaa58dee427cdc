"""A collector of OpenTelemetry spans on a free loopback port, which keeps what it receives as OTLP over HTTP."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Collector:
    url: str = ""
    status: int = 200
    """The status that it answers with; it keeps spans only with 200."""
    refuses: int = 0
    """So many posts are answered with 400, whatever ``status`` says."""
    posts: int = 0
    paths: set[str] = field(default_factory=set)
    spans: list[Any] = field(default_factory=list)
    resources: list[dict[str, str]] = field(default_factory=list)
    posted: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, *, spans: int = 0, posts: int = 0) -> None:
        """Wait until it has received so much. Raises TimeoutError after a minute."""
        with self.posted:
            if not self.posted.wait_for(lambda: len(self.spans) >= spans and self.posts >= posts, timeout=60):
                raise TimeoutError(f"{len(self.spans)} spans in {self.posts} posts")

    def named(self) -> dict[str, Any]:
        """The spans by the ids of their requests."""
        return {str(attributes_of(span)["gen_ai.response.id"]): span for span in self.spans}


def attributes_of(span: Any) -> dict[str, Any]:
    found = {}
    for entry in span.attributes:
        kind = entry.value.WhichOneof("value")
        value = getattr(entry.value, kind)
        found[entry.key] = [each.string_value for each in value.values] if kind == "array_value" else value
    return found


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with collector.posted:
                collector.posts += 1
                collector.paths.add(self.path)
                status = 400 if collector.posts <= collector.refuses else collector.status
                if status == 200:
                    for entry in ExportTraceServiceRequest.FromString(body).resource_spans:
                        collector.resources.append({a.key: a.value.string_value for a in entry.resource.attributes})
                        collector.spans += [span for scope in entry.scope_spans for span in scope.spans]
                collector.posted.notify_all()
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Keep the tests' output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
