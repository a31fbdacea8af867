"""A small ticket service that represents an external system. It honors Idempotency-Key: same key, same ticket."""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

DATABASE = Path(os.environ.get("PERDURE_COMPANION_HOME", ".")) / "tickets.db"
TABLE = "CREATE TABLE IF NOT EXISTS tickets (number INTEGER PRIMARY KEY, title TEXT NOT NULL, key TEXT UNIQUE)"


@contextmanager
def connected() -> Iterator[sqlite3.Connection]:
    """Opens a connection for one request; at its end all changes are on disk."""
    connection = sqlite3.connect(DATABASE, timeout=10)
    connection.row_factory = sqlite3.Row
    with closing(connection), connection:
        yield connection


class Desk(BaseHTTPRequestHandler):
    """GET /healthz · GET /tickets?words= · POST /tickets {title}."""

    def do_GET(self) -> None:
        """Finds tickets."""
        address = urlsplit(self.path)
        if address.path == "/healthz":
            return self.answer(200, {"status": "ok"})
        if address.path != "/tickets":
            return self.answer(404, {"error": "page not found"})
        words = parse_qs(address.query).get("words", [""])[0]
        with connected() as connection:
            rows = connection.execute(
                "SELECT number, title FROM tickets WHERE title LIKE '%' || ? || '%' ORDER BY number", (words,)
            ).fetchall()
        return self.answer(200, {"tickets": [dict(row) for row in rows]})

    def do_POST(self) -> None:
        """Opens a ticket, or returns the one that this key opened before."""
        try:
            title = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))["title"].strip()
        except (ValueError, KeyError, TypeError, AttributeError):
            return self.answer(422, {"error": "`title` is required"})
        key = self.headers.get("Idempotency-Key")
        with connected() as connection:
            connection.execute("INSERT OR IGNORE INTO tickets (title, key) VALUES (?, ?)", (title, key))
            row = connection.execute(
                "SELECT number, title FROM tickets WHERE key = ? OR (? IS NULL AND number = last_insert_rowid())",
                (key, key),
            ).fetchone()
        if row["title"] != title:
            return self.answer(422, {"error": "this idempotency key belongs to another ticket"})
        return self.answer(201, {"status": "open", "number": row["number"], "title": row["title"]})

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Logs no requests, because the stack requests /healthz constantly. Errors are still logged."""

    def answer(self, status: int, body: dict[str, Any]) -> None:
        """Sends JSON."""
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


if __name__ == "__main__":
    with connected() as first:
        first.execute("PRAGMA journal_mode=WAL")
        first.execute(TABLE)
    ThreadingHTTPServer(("127.0.0.1", int(os.environ["DESK_PORT"])), Desk).serve_forever()
