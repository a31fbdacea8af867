"""The tables that code blocks compute with: stored once by their digest, read once a process."""

import json
from collections.abc import Iterable, Mapping

from pydantic import JsonValue

from contracts.errors import CallerError
from contracts.skills import DataTable
from store.database import Connection


async def store_tables(tx: Connection, tenant_id: str, tables: Iterable[DataTable]) -> None:
    """Keep these beside those that are there: a table never changes, and turns may still go by an older one."""
    for table in tables:
        await tx.execute(
            "INSERT INTO app_tables (tenant_id, digest, name, body) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
            tenant_id,
            table.digest,
            table.name,
            json.dumps(table.body),
        )


class TableShelf:
    """Tables by digest. What it hands out is shared: nobody changes it."""

    def __init__(self) -> None:
        self._bodies: dict[str, JsonValue] = {}

    async def at(self, tx: Connection, digests: Mapping[str, str]) -> dict[str, JsonValue]:
        """The tables of these digests, by name.

        Raises: CallerError 404 `app_table_not_found`.
        """
        missing = [digest for digest in digests.values() if digest not in self._bodies]
        if missing:
            rows = await tx.fetch("SELECT digest, body FROM app_tables WHERE digest = ANY($1)", missing)
            self._bodies |= {row["digest"]: json.loads(row["body"]) for row in rows}
        for name, digest in digests.items():
            if digest not in self._bodies:
                raise CallerError(
                    "app_table_not_found",
                    "a table that this turn's agent was published with is gone",
                    {"table": name, "digest": digest},
                    status=404,
                )
        return {name: self._bodies[digest] for name, digest in digests.items()}
