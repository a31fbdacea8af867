"""A person is erased: no word is left in any column of any table or in any view, and the audit chain verifies."""

import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import Any

import asyncpg
import pytest

from perdure.contracts.errors import CallerError
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import sha256_hex
from perdure.core.approvals.decisions import Decider, Decision
from perdure.core.identity import OWN_CREDENTIAL, Credential, SignInMethod
from perdure.store import audit
from perdure.store.approvals.decisions import SubmittedDecision, decide
from perdure.store.audit import verify_chain
from perdure.store.database import Connection, new_id
from perdure.store.identity import erasure, users
from perdure.store.identity.erasure import Step, erase
from tests.conftest import KEYRING, Person, Urls
from tests.doubles.message_script import Line
from tests.harness import Harness, gathered
from tests.integration.conftest import Api
from tests.integration.test_api_approvals import final_turn
from tests.integration.test_api_turns import code, conversation
from tests.scale import sized

MARK = "zaphod"
NAME = f"{MARK}.b-1"
NEUTRAL = {
    "content of the operator": "agents.* agent_versions.* app_tables.* tenants.* write_probes.*",
    "ids, digests, states and names of things": """
      api_tokens.created_by api_tokens.token_sha256 approval_votes.created_by approval_votes.decision
      approval_votes.digest approval_votes.role approvals.agent_id approvals.call_id approvals.checkpoint
      approvals.differs_at approvals.digest approvals.effect approvals.escalation_role approvals.kind approvals.nonce
      approvals.joined_messages approvals.on_timeout
      approvals.policy_digest approvals.reviewer_role approvals.risk approvals.rule approvals.status approvals.tool
      approvals.tool_version audit.body_digest audit.kind audit.signature audit.subject audit_bodies.salt audit_chain.*
      audit_heads.* bundles.tool byte_usage.scope conversation_facts.type conversation_memory_usage.*
      conversations.agent_id day_limits.* day_usage.* delegations.created_by episodes.agent_id episodes.embedder
      events.call_id events.kind files.call_id files.media_type files.sha256 idempotency.body_digest idempotency.key
      idempotency.route injection_ledger.skill_id memory_documents.scope memory_documents.sha256 memory_documents.trust
      memory_documents.type memory_promotions.base_sha256 memory_promotions.call_id memory_promotions.risk
      memory_promotions.sha256 memory_promotions.status memory_promotions.type memory_stores.* memory_versions.call_id
      memory_versions.sha256 memory_versions.trust messages.call_id messages.role model_calls.assumed
      model_calls.budget_of model_calls.call_id model_calls.model model_calls.run_id model_calls.stage outbox.*
      prompt_versions.digest prompt_versions.stage prompt_versions.template questions.answer_schema questions.call_id
      questions.kind questions.status setup_codes.code_sha256 setup_codes.end_reason setup_code_tries.address
      tool_calls.agent_id tool_calls.call_id tool_calls.digest tool_calls.effect tool_calls.hung_epochs tool_calls.key
      tool_calls.run_id tool_calls.state tool_calls.tool tool_calls.tool_version turns.agent_id turns.agent_version
      turns.asked_by turns.asked_how turns.limits turns.routing turns.status turns.topology turns.waived_tools
      user_facts.embedder user_facts.type users.invited_by users.opened users.opened_as users.roles users.roles_by
      working_memory.field
    """,
    "gone with the account (perdure/store/identity/erasure.py)": """
      identities.* invitations.created_by invitations.made_at invitations.token_sha256 passwords.created_by
      passwords.hash
      passwords.invited_by refresh_tokens.nonce refresh_tokens.successor_sha256 refresh_tokens.token_sha256
      sessions.created_by sessions.how sessions.invited_by sign_in_codes.code_sha256
    """,
    "only of the subjects of gateways, whose erasure test_on_behalf_of.py checks": "users.subject",
    "kinds, and what a receiver of the operator's answered": """
      messages.joins notices.event notices.problem webhooks.key_id webhooks.url
    """,
    "the tool's own card": "approvals.describe approvals.description approvals.schema approvals.reject_reasons",
    "the tenant's own things, from any user": "entities.* entity_names.*",
}


@pytest.fixture(scope="module")
async def admin(urls: Urls) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(urls.admin.rpartition("/")[0] + "/" + urls.owner.rpartition("/")[2])
    yield connection
    await connection.close()


