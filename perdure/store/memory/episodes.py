"""Episodes: summaries of ended turns, found by their meaning.

A summary is written in the transaction that ends its turn, without an embedding. The relay embeds it later. A search is
exact: it reads every summary of one user with one agent, so that it misses none (ADR 11).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from perdure.store.database import Connection, new_id
from perdure.store.paging import cursor_after, read_cursor

BY_COSINE = "cosine"
BY_FULL_TEXT = "full_text"
MAX_QUERY_CHARACTERS = 2_000
RETRY_SECONDS = 60
"""The delay before the next attempt to embed a summary."""


@dataclass(frozen=True, slots=True)
class Vector:
    """The embedding of a text. Vectors of different models cannot be compared."""

    embedder: str
    values: Sequence[float]

    def literal(self) -> str:
        """Returns the vector as a pgvector literal, such as `[0.1,-0.2]`."""
        return "[" + ",".join(f"{value:.7g}" for value in self.values) + "]"


@dataclass(frozen=True, slots=True)
class Episode:
    """A summary, with its similarity if it was searched for."""

    id: str
    conversation_id: str
    turn_id: str | None
    agent_id: str
    summary: str
    created_at: datetime
    similarity: float | None = None
    """Cosine similarity from -1 to 1. For full text, a rank from 0 to 1 that is useful only for ordering."""
    by: str = ""


_COLUMNS = "id, conversation_id, turn_id, agent_id, summary, created_at"
NEAREST = f"""
SELECT {_COLUMNS}, 1 - distance AS similarity FROM (
  -- As a subselect, the text is parsed once. As an operand it would be parsed for every row, 100 times slower.
  SELECT {_COLUMNS}, embedding OPERATOR(public.<=>) (SELECT $4::text::public.vector) AS distance FROM episodes
  WHERE user_id = $1 AND agent_id = $2 AND embedder = $3 AND public.vector_dims(embedding) = $6
    AND ($7::uuid IS NULL OR conversation_id <> $7)
  ORDER BY distance, created_at DESC LIMIT $5) nearest
ORDER BY distance, created_at DESC
"""
_MATCHING = f"""
SELECT {_COLUMNS}, ts_rank_cd(words, q.words_asked, 32)::float8 AS similarity FROM episodes,
  (SELECT replace(plainto_tsquery('pg_catalog.english', $3)::text, '&', '|')::tsquery AS words_asked) q
WHERE user_id = $1 AND agent_id = $2 AND words @@ q.words_asked AND ($5::text IS NULL OR embedder IS DISTINCT FROM $5)
  AND ($6::uuid IS NULL OR conversation_id <> $6)
