"""Searching documents: full text beside the entities that both name, then the ranking of policy/documents/ranking.py.

The text part is `ts_rank` with all weights 1 over the question's words joined by OR: the mean over those words of a
count that is 6/π² (0.608) for a word which stands in the document once and nears 1 where it stands often. Divided by
6/π² and cut at 1 it is 1 where every word is there at least once, and the share of the words where each that is there
stands once. Every document that the reader may see is looked at: an index on words would be none under row-level
security, since its operator is not leakproof.
"""

from dataclasses import dataclass

from contracts.documents import DocumentRef, Scope, Trust
from policy.documents.context import Shown
from policy.documents.excerpt import excerpt, words_of
from policy.documents.names import names_in
from policy.documents.ranking import ENTITY, OVER_FETCH, TEXT, Candidate, Signals, best
from store.database import Connection
from store.documents_reading import VISIBLE, read_as

MOST_WORDS = 48
"""Of a question; those after them are not asked for."""
MOST_QUESTION_CHARACTERS = 4_000
_FOUND = f"""
WITH asked AS MATERIALIZED (
  SELECT string_agg('''' || replace(replace(lexeme, '\\', '\\\\'), '''', '''''') || '''', ' | ')::tsquery AS words
  FROM (SELECT lexeme FROM unnest(to_tsvector('pg_catalog.english', $2)) ORDER BY positions[1] LIMIT {MOST_WORDS}) each
), near AS MATERIALIZED (
  SELECT d.id, d.updated_at,
    least(1.0, coalesce(ts_rank('{{1,1,1,1}}', d.words, (SELECT words FROM asked)), 0.0) * pi() ^ 2 / 6) AS nearness,
    CASE WHEN d.entities && $3::text[]
      THEN (SELECT count(*) FROM unnest(d.entities) AS e(name) WHERE e.name = ANY($3::text[])) ELSE 0 END AS matched
  FROM memory_documents d
  -- As an array: joined, the stores were taken for a few and the documents read once for each of them.
  WHERE {VISIBLE} AND d.store_id = ANY(ARRAY(SELECT id FROM memory_stores WHERE archived_at IS NULL))
    AND ($5::text IS NULL OR d.scope = $5) AND (d.conversation_id IS NULL OR d.conversation_id = $4)
    AND (d.words @@ (SELECT words FROM asked) OR d.entities && $3::text[])
), first AS MATERIALIZED (
  SELECT * FROM near ORDER BY {TEXT} * nearness + {ENTITY} * matched / greatest(cardinality($3::text[]), 1) DESC,
    updated_at DESC, id LIMIT $6
)
SELECT d.id, s.slug AS store, d.path, d.type, d.title, d.trust, d.version_id, first.nearness, first.matched,
  extract(epoch FROM now() - d.updated_at)::float8 / 86400 AS age_days
FROM first JOIN memory_documents d ON d.id = first.id JOIN memory_stores s ON s.id = d.store_id
"""


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for, by whom, and from which conversation."""

    text: str
    reader: str
    conversation_id: str | None = None
    """None finds nothing of any conversation."""
    scope: Scope | None = None


async def search(tx: Connection, question: Question, most: int) -> tuple[Candidate, ...]:
    """The documents that come nearest, best first; none where the question has no word that counts."""
    text = question.text[:MOST_QUESTION_CHARACTERS]
    entities = names_in(text)
    await read_as(tx, question.reader)
    rows = await tx.fetch(
        _FOUND,
        question.reader,
        text,
        list(entities),
        question.conversation_id,
        question.scope.value if question.scope else None,
        OVER_FETCH * most,
    )
    found = [
        Candidate(
            DocumentRef(
                document_id=str(row["id"]),
                version_id=str(row["version_id"]),
                store=row["store"],
                path=row["path"],
                trust=Trust(row["trust"]),
            ),
            row["title"],
            Signals(
                float(row["nearness"]),
                Trust(row["trust"]),
                row["type"],
                row["matched"],
                len(entities),
                row["age_days"],
            ),
        )
        for row in rows
    ]
    return best(found, most)


async def shown(tx: Connection, question: Question, found: tuple[Candidate, ...]) -> tuple[Shown, ...]:
    """The same documents with their excerpts; one that was redacted is left out."""
    rows = await tx.fetch(
        "SELECT id, content FROM memory_versions WHERE id = ANY($1::uuid[]) AND content IS NOT NULL",
        [each.ref.version_id for each in found],
    )
    contents = {str(row["id"]): row["content"] for row in rows}
    words = words_of(question.text[:MOST_QUESTION_CHARACTERS])
    return tuple(
        Shown(each.ref, each.signals.document_type, each.title, excerpt(contents[each.ref.version_id], words))
        for each in found
        if each.ref.version_id in contents
    )