async def columns(admin: asyncpg.Connection) -> list[str]:
    rows = await admin.fetch("""
      SELECT c.table_name || '.' || c.column_name AS name FROM information_schema.columns c
      JOIN information_schema.tables t USING (table_schema, table_name) WHERE c.table_schema = 'perdure'
      AND t.table_type = 'BASE TABLE' AND c.column_name <> 'tenant_id'
      AND c.data_type IN ('text', 'jsonb', 'json', 'tsvector', 'character varying', 'ARRAY') ORDER BY 1
    """)
    return [row["name"] for row in rows]


async def marked(admin: asyncpg.Connection, text: str = MARK) -> set[str]:
    found = set()
    for column in await columns(admin):
        table, _, name = column.partition(".")
        held = f'SELECT true FROM perdure."{table}" WHERE "{name}"::text ILIKE $1 LIMIT 1'
        if await admin.fetchval(held, f"%{text}%"):
            found.add(column)
    return found


def neutral(column: str) -> bool:
    named = " ".join(NEUTRAL.values()).split()
    return column in named or column.partition(".")[0] + ".*" in named


async def person(harness: Harness, name: str) -> Person:
    roles = ("requester", "reviewer", "admin")
    actor = harness.people["admin"].user_id
    async with harness.db.transaction("local") as tx:
        user = await users.add_user(tx, name, f"{MARK} the display name", roles, actor)
        token = await users.mint_token(tx, name, f"{MARK}'s laptop", actor, OWN_CREDENTIAL)
    made = Person("local", user.id, name, frozenset(roles), token)
    harness.people[name] = made
    return made


GUESSABLE = """
SELECT (SELECT count(*) FROM turns t JOIN tool_calls k ON k.turn_id = t.id WHERE t.user_id = $1 AND k.digest <> '')
  + (SELECT count(*) FROM turns t JOIN approvals a ON a.turn_id = t.id WHERE t.user_id = $1 AND a.nonce <> '')
"""
PLANTED = """
UPDATE conversations SET title = $2, metadata = $3 WHERE id = (SELECT conversation_id FROM turns WHERE id = $1);
UPDATE turns SET metadata = $3, system_prompt = $2, memory_text = $2, persona = $3, problem = $3, answer = $2,
  output = $3, waiting = $3, stuck = $3 WHERE id = $1;
UPDATE tool_calls SET provider_call_id = $2, comment = $2, outcome = $3,
  ends = jsonb_build_array($3) WHERE turn_id = $1;
UPDATE approvals SET reason = $2, result = to_jsonb($2), preview = jsonb_build_object('after', $2), snapshot = $3,
  proposed = jsonb_build_object('a', $2),
  withdrawal = jsonb_build_object('by', $2), revision = jsonb_build_object('by', $2, 'args', $2) WHERE turn_id = $1;
UPDATE model_calls SET said = $2, reply = $3 WHERE turn_id = $1;
INSERT INTO working_memory (tenant_id, conversation_id, field, value, expires_at)
  SELECT 'local', conversation_id, 'f', to_jsonb($2), now() + interval '1 day' FROM turns WHERE id = $1;
INSERT INTO bundles (tenant_id, conversation_id, turn_id, tool, output, outcome)
  SELECT 'local', conversation_id, id, 't', $3, $3 FROM turns WHERE id = $1;
INSERT INTO episodes (id, tenant_id, conversation_id, turn_id, user_id, agent_id, summary)
  SELECT id, 'local', conversation_id, id, user_id, agent_id, $2 FROM turns WHERE id = $1;
INSERT INTO questions (id, tenant_id, conversation_id, turn_id, call_id, kind, asked, answer_schema, expires_at, status,
  answer) SELECT id, 'local', conversation_id, id, 'q1', 'clarification', $3, '{}', now(), 'answered', $3 FROM turns
  WHERE id = $1;
INSERT INTO files (id, tenant_id, conversation_id, user_id, name, media_type, size_bytes, sha256, content)
  SELECT id, 'local', conversation_id, user_id, $2, 'text/csv', 1, 'd', 'x' FROM turns WHERE id = $1;
INSERT INTO conversation_facts (tenant_id, conversation_id, type, content, confidence, turn_id)
  SELECT 'local', conversation_id, 'likes', $2, 0.5, id FROM turns WHERE id = $1;
INSERT INTO user_facts (tenant_id, user_id, type, content, confidence, turn_id)
  SELECT 'local', user_id, 'likes', $2, 0.5, id FROM turns WHERE id = $1;
INSERT INTO prompt_versions (id, tenant_id, template, text, digest, author)
  SELECT id, 'local', 'voice', $2, 'd', user_id FROM turns WHERE id = $1;
INSERT INTO idempotency (tenant_id, user_id, route, key, body_digest, status, answer)
  SELECT 'local', user_id, 'r', 'k', 'd', 200, $3 FROM turns WHERE id = $1;
INSERT INTO idempotency (tenant_id, user_id, route, key, body_digest, status, answer)
  SELECT 'local', u.id, 'decisions', a.id::text, 'd', 200, jsonb_build_object('items', jsonb_build_array(
  jsonb_build_object('id', a.id, 'error', jsonb_build_object('args', $2)))) FROM approvals a, users u
  WHERE a.turn_id = $1 AND u.name = 'reviewer';
WITH me AS MATERIALIZED (SELECT set_config('perdure.reader', '*', true) AS said), store AS (
  INSERT INTO memory_stores (tenant_id, slug, scope) VALUES ('local', 'user_memory', 'user')
  ON CONFLICT (tenant_id, slug) DO UPDATE SET scope = 'user' RETURNING id
), document AS (
  INSERT INTO memory_documents (id, tenant_id, store_id, scope, owner_id, path, type, title, entities, trust,
  version_id, sha256, words) SELECT t.id, 'local', store.id, 'user', t.user_id, $2, 'runbook', $2, ARRAY[$2],
  'user_authored', t.id, 'd', to_tsvector('english', $2) FROM turns t, store, me WHERE t.id = $1
  AND said IS NOT NULL RETURNING id, owner_id, store_id
), promotion AS (
  INSERT INTO memory_promotions (id, tenant_id, source_document, source_version, store_id, path, type, title, entities,
  content, sha256, risk, evidence_summary, source_refs, proposed_by, by_agent, comment)
  SELECT id, 'local', id, id, store_id, $2, 'runbook', $2, ARRAY[$2], $2, 'd', 'low', $2, to_jsonb(ARRAY[$2]),
  owner_id, false, $2 FROM document
) INSERT INTO memory_versions (id, tenant_id, document_id, owner_id, number, sha256, content, trust, author, by_agent,
  evidence_summary, source_refs, redacted_at, redacted_by, redaction_reason) SELECT gen_random_uuid(), 'local', id,
  owner_id, n, 'd', CASE n WHEN 1 THEN $2 END, 'user_authored', owner_id, false, $2, to_jsonb(ARRAY[$2]),
  CASE n WHEN 2 THEN now() END, owner_id, $2 FROM document, generate_series(1, 2) n
"""
"""The user's texts in columns that no step of this test fills: $2 is the text, $3 an object with it."""


