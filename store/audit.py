"""Audit rows: appended in the transaction of what they record; the database refuses to change them."""

from pydantic import JsonValue

from store.database import Connection


async def record(
    tx: Connection, kind: str, subject: str, data: dict[str, JsonValue], *, actor: str | None, turn_id: str | None
) -> None:
    """Append one row: what happened (`kind`), to what (`subject`), by whom; None is the engine itself."""
    await tx.execute(
        "INSERT INTO audit (tenant_id, kind, subject, data, actor, turn_id) "
        "VALUES (current_setting('perdure.tenant'), $1, $2, $3, $4, $5)",
        kind,
        subject,
        data,
        actor,
        turn_id,
    )
