"""The memory tools in real calls, facts in Postgres, and the entities in a skill's prompt."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from perdure.activities.facts import FactsActivities
from perdure.activities.toolbox.engine_tools import MEMORY_BY_NAME
from perdure.activities.toolbox.registry import Toolbox
from perdure.contracts.agents import MemoryPolicy
from perdure.contracts.calls import CallState
from perdure.contracts.memory import (
    MAX_FACTS,
    Fact,
    FactsAnswer,
    FactsCall,
    FactScope,
    FactsRequest,
    FactStatus,
    MemoryLimits,
)
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import digest_of, sha256_hex
from perdure.store.database import new_id
from perdure.store.memory import facts
from tests.conftest import Urls, as_owner
from tests.doubles.desk_variants import KEEPER, keeper, without
from tests.doubles.embedder import Hashing
from tests.doubles.target import app_agents
from tests.harness import Harness, publish_app
from tests.integration.library_writer import Library, other_tenant

KEY = "AKI" + "A" + "A1B2C3D4E5F6G7H8"
C, U, S = FactScope.CONVERSATION, FactScope.USER, FactStatus


@pytest.fixture(scope="module")
async def harness(harness: Harness, urls: Urls) -> AsyncIterator[Harness]:
    """The test app; its agent has the memory tools beside its own."""
    await other_tenant(urls)
    (agents, tools), own = app_agents(), list(MEMORY_BY_NAME.values())
    widened = []
    for app, agent in agents:
        more = {"cards": (*agent.cards, *(tool.card for tool in own)), "version": digest_of([agent.version, "memory"])}
        widened.append((app, agent.model_copy(update=more) if agent.definition.id == "desk" else agent))
    await publish_app(urls.owner, widened)
    toolbox = Toolbox([*tools, *(("desk", tool) for tool in own)], lambda name: None, harness.deps.toolbox.http)
    yield replace(harness, deps=replace(harness.deps, toolbox=toolbox))


@pytest.fixture
def library(harness: Harness) -> Library:
    return Library(harness.db, harness.people)


@dataclass(frozen=True, slots=True)
class Called:
    harness: Harness
    address: TurnAddress
    output: dict[str, Any]

    async def events(self) -> dict[str, dict[str, Any]]:
        sql = "SELECT kind, call_id, data FROM events WHERE turn_id = $1 AND kind LIKE 'memory.%' ORDER BY seq"
        rows = await self.harness.rows(sql, self.address.turn_id)
        assert {row["call_id"] for row in rows} <= {"t1.0"}
        return {row["kind"]: row["data"] for row in rows}

    async def usage(self) -> list[tuple[str, str]]:
        sql = "SELECT kind, version_id::text FROM conversation_memory_usage WHERE turn_id = $1 ORDER BY 1, 2"
        return [(row["kind"], row["version_id"]) for row in await self.harness.rows(sql, self.address.turn_id)]


async def call(harness: Harness, tool: str, /, _in: str | None = None, **args: Any) -> Called:
    """Plan a call, have it approved where that is needed, and run it twice as two attempts would."""
    plan = harness.approved if MEMORY_BY_NAME[tool].card.needs_approval else harness.plan
    address = await plan((tool, args), conversation_id=_in)
    outcome = await harness.run_tool(address)
    assert outcome.state is CallState.DONE and outcome.message is not None, await harness.call_row(address)
    assert await harness.run_tool(address, attempt=2) == outcome
    content = await harness.value("SELECT content::jsonb FROM messages WHERE id = $1", outcome.message.id)
    # Let the conversation take another turn.
    await harness.write("UPDATE conversations SET active_turn_id = NULL WHERE id = $1", address.conversation_id)
    return Called(harness, address, content)


async def remember(harness: Harness, path: str, content: str, _in: str | None = None, **more: Any) -> Called:
    given = {"path": path, "title": path, "content": content, "evidence_summary": "the user said it", **more}
    return await call(harness, "memory_remember", _in, **given)


async def test_a_kept_note_is_found_read_and_listed_in_its_own_conversation_only(harness: Harness) -> None:
    text, query = "The ibex counter runs on port 8099", "which port has the ibex counter?"
    here = await harness.conversation()
    kept = await remember(harness, "notes/ibex", text, _in=here, type="runbook")
    assert kept.output["status"] == "written" and kept.output["trust"] == "agent_draft"
    version = kept.output["version_id"]
    assert await kept.usage() == [("written", version)]
    assert (await kept.events())["memory.write.created"]["sha256"] == sha256_hex(text)
    found = await call(harness, "memory_search", _in=here, query=query)
    (hit,) = found.output["hits"]
    document = {"document_id": hit["document_id"]}
    assert hit["version_id"] == version and "8099" in hit["excerpt"] and 0 < hit["score"] <= 1
    assert (await found.events())["memory.search"] == {"scope": "documents", "query": query, "count": 1}
    assert await found.usage() == [("read", version)]
    read = await call(harness, "memory_read", _in=here, **document)
    assert read.output["content"] == text and await read.events() == {}
    listed = await call(harness, "memory_list", _in=here, prefix="notes/")
    assert [each["path"] for each in listed.output["documents"]] == ["notes/ibex"]
    entries = (await call(harness, "memory_history", _in=here, **document)).output["versions"]
    assert [(each["number"], each["by_agent"], each["call_id"]) for each in entries] == [(1, True, "t1.0")]
    elsewhere = await harness.conversation()
    assert (await call(harness, "memory_search", _in=elsewhere, query="ibex")).output["hits"] == []
    assert (await call(harness, "memory_list", _in=elsewhere, prefix="notes/")).output["documents"] == []
    for tool in ("memory_read", "memory_history"):
        assert (await call(harness, tool, _in=elsewhere, **document)).output["code"] == "document_not_found"


async def test_ids_that_a_model_names_are_overwritten_by_the_servers(harness: Harness, library: Library) -> None:
    theirs = await library.write("secrets/okapi", "the okapi belongs to the reviewer", by="reviewer")
    forged = dict.fromkeys(("user_id", "conversation_id", "run_id", "tenant_id"), harness.people["reviewer"].user_id)
    assert (await call(harness, "memory_search", query="okapi", **forged)).output["hits"] == []
    read = await call(harness, "memory_read", document_id=theirs.ref.document_id, **forged)
    assert read.output["code"] == "document_not_found"
    kept = await remember(harness, "secrets/okapi", "mine", scope="user", type="user_preference", **forged)
    assert (await library.read(kept.output["document_id"])).owner_id == harness.people["requester"].user_id
    assert (await library.read(theirs.ref.document_id, "reviewer")).content == "the okapi belongs to the reviewer"


async def test_a_secret_is_refused_and_flagged_without_being_repeated(harness: Harness) -> None:
    before = await harness.value("SELECT count(*) FROM memory_documents")
    refused = await remember(harness, f"notes/gh{'p_' + 'a1b2c3d4e5f6' * 3}", f"the key is {KEY}")
    assert (refused.output["status"], refused.output["code"]) == ("refused", "memory_unsafe")
    events = await refused.events()
    assert set(events) == {"memory.safety.flagged", "memory.write.blocked"}
    assert events["memory.safety.flagged"]["blocked"] is True
    for said in (str(events), str(refused.output)):
        assert KEY not in said and "a1b2c3" not in said
    assert await refused.usage() == [] and await harness.value("SELECT count(*) FROM memory_documents") == before


async def test_a_refused_write_returns_its_code_and_emits_its_event(harness: Harness) -> None:
    for given, event, code in (
        ({"scope": "workspace"}, "memory.policy.denied", "workspace_read_only"),
        ({"path": "No Path"}, "memory.write.blocked", "path_invalid"),
        ({"evidence_summary": ""}, "memory.write.blocked", "evidence_missing"),
    ):
        refused = await remember(harness, **{"path": "notes/refused", "content": "x", **given})
        assert refused.output["code"] == (await refused.events())[event]["code"] == code
        assert await refused.usage() == []


async def test_a_patch_waits_for_a_person_and_a_stale_one_is_a_conflict(harness: Harness, library: Library) -> None:
    made = await library.write("prefs/tone", "Answer briefly")
    edits, document = [{"find": "briefly", "replace": "at length"}], made.ref.document_id
    patch: dict[str, Any] = {"document_id": document, "edits": edits, "expected_sha256": made.sha256}
    address = await harness.plan(("memory_patch", patch))
    await harness.open(address, "t1.0")
    assert (await harness.run_tool(address)).state is CallState.PLANNED
    assert (await library.read(document)).content == "Answer briefly"
    assert (await call(harness, "memory_patch", **patch)).output["code"] == "evidence_missing"
    patch["evidence_summary"] = "the user asked for it"
    done = await call(harness, "memory_patch", **patch)
    now = await library.read(document)
    assert (now.content, now.ref.trust.value, done.output["number"]) == ("Answer at length", "agent_draft", 2)
    stale = await call(harness, "memory_patch", **patch)
    assert stale.output["code"] == "memory_conflict" and stale.output["details"]["sha256"] == now.sha256
    assert (await stale.events())["memory.write.blocked"]["code"] == "memory_conflict"


async def test_a_proposal_leaves_a_pending_review_and_nothing_shared(harness: Harness) -> None:
    kept = await remember(harness, "notes/dingo", "dingo deploys are on Mondays", scope="conversation")
    what = {"store": "workspace_conventions", "path": "dingo.md", "risk": "low", "evidence_summary": "seen three times"}
    document, here = kept.output["document_id"], kept.address.conversation_id
    proposed = await call(harness, "memory_propose_promotion", here, document_id=document, **what)
    assert proposed.output["status"] == "pending"
    assert (await proposed.events())["memory.promotion.proposed"]["promotion_id"] == proposed.output["promotion_id"]
    assert await proposed.usage() == [("proposed", kept.output["version_id"])]
    (row,) = await harness.rows("SELECT * FROM memory_promotions WHERE id = $1", proposed.output["promotion_id"])
    assert (row["status"], row["risk"], row["by_agent"], row["call_id"]) == ("pending", "low", True, "t1.0")
    assert await harness.value("SELECT count(*) FROM memory_documents WHERE path = 'dingo.md'") == 0


async def test_the_operators_limits_and_switch_apply_to_what_an_agent_writes(harness: Harness) -> None:
    narrow = MemoryLimits(document_bytes=60, write_bytes=40, evidence_required=False)
    small = replace(harness, deps=replace(harness.deps, memory=narrow))
    assert (await remember(small, "a", "short", evidence_summary="")).output["status"] == "written"
    large = (await remember(small, "b", "x y " * 9, evidence_summary="")).output
    assert [each["rule"] for each in large["warnings"]] == ["large"]
    too_large = (await remember(small, "c", "x y " * 20, evidence_summary="")).output
    assert (too_large["status"], too_large["code"]) == ("refused", "memory_unsafe")
    off = replace(harness, deps=replace(harness.deps, memory=MemoryLimits(enabled=False)))
    note = {"path": "e", "title": "e", "content": "e"}
    for tool, args in (("memory_search", {"query": "a"}), ("memory_remember", note)):
        assert (await off.run_tool(await off.plan((tool, args)))).state is CallState.FAILED


@pytest.fixture(scope="module")
async def facts_harness(harness: Harness) -> Harness:
    ours = [keeper(), keeper("brief", memory=MemoryPolicy(facts=(C,)))]
    await publish_app(harness.owner_url, [*app_agents()[0], *(("desk", each) for each in ours)])
    return harness


async def run_fact_tool(
    harness: Harness,
    address: TurnAddress,
    scope: FactScope,
    *facts: Fact,
    agent_id: str = KEEPER,
    attempt: int = 1,
    **ask: object,
) -> FactsAnswer:
    asked = {"scope": scope, "authorized": True, "write": bool(facts), "facts": facts, **ask}
    given = FactsRequest.model_validate(asked)
    call = FactsCall(address=address, agent_id=agent_id, agent_version=await harness.version(agent_id), ask=given)
    return await harness.activity(FactsActivities(harness.deps).facts, call, attempt=attempt)


async def turn(harness: Harness, by: str = "requester", **given: object) -> TurnAddress:
    return (await harness.start(agent_id=KEEPER, by=by, **given))[0]  # type: ignore[arg-type]


def facts_of(*contents: str, kind: str = "likes", confidence: float = 0.5) -> list[Fact]:
    return [Fact(type=kind, content=each, confidence=confidence) for each in contents]


async def test_no_other_conversation_or_user_sees_a_stored_note(facts_harness: Harness) -> None:
    first, other, stranger = [await turn(facts_harness, by=name) for name in ("admin", "admin", "reviewer")]
    for scope in (C, U):
        assert (await run_fact_tool(facts_harness, first, scope, *facts_of("tea"))).status is S.SUCCESS
    assert (await run_fact_tool(facts_harness, first, C, types=("name",))).status is S.NOT_FOUND
    assert (await run_fact_tool(facts_harness, other, C)).status is S.NOT_FOUND
    assert [fact.content for fact in (await run_fact_tool(facts_harness, other, U)).facts] == ["tea"]
    assert (await run_fact_tool(facts_harness, stranger, U)).facts == ()


async def test_append_only_rows_never_change_and_such_a_write_is_refused(facts_harness: Harness) -> None:
    address = await turn(facts_harness)
    await run_fact_tool(facts_harness, address, U, *facts_of("tea"))
    for statement in ("UPDATE user_facts SET content = 'x'", "DELETE FROM user_facts"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await facts_harness.write(statement)
    async with as_owner(facts_harness.owner_url, "local") as owner:
        with pytest.raises(asyncpg.IntegrityConstraintViolationError):
            await owner.execute("UPDATE user_facts SET content = 'x'")
        await owner.execute(
            "CREATE FUNCTION rewrite() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN "
            "UPDATE perdure.user_facts SET content = NEW.content WHERE user_id = NEW.user_id; RETURN NULL; END $$; "
            "CREATE TRIGGER rewrites BEFORE INSERT ON user_facts FOR EACH ROW EXECUTE FUNCTION rewrite()"
        )
        try:
            answer = await run_fact_tool(facts_harness, address, U, *facts_of("coffee"))
        finally:
            await owner.execute("DROP TRIGGER rewrites ON user_facts; DROP FUNCTION rewrite()")
    assert (answer.status, answer.refused_change) == (S.FAILED, True)
    assert "tea" in {fact.content for fact in (await run_fact_tool(facts_harness, address, U)).facts}


async def test_of_many_facts_the_nearest_are_returned_oldest_first(facts_harness: Harness) -> None:
    for embedder, by in ((None, "reviewer"), (Hashing(), "requester")):
        harness = replace(facts_harness, deps=replace(facts_harness.deps, embedder=embedder))
        address = await turn(harness, by=by)
        await run_fact_tool(harness, address, U, *facts_of("green tea"))
        await run_fact_tool(harness, address, U, *facts_of(*(f"number {n}" for n in range(MAX_FACTS)), kind="number"))
        await run_fact_tool(harness, address, U, *facts_of(*(f"late {n}" for n in range(MAX_FACTS)), kind="late"))
        found = [fact.content for fact in (await run_fact_tool(harness, address, U, about="green tea")).facts]
        assert len(found) == MAX_FACTS and "green tea" in found and (embedder or found[0] == "green tea")
        by_whom = "SELECT embedder FROM user_facts WHERE content = 'green tea' ORDER BY id DESC LIMIT 1"
        assert await harness.value(by_whom) == (embedder.name if embedder else None)
        late = (await run_fact_tool(harness, address, U, types=("late",))).facts
        assert [fact.content for fact in late] == [f"late {n}" for n in range(MAX_FACTS)]


async def test_a_fact_that_is_not_granted_or_not_available_returns_a_status(facts_harness: Harness) -> None:
    address = await turn(facts_harness)
    for each in ((), facts_of("tea")):
        assert (await run_fact_tool(facts_harness, address, U, *each, agent_id="brief")).status is S.UNAUTHORIZED
    for scope, table in ((C, "conversation_facts"), (U, "user_facts")):
        assert (await run_fact_tool(facts_harness, address, scope, *facts_of("a\x00b"))).status is S.FAILED
        async with without(facts_harness, table):
            assert (await run_fact_tool(facts_harness, address, scope)).status is S.UNAVAILABLE
            assert (await run_fact_tool(facts_harness, address, scope, *facts_of("tea"))).status is S.FAILED
        assert (await run_fact_tool(facts_harness, address, scope, *facts_of("tea"))).status is S.SUCCESS
    off = replace(facts_harness, deps=replace(facts_harness.deps, keeps_facts=False))
    assert (await run_fact_tool(off, address, U)).status is S.UNAVAILABLE, "the operator took it away"
    assert (await run_fact_tool(off, address, C, *facts_of("tea"))).status is S.FAILED


async def create_entity(harness: Harness, name: str, **attributes: object) -> str:
    async with harness.db.transaction("local") as tx:
        return (await facts.create_entity(tx, "thing", name, {**attributes}, None, None)).id  # type: ignore[dict-item]


async def entity_headings(harness: Harness, *references: str, tenant: str = "local") -> dict[str, str]:
    async with harness.db.transaction(tenant) as tx:
        found = await facts.referred_entities(tx, references)
    return {reference: told.splitlines()[0] for reference, told in found.items()}


async def test_each_reference_resolves_to_its_entitys_current_state_in_one_query(harness: Harness) -> None:
    mark = new_id()
    first = await create_entity(harness, f"A {mark}", code=mark, old=mark)
    second = await create_entity(harness, f"B {mark}", number=7, mark=mark)
    fresh = "UPDATE entities SET attributes = attributes - 'old' || jsonb_build_object('fresh', $2::text) WHERE id = $1"
    await harness.write(fresh, first, mark)
    references = (f"id={first}", f"name=B {mark}", f"code={mark}", f"mark={mark}", f"fresh={mark}")
    a, b = f"thing: A {mark} ({first})", f"thing: B {mark} ({second})"
    found = dict(zip(references, (a, b, a, b, a), strict=True))
    assert await entity_headings(harness, f"old={mark}", *references) == found
    assert await entity_headings(harness, *references, tenant="other") == {}


async def test_a_reference_matches_exactly_and_one_without_an_entity_is_omitted(harness: Harness) -> None:
    mark = new_id()
    only = await create_entity(harness, f"Only {mark}", note="a=b", **{f"{mark}=a": "b"})
    wrong = (f"name=ONLY {mark}", f"id={only.upper()}", "id=", "id=no id", "name=", "nobody=x", "x", "", f"Only={mark}")
    assert await entity_headings(harness, *wrong, f"{mark}=a=b") == {}, (
        "what a name with an equals sign has is mistaken for none"
    )
    assert list(await entity_headings(harness, "note=a=b")) == ["note=a=b"]
    async with harness.db.transaction("local") as tx:
        assert [each.id for each in await facts.find_entities(tx, f" ONLY  {mark[:30]}")] == [only]
        assert await facts.find_entities(tx, " \t ") == [] == await facts.find_entities(tx, "")


async def test_of_several_entities_with_one_name_or_value_the_newest_is_found(harness: Harness) -> None:
    mark = new_id()
    ids = [await create_entity(harness, f"Twin {mark}", mark=mark) for _ in range(3)]
    for place, entity_id in enumerate(ids):
        sql = "UPDATE entities SET created_at = now() - $2::interval WHERE id = $1"
        await harness.write(sql, entity_id, timedelta(hours=abs(place - 1)))
    references = (f"name=Twin {mark}", f"mark={mark}")
    assert await entity_headings(harness, *references) == dict.fromkeys(references, f"thing: Twin {mark} ({ids[1]})")


async def test_a_value_of_any_kind_is_found_by_its_text(harness: Harness) -> None:
    mark = new_id()
    values: dict[str, Any] = {"n": 7, "f": 7.5, "e": 1e2, "yes": True, "none": None, "list": [1, "a"], "of": {"a": 1}}
    values |= {"é": "ü", "": "x"}
    entity_id = await create_entity(
        harness, f"Any {mark}", **{f"{mark}{name}": value for name, value in values.items()}
    )
    only = f"thing: Any {mark} ({entity_id})"
    told = {"n": "7", "f": "7.5", "e": "100.0", "yes": "true", "list": '[1, "a"]', "of": '{"a": 1}', "é": "ü", "": "x"}
    found = {f"{mark}{name}={value}": only for name, value in told.items()}
    assert await entity_headings(harness, *found, f"{mark}none=", f"{mark}none=null", f"{mark}n=7.0") == found