async def plant(harness: Harness, address: TurnAddress, words: str = f"{MARK} was here") -> None:
    for statement in PLANTED.replace("$3", "jsonb_build_object('t', $2)").replace("$2", "$2::text").split(";"):
        await harness.write(statement, address.turn_id, words)


async def own_turn(harness: Harness, by: str) -> TurnAddress:
    """A turn of the person in which two calls waited, one was done, and another reviewer decided."""
    address = await harness.plan(("pay", {"mode": MARK}), ("post", {"text": MARK}), by=by)
    paid, posted = await harness.open(address, "t1.0", "t1.1")
    await harness.decide(paid.request_id, comment=f"{MARK} may have it")
    await harness.decide(posted.request_id, Decision.REJECT, comment=f"not this, {MARK}")
    await harness.run_tool(address)
    await harness.finish(address)
    await plant(harness, address)
    return address


ANSWERED = (
    "INSERT INTO idempotency (tenant_id, user_id, route, key, body_digest, status, answer) "
    "VALUES ('local', $1, 'r', gen_random_uuid()::text, 'd', 200, $2)"
)


async def in_turns_of_others(harness: Harness, name: str) -> list[TurnAddress]:
    """Turns of another user in which the person rejected, edited and settled."""
    address = await harness.plan(("pay", {}), ("post", {"mode": "break"}), ("post", {}))
    first, second, third = await harness.open(address, "t1.0", "t1.1", "t1.2")
    await harness.decide(first.request_id, Decision.REJECT, by=name, comment=f"{MARK} says no")
    await harness.decide(second.request_id, by=name, comment=f"{MARK} says yes")
    edited = {"text": "better"}
    await harness.decide(third.request_id, Decision.EDIT, by=name, args=edited, comment=f"{MARK} knows better")
    await harness.run_tool(address, "t1.1")
    who = harness.people[name]
    await harness.settle(address, "t1.1", by=name, comment=f"{MARK} looked")
    seats = (
        "UPDATE approvals SET reviewers = ARRAY[$2::text], fallback_reviewer = $2, assignee = $3, "
        "withdrawal = jsonb_build_object('by', $2::text, 'comment', $4::text) WHERE turn_id = $1"
    )
    await harness.write(seats, address.turn_id, name, who.user_id, MARK)
    async with harness.db.transaction("local") as tx:  # never run, so its reason is reported when the turn breaks off
        of = {"actor": who.user_id, "turn_id": address.turn_id}
        await audit.record(tx, "approval.withdrawn", first.request_id, {"by": name}, **of)
    await harness.write(ANSWERED, harness.people["reviewer"].user_id, {"decided_by": name})
    other, handed = await harness.request_approval()
    async with harness.db.transaction("local") as tx:
        reviewer = harness.people["reviewer"]
        by = {"actor": reviewer.user_id, "turn_id": other.turn_id}
        await audit.record(tx, "approval.fell_back", handed.request_id, {"fallback": name}, **by)
    minted, asked = await harness.request_approval()
    made = Credential(SignInMethod.TOKEN, (harness.people["admin"].user_id, who.user_id), (who.user_id,))
    async with harness.db.transaction("local") as tx:  # by a user whose token and account the person created
        digest = await tx.fetchval("SELECT digest FROM approvals WHERE id = $1", asked.request_id)
        decider = Decider(reviewer.user_id, reviewer.roles, "reviewer", credential=made)
        ask = SubmittedDecision(decision=Decision.REJECT, digest=digest, comment="not now")
        await decide(tx, asked.request_id, decider, "reviewer", ask)
    for each in (minted, address, other):
        await harness.finish(each)
    return [address, other, minted]


