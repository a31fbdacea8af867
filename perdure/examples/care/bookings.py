"""A fictional calendar of first sessions, in place of an external system. It honors Idempotency-Key: the same key
returns the same booking. Another key for a slot that is taken gets 409."""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

DATABASE = Path(os.environ.get("PERDURE_COMPANION_HOME", ".")) / "bookings.db"
TABLE = (
    "CREATE TABLE IF NOT EXISTS bookings (number INTEGER PRIMARY KEY, provider TEXT NOT NULL, slot TEXT NOT NULL, "
    "key TEXT UNIQUE, UNIQUE (provider, slot))"
)


@contextmanager
def connected() -> Iterator[sqlite3.Connection]:
    """A connection for one request; at its end everything is safe on disk."""
    connection = sqlite3.connect(DATABASE, timeout=10)
    connection.row_factory = sqlite3.Row
    with closing(connection), connection:
        yield connection


class Bookings(BaseHTTPRequestHandler):
    """GET /healthz · GET /bookings · POST /bookings {provider, slot}."""

    def parse_request(self) -> bool:
        """Rejects requests of browsers, because the service asks for no token."""
        if not super().parse_request():
            return False
        name = self.headers.get("Host", "").rpartition(":")[0]
        if "Origin" not in self.headers and name in ("127.0.0.1", "localhost"):
            return True
        self.answer(403, {"error": "this service accepts requests only from programs on this machine"})
        return False

    def do_GET(self) -> None:
        """All bookings, in order."""
        if self.path == "/healthz":
            return self.answer(200, {"status": "ok"})
        if self.path != "/bookings":
            return self.answer(404, {"error": "page not found"})
        with connected() as connection:
            rows = connection.execute("SELECT number, provider, slot FROM bookings ORDER BY number").fetchall()
        return self.answer(200, {"bookings": [dict(row) for row in rows]})

    def do_POST(self) -> None:
        """Book a slot, or find what this key has booked before."""
        try:
            booking = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            provider, slot = booking["provider"].strip(), booking["slot"].strip()
        except (ValueError, KeyError, TypeError, AttributeError):
            return self.answer(422, {"error": "`provider` and `slot` are required"})
        key = self.headers.get("Idempotency-Key")
        with connected() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO bookings (provider, slot, key) VALUES (?, ?, ?)", (provider, slot, key)
            )
            row = connection.execute(
                "SELECT number, provider, slot, key FROM bookings WHERE provider = ? AND slot = ?", (provider, slot)
            ).fetchone()
        if row is None:
            return self.answer(422, {"error": "this idempotency key belongs to another slot"})
        if row["key"] != key:
            return self.answer(409, {"error": f"{provider} is not available at {slot}"})
        booked = {"number": row["number"], "provider": provider, "slot": slot}
        return self.answer(201, {"status": "booked", **booked})

    def answer(self, status: int, body: dict[str, Any]) -> None:
        """Send JSON."""
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Writes nothing, so that no log of bookings exists."""


if __name__ == "__main__":
    with connected() as first:
        first.execute("PRAGMA journal_mode=WAL")
        first.execute(TABLE)
    ThreadingHTTPServer(("127.0.0.1", int(os.environ["BOOKINGS_PORT"])), Bookings).serve_forever()