ORDER BY similarity DESC, created_at DESC LIMIT $4
"""


async def store_summary(
    tx: Connection, conversation_id: str, user_id: str, agent_id: str, summary: str, turn_id: str | None = None
) -> str:
    """Stores a summary, at most one per turn. A statement timeout of the transaction applies to nothing after it."""
    episode_id = new_id()
    await tx.execute(
        "WITH stored AS (INSERT INTO episodes (id, tenant_id, conversation_id, turn_id, user_id, agent_id, summary) "
        "VALUES ($1, current_setting('perdure.tenant'), $2, $3, $4, $5, $6) ON CONFLICT (turn_id) DO NOTHING) "
        "SELECT set_config('statement_timeout', NULL, true)",
        episode_id,
        conversation_id,
        turn_id,
        user_id,
        agent_id,
        summary,
    )
    return episode_id


async def find(
    tx: Connection,
    user_id: str,
    agent_id: str,
    text: str,
    vector: Vector | None,
    limit: int,
    *,
    outside: str | None = None,
    min_similarity: float = -1.0,
) -> list[Episode]:
    """Returns a user's episodes with an agent that are nearest to `text`, by its vector, or by full text without one.

    If too few episodes have a vector of that model, the others are searched by full text as well. Vectors of length 0
    or of another dimension, which a broken model may have produced, match nothing.

    Those of the conversation `outside` are left out. `min_similarity` applies to vectors, from -1 to 1: the ranks of
    full text have no meaning by themselves.
    """
    found: list[Episode] = []
    if vector is not None:
        given = (vector.embedder, vector.literal(), limit, len(vector.values), outside)
        rows = await tx.fetch(NEAREST, user_id, agent_id, *given)
        found = [
            _episode(row, BY_COSINE)
            for row in rows
            if math.isfinite(row["similarity"]) and row["similarity"] >= min_similarity
        ]
    if len(found) < limit:
        other_than, words = vector.embedder if vector else None, text[:MAX_QUERY_CHARACTERS]
        rows = await tx.fetch(_MATCHING, user_id, agent_id, words, limit - len(found), other_than, outside)
        found += [_episode(row, BY_FULL_TEXT) for row in rows]
    return found


async def list_episodes(
    tx: Connection, conversation_id: str, limit: int, cursor: str | None
) -> tuple[list[Episode], str | None]:
    """Lists a conversation's episodes, oldest first, and the next page's cursor."""
    at, last_id = read_cursor(cursor)
    rows = await tx.fetch(
        f"SELECT {_COLUMNS} FROM episodes WHERE conversation_id = $1 "
        "AND ($2::timestamptz IS NULL OR (created_at, id) > ($2, $3::uuid)) ORDER BY created_at, id LIMIT $4",
        conversation_id,
        at,
        last_id,
        limit + 1,
    )
    following = cursor_after(rows[limit - 1]["created_at"], str(rows[limit - 1]["id"])) if len(rows) > limit else None
    return [_episode(row) for row in rows[:limit]], following


async def forget(tx: Connection, conversation_id: str) -> None:
    """Deletes the episodes of a deleted conversation, so that they do not appear in another one."""
    await tx.execute("DELETE FROM episodes WHERE conversation_id = $1", conversation_id)


async def to_embed(tx: Connection, limit: int) -> list[tuple[str, str]]:
    """Claims up to `limit` episodes without a vector for RETRY_SECONDS. Returns their ids and summaries."""
    rows = await tx.fetch(
        "UPDATE episodes SET embed_after = now() + make_interval(secs => $2) WHERE id = ANY(ARRAY("
        "SELECT id FROM episodes WHERE embedder IS NULL AND embed_after <= now() ORDER BY embed_after LIMIT $1 "
        "FOR UPDATE SKIP LOCKED)) RETURNING id, summary",
        limit,
        RETRY_SECONDS,
    )
    return [(str(row["id"]), row["summary"]) for row in rows]


async def set_vectors(tx: Connection, vectors: Sequence[tuple[str, Vector]]) -> None:
    """Stores the vectors of episodes, given as (id, vector)."""
    await tx.execute(
        "UPDATE episodes e SET embedder = v.embedder, embedding = v.embedding::public.vector "
        "FROM unnest($1::uuid[], $2::text[], $3::text[]) AS v(id, embedder, embedding) WHERE e.id = v.id",
        [episode_id for episode_id, _ in vectors],
        [vector.embedder for _, vector in vectors],
        [vector.literal() for _, vector in vectors],
    )


async def drop_vectors_of_others(tx: Connection, embedder: str) -> None:
    """Resets the vectors of other models, so that this model embeds their texts again. A search compares only vectors
    of one model."""
    await tx.execute(
        "UPDATE episodes SET embedder = NULL, embedding = NULL, embed_after = now() WHERE embedder <> $1", embedder
    )


def _episode(row: asyncpg.Record, by: str = "") -> Episode:
    return Episode(
        str(row["id"]),
        str(row["conversation_id"]),
        str(row["turn_id"]) if row["turn_id"] else None,
        row["agent_id"],
        row["summary"],
        row["created_at"],
        round(row["similarity"], 4) if by else None,
        by,
    )