async def test_every_column_is_declared_as_user_text_or_not(harness: Harness, admin: asyncpg.Connection) -> None:
    await person(harness, NAME)
    await own_turn(harness, NAME)
    await in_turns_of_others(harness, NAME)
    found = await marked(admin)
    unsaid = [each for each in await columns(admin) if each not in found and not neutral(each)]
    assert unsaid == [], f"plant a person's words there in this test, or name them in NEUTRAL: {unsaid}"
    assert sorted(each for each in found if neutral(each)) == []


async def test_no_word_of_the_erased_stays_and_the_chain_verifies(harness: Harness, admin: asyncpg.Connection) -> None:
    assert len(await marked(admin)) > 25
    events = await harness.value("SELECT count(*) FROM events")
    hers = harness.people[NAME].user_id
    assert await harness.value(GUESSABLE, hers) > 0
    done = await erase(harness.db, "local", NAME, harness.people["admin"].user_id)
    assert sorted(await marked(admin)) == []
    assert await harness.value(GUESSABLE, hers) == 0, "who reads the tables guesses no arguments by their digests"
    report = await verify_chain(harness.db, "local", KEYRING)
    assert (report.ok, report.faults) == (True, ())
    assert report.erased > 5
    assert await harness.value("SELECT count(*) FROM events") == events, "what happened stays, without its words"
    account = "SELECT name, display_name, roles, disabled_at FROM users WHERE id = $1"
    (row,) = await harness.rows(account, done["user_id"])
    assert (row["name"], row["display_name"], row["roles"]) == (done["name"], "", []) and row["disabled_at"]
    trail = "SELECT kind, actor, data FROM audit_trail WHERE subject = $1 ORDER BY id"
    told = await harness.rows(trail, done["user_id"])
    assert [each["kind"] for each in told][-2:] == ["user.erasure_begun", "user.erased"]
    assert str(told[-1]["actor"]) == harness.people["admin"].user_id and told[-1]["data"]["rows"] == done["erased"]


