"""The effects that really happened, in SQLite, safe against kill -9 and power cuts (WAL, synchronous=FULL).

Only the idempotency key prevents a second refund: two keys, two refunds. The count of effects therefore shows the
caller's actions, not the result of a rule of the shop.
"""

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_TABLES = """
CREATE TABLE IF NOT EXISTS effects (
  id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, order_number TEXT NOT NULL,
  amount_cents INTEGER, text TEXT NOT NULL, key TEXT, at TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, body_sha256 TEXT NOT NULL, answer TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS requests (
  id INTEGER PRIMARY KEY AUTOINCREMENT, method TEXT NOT NULL, path TEXT NOT NULL, key TEXT, at TEXT NOT NULL,
  status INTEGER);
"""


class KeyReused(Exception):
    """The key was already used with another body."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect to be made."""

    kind: str
    """`refund` or `note`."""
    order: str
    text: str
    amount_cents: int | None = None


class Ledger:
    """Effects, stored answers and received requests; one writer at a time, any number of threads."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.executescript(_TABLES)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def make(self, effect: Effect, key: str | None, body: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Makes the effect, unless this key has already made it. Returns the answer, and whether it was stored before.

        The effect and its answer are stored in one transaction.

        Raises: KeyReused.
        """
        body_sha256 = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        with self._transaction() as connection:
            if key is not None:
                row = connection.execute("SELECT * FROM answers WHERE key = ?", (key,)).fetchone()
                if row is not None:
                    if row["body_sha256"] != body_sha256:
                        raise KeyReused
                    return json.loads(row["answer"]), True
            cursor = connection.execute(
                "INSERT INTO effects (kind, order_number, amount_cents, text, key, at) VALUES (?, ?, ?, ?, ?, ?)",
                (effect.kind, effect.order, effect.amount_cents, effect.text, key, _now()),
            )
            answer: dict[str, Any] = {"id": f"{effect.kind}-{cursor.lastrowid}", "order": effect.order}
            if effect.amount_cents is not None:
                answer["amount_cents"] = effect.amount_cents
            if key is not None:
                connection.execute("INSERT INTO answers VALUES (?, ?, ?)", (key, body_sha256, json.dumps(answer)))
        return answer, False

    def count(self, order: str) -> dict[str, int]:
        """Returns the number of effects of each kind that an order has."""
        rows = self._read("SELECT kind, count(*) AS n FROM effects WHERE order_number = ? GROUP BY kind", order)
        return {"refund": 0, "note": 0} | {row["kind"]: row["n"] for row in rows}

    def effects(self) -> list[dict[str, Any]]:
        """Returns all effects, oldest first."""
        return [
            {name: row[name] for name in ("id", "kind", "amount_cents", "text", "key", "at")}
            | {"order": row["order_number"]}
            for row in self._read("SELECT * FROM effects ORDER BY id")
        ]

    def record_request(self, method: str, path: str, key: str | None) -> int:
        """Stores a request before it is processed. Returns its number."""
        with self._transaction() as connection:
            cursor = connection.execute(
                "INSERT INTO requests (method, path, key, at) VALUES (?, ?, ?, ?)", (method, path, key, _now())
            )
        return int(cursor.lastrowid or 0)

    def record_status(self, request: int, status: int) -> None:
        """Stores the status of a request before it is sent."""
        with self._transaction() as connection:
            connection.execute("UPDATE requests SET status = ? WHERE id = ?", (status, request))

    def requests(self) -> list[dict[str, Any]]:
        """Returns all received requests, oldest first. `status` is null if a request was not answered."""
        return [dict(row) for row in self._read("SELECT * FROM requests ORDER BY id")]

    def _read(self, query: str, *values: object) -> list[sqlite3.Row]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
