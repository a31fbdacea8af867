"""The state of a receiver: seen deliveries, and for each approval its message and how recent it is."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from perdure.sdk.webhooks import VALID_SECONDS

_TABLES = """
CREATE TABLE IF NOT EXISTS seen (delivery TEXT PRIMARY KEY, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS messages (approval TEXT PRIMARY KEY, version INTEGER NOT NULL, status TEXT NOT NULL,
  place TEXT NOT NULL);
"""


class ReceiverState:
    """A file that outlives the program."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._open()) as file:
            file.executescript(_TABLES)

    def is_new(self, notice: dict[str, Any]) -> bool:
        """Returns whether this delivery is new, and newer than the state in the approval's message."""
        approval = notice["approval"]
        with closing(self._open()) as file:
            seen = file.execute("SELECT 1 FROM seen WHERE delivery = ?", (notice["id"],)).fetchone()
            known = file.execute(
                "SELECT version, status FROM messages WHERE approval = ?", (approval["id"],)
            ).fetchone()
        if seen:
            return False
        return known is None or ((approval["version"], approval["status"]) != known and approval["version"] >= known[0])

    def message_place(self, approval_id: str) -> str:
        """Returns the place of the approval's message; empty if there is none."""
        with closing(self._open()) as file:
            row = file.execute("SELECT place FROM messages WHERE approval = ?", (approval_id,)).fetchone()
        return str(row[0]) if row else ""

    def record_delivery(self, notice: dict[str, Any], place: str) -> None:
        """Records this delivery as done; its approval's message is at `place`."""
        approval = notice["approval"]
        with closing(self._open()) as file, file:
            file.execute("DELETE FROM seen WHERE at < ?", (time.time() - 2 * VALID_SECONDS,))
            file.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (notice["id"], time.time()))
            file.execute(
                "INSERT INTO messages VALUES (?, ?, ?, ?) ON CONFLICT (approval) DO UPDATE "
                "SET version = excluded.version, status = excluded.status, place = excluded.place",
                (approval["id"], approval["version"], approval["status"], place),
            )

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path)