async def test_the_texts_of_other_users_stay_wherever_they_are(harness: Harness, admin: asyncpg.Connection) -> None:
    name = f"{MARK}2"
    await person(harness, name)
    theirs, *_ = await in_turns_of_others(harness, name)
    await plant(harness, theirs, "words of another")
    before = await marked(admin, "words of another")
    assert len(before) > 25
    await erase(harness.db, "local", name, harness.people["admin"].user_id)
    assert await marked(admin, "words of another") == before
    asked = await harness.rows("SELECT content FROM messages WHERE turn_id = $1 AND role = 'user'", theirs.turn_id)
    assert all(row["content"] for row in asked) and asked
    edited = (await harness.approval_row(theirs, "t1.2"))["decision"]
    assert (edited["type"], edited["args"], edited["comment"]) == ("edit", {"text": "better", "mode": ""}, "")
    kept = "SELECT data FROM audit_trail WHERE turn_id = $1 AND kind = 'approval.opened'"
    opened = await harness.rows(kept, theirs.turn_id)
    assert len(opened) == 3 and all(row["data"] for row in opened)


async def erasure_refusal(
    harness: Harness, name: str, actor: str = "", tenant: str = "local"
) -> tuple[str, int, object]:
    """The refusal of an erasure: its code, its status, the turns that it names."""
    with pytest.raises(CallerError) as error:
        await erase(harness.db, tenant, name, actor or harness.people["admin"].user_id)
    return error.value.code, error.value.http, error.value.details.get("turns")


async def test_no_user_is_erased_with_open_turns_a_decision_to_run_or_an_unsettled_effect(harness: Harness) -> None:
    name = f"{MARK}3"
    await person(harness, name)
    own, _ = await harness.start(Line("hi"), by=name)
    other, request = await harness.request_approval()
    await harness.decide(request.request_id, by=name)
    for address in (own, other):
        code, http, turns = await erasure_refusal(harness, name)
        assert (code, http) == ("turns_open", 409) and address.turn_id in str(turns)
        await harness.finish(address)
    address = await harness.approved(("post", {"mode": "break"}), by=name)
    await harness.run_tool(address)
    await harness.finish(address)
    assert (await erasure_refusal(harness, name))[:2] == ("effects_unsettled", 409)
    assert await harness.value("SELECT disabled_at IS NULL FROM users WHERE name = $1", name), "nothing was touched"
    await harness.settle(address, comment="looked")
    await erase(harness.db, "local", name, harness.people["admin"].user_id)


async def test_an_admin_cannot_erase_their_own_data_or_an_unknown_user(harness: Harness) -> None:
    assert (await erasure_refusal(harness, "admin"))[:2] == ("own_data", 409)
    for tenant, name in (("local", "nobody"), ("other", "requester")):
        assert (await erasure_refusal(harness, name, new_id(), tenant))[:2] == ("user_not_found", 404)


async def test_a_turn_that_begins_during_the_erasure_ends_it_without_loss(harness: Harness) -> None:
    name, admin_id = f"{MARK}6", harness.people["admin"].user_id
    await person(harness, name)
    conversation = await harness.conversation(by=name)
    starts = [harness.start(Line("late"), by=name, conversation_id=conversation) for _ in range(3)]
    results: list[object] = [*await gathered(erase(harness.db, "local", name, admin_id), *starts)]
    still_open = "SELECT id FROM turns WHERE conversation_id = $1 AND ended_at IS NULL"
    open_turns = await harness.rows(still_open, conversation)
    if open_turns:
        assert isinstance(results[0], CallerError) and results[0].code == "turns_open"
        for row in open_turns:
            await harness.finish(TurnAddress(tenant_id="local", conversation_id=conversation, turn_id=str(row["id"])))
        await erase(harness.db, "local", name, admin_id)
    said = await harness.rows("SELECT content FROM messages WHERE conversation_id = $1", conversation)
    assert {row["content"] for row in said} <= {""}


LEAVER = "leaver"
GONE = {"answer", "outcome", "ttft_seconds", "finish_reason", "items[].data"}
"""Fields that are null in the contract if unknown; the audit has `erased` beside them."""


