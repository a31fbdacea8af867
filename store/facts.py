"""Facts: of a conversation by type, where the newest stands, and of a person, where each is added and none changed.

Who writes holds the turn's row and only while the turn is open, so that an attempt which comes late changes nothing.
"""

from collections.abc import Sequence

import asyncpg

from contracts.facts import MOST_FACTS, Fact, FactsCall
from store.database import Connection
from store.episodes import Vector

CHANGED = "23000"
"""As the trigger on a person's facts raises it."""
_WHOSE = "SELECT user_id::text FROM turns WHERE id = $1 AND ended_at IS NULL AND stop_requested_at IS NULL"
_NEAREST = """
SELECT type, content, confidence FROM (
  SELECT id, type, content, confidence FROM user_facts
  WHERE user_id = $1 AND (cardinality($2::text[]) = 0 OR type = ANY($2))
  ORDER BY CASE WHEN embedder = $3 AND public.vector_dims(embedding) = $5
      THEN embedding OPERATOR(public.<=>) $4::text::public.vector END NULLS LAST,
    ts_rank_cd(words, replace(plainto_tsquery('pg_catalog.english', $6)::text, '&', '|')::tsquery) DESC, id DESC
  LIMIT $7) chosen
ORDER BY id
"""


async def whose_turn(tx: Connection, call: FactsCall) -> str | None:
    """The person whose turn it is; None once it has ended or was asked to stop. A write locks the turn's row."""
    lock = " FOR UPDATE" if call.ask.write else ""
    user_id: str | None = await tx.fetchval(_WHOSE + lock, call.address.turn_id)
    return user_id


async def of_conversation(tx: Connection, conversation_id: str, types: Sequence[str]) -> list[Fact]:
    """What is known in a conversation, by type."""
    rows = await tx.fetch(
        "SELECT type, content, confidence FROM conversation_facts WHERE conversation_id = $1 "
        "AND (cardinality($2::text[]) = 0 OR type = ANY($2)) ORDER BY type LIMIT $3",
        conversation_id,
        list(types),
        MOST_FACTS,
    )
    return [_fact(row) for row in rows]


async def keep_in_conversation(tx: Connection, call: FactsCall) -> None:
    """Keep these, each in the place of what was known of its type."""
    for fact in sorted(call.ask.facts, key=lambda fact: fact.type):  # in one order, so that writers do not cross
        await tx.execute(
            "INSERT INTO conversation_facts (tenant_id, conversation_id, type, content, confidence, turn_id) "
            "VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (conversation_id, type) DO UPDATE SET "
            "content = excluded.content, confidence = excluded.confidence, turn_id = excluded.turn_id, "
            "kept_at = excluded.kept_at",
            call.address.tenant_id,
            call.address.conversation_id,
            fact.type,
            fact.content,
            fact.confidence,
            call.address.turn_id,
        )


async def of_user(tx: Connection, user_id: str, types: Sequence[str], about: str, vector: Vector | None) -> list[Fact]:
    """What is known of a person, oldest first (S3-30). Of more than MOST_FACTS those nearest to `about`: by its vector,
    those without one of that model by its words, and else the newest."""
    rows = await tx.fetch(
        _NEAREST,
        user_id,
        list(types),
        vector.embedder if vector else None,
        vector.literal() if vector else None,
        len(vector.values) if vector else 0,
        about,
        MOST_FACTS,
    )
    return [_fact(row) for row in rows]


async def add_for_user(tx: Connection, call: FactsCall, user_id: str, vectors: Sequence[Vector | None]) -> None:
    """Add these, each with its vector where it has one; what is known already stays as it was said first."""
    for fact, vector in zip(call.ask.facts, vectors, strict=True):
        await tx.execute(
            "INSERT INTO user_facts (tenant_id, user_id, type, content, confidence, turn_id, embedder, embedding) "
            "VALUES ($1, $2, $3, $4, $5, $6, $7, $8::text::public.vector) "
            "ON CONFLICT (user_id, type, content) DO NOTHING",
            call.address.tenant_id,
            user_id,
            fact.type,
            fact.content,
            fact.confidence,
            call.address.turn_id,
            vector.embedder if vector else None,
            vector.literal() if vector else None,
        )


def was_change(error: BaseException) -> bool:
    """Whether the database refused to change a fact about a person: an error of the whole class, and of no row's own
    constraints."""
    return isinstance(error, asyncpg.IntegrityConstraintViolationError) and error.sqlstate == CHANGED


async def forget(tx: Connection, conversation_id: str) -> None:
    """Remove what was known in a conversation: it is deleted."""
    await tx.execute("DELETE FROM conversation_facts WHERE conversation_id = $1", conversation_id)


def _fact(row: asyncpg.Record) -> Fact:
    return Fact(type=row["type"], content=row["content"], confidence=round(row["confidence"], 4))
