"""A person with a thousand turns is erased among as many rows of others: each statement stays far below the API's
limit, and the verification afterwards is no slower for it. Run it with `-s` for the figures of docs/figures.md.
"""

import time
from itertools import pairwise

import asyncpg
import pytest

from perdure.contracts.values import sha256_hex
from perdure.store import audit
from perdure.store.audit import verify_chain
from perdure.store.database import Connection
from perdure.store.identity import erasure
from perdure.store.identity.erasure import Step, erase
from tests.conftest import KEYRING, Urls
from tests.harness import Harness
from tests.integration.test_erasure import person

pytestmark = pytest.mark.soak

TURNS = 1_000
ROWS_A_TURN = 10
"""Of the audit. As many are of somebody else's turns."""
AT_ONCE = 500
STATEMENT_SECONDS = 5.0
"""The API gives a statement no more."""
_FILL = """
WITH talks AS (
  INSERT INTO conversations (id, tenant_id, user_id, agent_id, title)
  SELECT gen_random_uuid(), 'local', $1, 'desk', 'words' FROM generate_series(1, $2) RETURNING id, user_id
), begun AS (
  INSERT INTO turns (id, tenant_id, conversation_id, user_id, agent_id, agent_version, topology, status, routing,
    limits, message_id, through_seq, answer, ended_at)
  SELECT gen_random_uuid(), 'local', id, user_id, 'desk', 'v', 'skill_pipeline', 'completed', '{}', '{}',
    gen_random_uuid(), 0, 'words', now() FROM talks RETURNING id, conversation_id
), said AS (
  INSERT INTO messages (id, tenant_id, conversation_id, turn_id, seq, role, content)
  SELECT gen_random_uuid(), 'local', conversation_id, id, n, 'user', 'words' FROM begun, generate_series(1, 10) n
), told AS (
  INSERT INTO events (tenant_id, conversation_id, seq, turn_id, kind, data, at)
  SELECT 'local', conversation_id, n, id, 'k', '{"text": "words"}', now() FROM begun, generate_series(1, 30) n
)
SELECT id::text FROM begun
"""


async def filled(harness: Harness, user_id: str) -> None:
    """A thousand ended turns of this person, each with messages, events and audit rows."""
    async with harness.db.transaction("local") as tx:
        turns = [row[0] for row in await tx.fetch(_FILL, user_id, TURNS, timeout=60)]
    rows = [(turn, number) for turn in turns for number in range(ROWS_A_TURN)]
    for start in range(0, len(rows), AT_ONCE):
        async with harness.db.transaction("local") as tx:
            for turn_id, number in rows[start : start + AT_ONCE]:
                subject, actor = sha256_hex(f"{turn_id}{number}"), user_id if number % 2 else None
                await audit.record(tx, "thing.done", subject, {"said": "words"}, actor=actor, turn_id=turn_id)


async def test_a_thousand_turns_are_erased_in_short_statements_and_verified_as_fast_as_before(
    harness: Harness, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, other = await person(harness, "much"), await person(harness, "more")
    for user_id in (made.user_id, other.user_id):
        await filled(harness, user_id)
    owner = await asyncpg.connect(urls.owner, server_settings={"search_path": "perdure"})
    await owner.execute("ANALYZE")
    await owner.close()
    took: list[tuple[float, str]] = []
    do = erasure._do

    async def timed(tx: Connection, step: Step, given: erasure.Erasure) -> int:
        began = time.perf_counter()
        rows = await do(tx, step, given)
        took.append((time.perf_counter() - began, step.table))
        return rows

    monkeypatch.setattr(erasure, "_do", timed)
    at = [time.perf_counter()]
    assert (await verify_chain(harness.db, "local", KEYRING)).faults == ()
    at.append(time.perf_counter())
    await erase(harness.db, "local", "much", harness.people["admin"].user_id)
    at.append(time.perf_counter())
    assert (await verify_chain(harness.db, "local", KEYRING)).faults == ()
    before, erasing, after = (end - began for began, end in pairwise([*at, time.perf_counter()]))
    rows = await harness.value("SELECT count(*) FROM audit")
    slowest, table = max(took)
    print(
        f"{TURNS} turns erased in {erasing:.1f} s, {len(took)} statements, the slowest {slowest:.2f} s ({table}); "
        f"{rows} audit rows verified in {before:.1f} s before and {after:.1f} s after"
    )
    assert slowest < STATEMENT_SECONDS
    assert after < 2 * before + 1
    assert await harness.value("SELECT count(*) FROM messages WHERE content <> ''") == TURNS * 10
    assert await harness.value("SELECT count(*) FROM audit_bodies WHERE data IS NULL") >= TURNS * ROWS_A_TURN
