"""Byte counters of tenants, users and conversations, read for quotas (ADR 31).

Triggers count files and documents, exactly, in the transaction that writes or deletes them. Texts of conversations are
counted on the conversation's row; their sum for a user and a tenant is at most about a minute old.
"""

from policy.quotas import Quotas, Used, check, check_files
from store.database import Connection

TENANT = "00000000-0000-0000-0000-000000000000"
"""Stands for the tenant as the subject of a counter."""
SUM_SECONDS = 60
_OF = "(SELECT {what} FROM byte_usage WHERE scope = '{scope}' AND subject_id = {subject})"


def _bytes(scope: str, subject: str) -> str:
    return f"coalesce({_OF.format(what='stored_bytes + text_bytes', scope=scope, subject=subject)}, 0)"


def columns(user: str, conversation: str) -> str:
    """The columns of `Used` for a SELECT; the arguments are SQL expressions of ids."""
    texts = f"coalesce((SELECT text_bytes FROM conversations WHERE id = {conversation}), 0)"
    of_tenant = _bytes("tenant", f"'{TENANT}'")
    return (
        f"{texts} + {_bytes('conversation', conversation)} AS conversation_bytes, "
        f"{_bytes('user', user)} AS user_bytes, {of_tenant} AS tenant_bytes"
    )


_READ = (
    f"SELECT {columns('$1::uuid', '$2::uuid')}, "
    f"coalesce({_OF.format(what='files', scope='conversation', subject='$2::uuid')}, 0) AS files"
)
_SUM_USER = f"""
INSERT INTO byte_usage AS u (tenant_id, scope, subject_id, text_bytes, summed_at)
SELECT current_setting('perdure.tenant'), 'user', $1::uuid, coalesce(sum(text_bytes), 0), now() FROM conversations
WHERE tenant_id = current_setting('perdure.tenant') AND user_id = $1 AND deleted_at IS NULL
ON CONFLICT (tenant_id, scope, subject_id) DO UPDATE SET text_bytes = excluded.text_bytes, summed_at = now()
WHERE u.summed_at IS NULL OR u.summed_at < now() - make_interval(secs => {SUM_SECONDS - 5})
"""
_SUM_TENANT = f"""
INSERT INTO byte_usage AS u (tenant_id, scope, subject_id, text_bytes, summed_at)
SELECT current_setting('perdure.tenant'), 'tenant', '{TENANT}', coalesce(sum(text_bytes), 0), now() FROM byte_usage
WHERE scope = 'user'
ON CONFLICT (tenant_id, scope, subject_id) DO UPDATE SET text_bytes = excluded.text_bytes, summed_at = now()
WHERE u.summed_at IS NULL OR u.summed_at < now() - make_interval(secs => {SUM_SECONDS - 5})
"""
FORGET_TEXTS = """
WITH own AS MATERIALIZED (
  SELECT stored_bytes, text_bytes FROM byte_usage
  WHERE scope = 'user' AND subject_id = $1 AND stored_bytes + text_bytes > 0
), less AS (
  UPDATE byte_usage u SET stored_bytes = greatest(0, u.stored_bytes - own.stored_bytes),
    text_bytes = greatest(0, u.text_bytes - own.text_bytes)
  FROM own WHERE u.scope = 'tenant' RETURNING 1
)
UPDATE byte_usage u SET stored_bytes = 0, text_bytes = 0 FROM own
WHERE u.scope = 'user' AND u.subject_id = $1 AND (SELECT count(*) FROM less) >= 0
"""
"""Takes a user's texts from the counters, once files and documents are gone: what is left is of texts. The
tenant's row is locked first, as by the triggers, hence the count."""


async def used(tx: Connection, user_id: str | None, conversation_id: str | None = None) -> tuple[Used, int]:
    """What is kept now, and how many files the conversation has. In a transaction that has written a file or a
    document, the counters include it and stay locked until the end."""
    row = await tx.fetchrow(_READ, user_id, conversation_id)
    if row is None:
        return Used(), 0
    return Used(row["conversation_bytes"], row["user_bytes"], row["tenant_bytes"]), row["files"]


async def check_room(
    tx: Connection, quotas: Quotas, user_id: str | None, conversation_id: str | None = None, more: int = 0
) -> None:
    """Checks that what is kept, with `more` bytes, is within the quotas. For a workspace `user_id` is None.

    Raises: CallerError 429 `quota_reached`.
    """
    check((await used(tx, user_id, conversation_id))[0], quotas, more)


async def check_room_for_file(
    tx: Connection, quotas: Quotas, user_id: str, conversation_id: str, size_bytes: int
) -> None:
    """Checks that one more file fits, before it is uploaded.

    Raises: CallerError 429 `quota_reached`.
    """
    kept, files = await used(tx, user_id, conversation_id)
    check_files(files, quotas)
    check(kept, quotas, size_bytes)


async def sum_texts_of_user(tx: Connection, user_id: str) -> None:
    """Brings the sum of a user's texts up to date, at most once a minute. By itself in a transaction."""
    await tx.execute(_SUM_USER, user_id)


async def sum_texts_of_tenant(tx: Connection) -> None:
    """The same for the tenant, from the sums of its users."""
    await tx.execute(_SUM_TENANT)


async def keep_texts(tx: Connection, user_id: str, text_bytes: int) -> None:
    """Counts the texts of a conversation that is deleted from now on as stored: its records stay."""
    if text_bytes:
        await tx.execute("SELECT count_bytes(current_setting('perdure.tenant'), $1, NULL, $2, 0)", user_id, text_bytes)
        await tx.execute(
            "UPDATE byte_usage SET text_bytes = greatest(0, text_bytes - $2) "
            f"WHERE (scope, subject_id) IN (('tenant', '{TENANT}'), ('user', $1))",
            user_id,
            text_bytes,
        )
