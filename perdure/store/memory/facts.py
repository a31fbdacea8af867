"""Facts: of a conversation by type, where the newest stands, and of a person, where each is added and none changed.

Who writes holds the turn's row and only while the turn is open, so that an attempt which comes late changes nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import asyncpg
from pydantic import JsonValue

from perdure.contracts.memory import MOST_FACTS, Fact, FactsCall
from perdure.store.database import Connection, new_id
from perdure.store.memory.episodes import Vector

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


async def forget_facts(tx: Connection, conversation_id: str) -> None:
    """Remove what was known in a conversation: it is deleted."""
    await tx.execute("DELETE FROM conversation_facts WHERE conversation_id = $1", conversation_id)


def _fact(row: asyncpg.Record) -> Fact:
    return Fact(type=row["type"], content=row["content"], confidence=round(row["confidence"], 4))


# --- Entities and their name index, written in one transaction (S0-72).


@dataclass(frozen=True, slots=True)
class Entity:
    """A thing with a name, of a kind that an app chooses."""

    id: str
    kind: str
    name: str
    attributes: dict[str, JsonValue]


def name_key(name: str) -> str:
    """The form under which names are compared: case and spacing do not count."""
    return " ".join(name.casefold().split())


async def create_entity(
    tx: Connection, kind: str, name: str, attributes: dict[str, JsonValue], turn_id: str | None, call_id: str | None
) -> Entity:
    """Mint the id and write entity and name index together; aliases are names too."""
    entity = Entity(new_id(), kind, name, attributes)
    await tx.execute(
        "INSERT INTO entities (id, tenant_id, kind, name, attributes, created_by_turn, created_by_call) "
        "VALUES ($1, current_setting('perdure.tenant'), $2, $3, $4, $5, $6)",
        entity.id,
        kind,
        name,
        attributes,
        turn_id,
        call_id,
    )
    aliases = attributes.get("aliases")
    names = [name, *(str(alias) for alias in aliases)] if isinstance(aliases, list) else [name]
    await tx.executemany(
        "INSERT INTO entity_names (tenant_id, name_key, entity_id) "
        "VALUES (current_setting('perdure.tenant'), $1, $2) ON CONFLICT DO NOTHING",
        [(name_key(each), entity.id) for each in names],
    )
    return entity


async def find_entities(tx: Connection, text: str, most: int = 10) -> list[Entity]:
    """Entities whose name is `text`, or where none is, whose name contains it; best first."""
    key = name_key(text)
    if not key:  # it is contained in every name
        return []
    exact = await tx.fetch(
        "SELECT e.* FROM entity_names n JOIN entities e ON e.id = n.entity_id WHERE n.name_key = $1 ORDER BY e.id "
        "LIMIT $2",
        key,
        most,
    )
    if exact:
        return [_entity(row) for row in exact]
    near = await tx.fetch(
        "SELECT DISTINCT ON (e.id) e.* FROM entity_names n JOIN entities e ON e.id = n.entity_id "
        "WHERE strpos(n.name_key, $1) > 0 ORDER BY e.id LIMIT $2",
        key,
        most,
    )
    return [_entity(row) for row in near]


async def get_entity(tx: Connection, entity_id: str) -> Entity | None:
    """The entity, or None."""
    row = await tx.fetchrow("SELECT * FROM entities WHERE id = $1", entity_id)
    return _entity(row) if row else None


_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BY_ID = """
SELECT r.reference, e.kind, e.name, e.id, e.attributes
FROM unnest($1::text[], $2::uuid[]) AS r(reference, id) JOIN entities e USING (id)
"""
_BY_NAME = """
SELECT DISTINCT ON (r.reference) r.reference, e.kind, e.name, e.id, e.attributes
FROM unnest($1::text[], $2::text[], $3::text[]) AS r(reference, name_key, name)
  JOIN entity_names n USING (name_key) JOIN entities e ON e.id = n.entity_id AND e.name = r.name
ORDER BY r.reference, e.created_at DESC, e.id DESC
"""
_BY_ATTRIBUTE = """
SELECT r.reference, e.kind, e.name, e.id, e.attributes FROM unnest($1::text[], $2::bytea[]) AS r(reference, key),
  LATERAL (SELECT a.entity_id FROM entity_attributes a WHERE a.key = r.key
    ORDER BY a.created_at DESC, a.entity_id DESC LIMIT 1) newest
  JOIN entities e ON e.id = newest.entity_id
"""


async def referred_entities(tx: Connection, references: Sequence[str]) -> dict[str, str]:
    """What is known of entities by `attribute=value`: one text each; those that lead to none are left out.

    Of several with the same value the newest counts. Each kind of reference goes by an index: among 50,000 entities the
    look-up of an attribute takes 0.2 to 0.6 ms (29 ms, were all of them looked at).
    """
    asked = [(reference, *reference.partition("=")[::2]) for reference in references]
    by_name = [(reference, name_key(value), value) for reference, attribute, value in asked if attribute == "name"]
    by_id = [(reference, value) for reference, attribute, value in asked if attribute == "id" and _ID.fullmatch(value)]
    others = [reference for reference, attribute, _ in asked if attribute not in ("id", "name")]
    rows: list[asyncpg.Record] = []
    if by_id:
        rows += await tx.fetch(_BY_ID, *_columns(by_id))
    if by_name:
        rows += await tx.fetch(_BY_NAME, *_columns(by_name))
    if others:
        keys = [sha256(reference.encode()).digest() for reference in others]  # as attribute_keys() makes them
        rows += await tx.fetch(_BY_ATTRIBUTE, others, keys)
    return {row["reference"]: _told(_entity(row)) for row in rows}


def _columns(rows: Sequence[tuple[str, ...]]) -> list[list[str]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _told(entity: Entity) -> str:
    lines = [f"- {name}: {value}" for name, value in sorted(entity.attributes.items())]
    return "\n".join([f"{entity.kind}: {entity.name} ({entity.id})", *lines])


def _entity(row: asyncpg.Record) -> Entity:
    return Entity(str(row["id"]), row["kind"], row["name"], row["attributes"])