def nulls(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from nulls(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for each in value:
            yield from nulls(each, f"{path}[]")
    elif value is None:
        yield path


def stream_events(stream: str) -> list[tuple[str, dict[str, Any]]]:
    blocks = [block.splitlines() for block in stream.split("\n\n") if "data: " in block]
    fields = [dict(line.split(": ", 1) for line in block) for block in blocks]
    return [(each["event"], json.loads(each["data"])) for each in fields]


async def test_every_view_of_an_erased_users_turn_answers_with_valid_fields(api: Api) -> None:
    async with api.client("admin") as admin, api.client("reviewer") as reviewer:
        async with api.client_of(await api.new_user(LEAVER, "requester")) as leaver:
            path = f"/v1/conversations/{await conversation(leaver)}/turns"
            turn = (await leaver.post(path, params={"wait": 20}, json={"message": "Refund order 1042"})).json()
        approval = f"/v1/approvals/{turn['waiting_for']['ids'][0]}"
        given = {"decision": "approve", "digest": (await reviewer.get(approval)).json()["digest"], "comment": "yes"}
        assert (await reviewer.post(f"{approval}/decision", json=given)).status_code == 200
        assert (await final_turn(reviewer, turn["turn_id"]))["status"] == "completed"
        effects = (await admin.get("/v1/effects")).json()["items"]
        key = next(each["key"] for each in effects if each["turn_id"] == turn["turn_id"])
        of_turn, mine = f"/v1/turns/{turn['turn_id']}", {"turn": turn["turn_id"]}
        views: list[tuple[str, dict[str, str]]] = [
            (of_turn, {}), ("/v1/turns", {"conversation": turn["conversation_id"]}), (approval, {}),
            ("/v1/approvals", mine), (f"/v1/effects/{key}", {}), ("/v1/effects", {}), (f"{approval}/audit", {}),
        ]  # fmt: skip
        before = [(await admin.get(path, params=params)).json() for path, params in views]
        assert before[0]["nodes"] and all(each.get("items", True) for each in before), before
        erased = await admin.delete(f"/v1/users/{LEAVER}/data")
        assert erased.status_code == 200, erased.text
        assert (await admin.get("/v1/auth/me", headers=leaver.headers)).status_code == 401

        answers = [await admin.get(path, params=params) for path, params in views]
        assert [answer.status_code for answer in answers] == [200] * len(views)
        for answer, whole in zip(answers, before, strict=True):
            new = {*nulls(answer.json())} - {*nulls(whole)}
            assert new <= GONE | {f"items[].{name}" for name in GONE}, answer.url
        assert answers[0].json()["nodes"] == []
        assert answers[2].json()["votes"][0]["comment"] == ""
        late = await reviewer.post(f"{approval}/decision", json=given)
        assert (late.status_code, code(late)) == (409, "already_decided"), late.text

        replay = stream_events((await admin.get(f"{of_turn}/events")).text)
        assert [(kind, [*nulls(data)]) for kind, data in replay] == [(kind, []) for kind, _ in replay]
        ends = [("done", "completed"), ("workflow_complete", "completed")]
        assert [(kind, data["status"]) for kind, data in replay[-2:]] == ends
        gone = f"/v1/conversations/{turn['conversation_id']}"
        for path in (gone, f"{gone}/messages", f"{gone}/stream"):
            assert (await admin.get(path)).status_code == 404, path


TURNS = sized(1_000, 40)
ROWS_A_TURN = sized(10, 2)
"""Rows of the audit. As many belong to another user's turns."""
AT_ONCE = 500
STATEMENT_SECONDS = 5.0
"""The API's limit for a statement."""
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


@pytest.mark.sized
async def test_a_thousand_turns_are_erased_in_short_statements(
    harness: Harness, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, other = await person(harness, "much"), await person(harness, "more")
    for user_id in (made.user_id, other.user_id):
        await filled(harness, user_id)
    await admin.execute("ANALYZE")
    took: list[tuple[float, str]] = []
    sizes = Counter[int]()
    do = erasure._run_chunk

    async def timed(tx: Connection, step: Step, given: erasure.Erasure) -> int:
        began = time.perf_counter()
        rows = await do(tx, step, given)
        took.append((time.perf_counter() - began, step.table))
        sizes[await tx.fetchval("SELECT pg_current_xact_id()::text::bigint")] += rows
        return rows

    monkeypatch.setattr(erasure, "_run_chunk", timed)
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
    assert max(sizes.values()) == 1_000, "rows that a transaction locks at most"
    assert after < 2 * before + 1
    texts = (
        "SELECT count(*) FROM messages JOIN conversations c ON c.id = conversation_id "
        "WHERE content <> '' AND user_id = $1"
    )
    assert await harness.value(texts, made.user_id) == 0
    assert await harness.value(texts, other.user_id) == TURNS * 10
    assert await harness.value("SELECT count(*) FROM audit_bodies WHERE data IS NULL") >= TURNS * ROWS_A_TURN
