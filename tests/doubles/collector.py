"""A collector on a real port: it keeps every body that it is sent, and hangs or refuses when told so."""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

HANGS_SECONDS = 30.0


@dataclass(slots=True)
class Collector:
    port: int = 0
    bodies: list[tuple[str, bytes]] = field(default_factory=list)
    """(path, body), unpacked."""
    status: int = 200
    hanging: bool = False
    go_on: threading.Event = field(default_factory=threading.Event)
    hung: threading.Event = field(default_factory=threading.Event)
    """A request is hanging now."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def spans(self) -> list[Any]:
        """Every span that came by OTLP, as the protocol has it."""
        return [
            span
            for path, body in self.bodies
            if path == "/v1/traces"
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def runs(self) -> list[dict[str, Any]]:
        return [run for path, body in self.bodies if path.endswith("/runs/batch") for run in json.loads(body)["post"]]


def attributes_of(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if collector.hanging:
                collector.hung.set()
                collector.go_on.wait(HANGS_SECONDS)
            collector.bodies.append((self.path, body))
            self.send_response(collector.status)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that went away is no trouble of the collector's."""

    server = Server(("127.0.0.1", 0), Answer)
    collector.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield collector
    finally:
        collector.go_on.set()
        server.shutdown()
        server.server_close()
