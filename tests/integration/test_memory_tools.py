"""The memory tools in real calls: whose documents they touch, what they refuse, and the events and rows they leave."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from perdure.activities.toolbox.engine_tools import MEMORY_BY_NAME
from perdure.activities.toolbox.registry import Toolbox
from perdure.contracts.calls import CallState
from perdure.contracts.memory import MemoryLimits
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import digest_of, sha256_hex
from perdure.store.calls import tool_calls
from tests.conftest import Person, Urls
from tests.desk import Desk, publish_desk
from tests.doubles.desk import desk_agents
from tests.integration.library import Library, other_tenant

KEY = "AKI" + "A" + "A1B2C3D4E5F6G7H8"


@pytest.fixture(scope="module")
async def desk(desk: Desk, urls: Urls, people: dict[str, Person]) -> AsyncIterator[Desk]:
    """The desk whose agent has the memory tools beside its own."""
    await other_tenant(urls, desk.db, people)
    agents, tools = desk_agents()
    cards = tuple(tool.card for tool in MEMORY_BY_NAME.values())
    widened = []
    for app, agent in agents:
        more = {"cards": (*agent.cards, *cards), "version": digest_of([agent.version, "memory"])}
        widened.append((app, agent.model_copy(update=more) if agent.definition.id == "desk" else agent))
    await publish_desk(urls.owner, widened)
    own = [("desk", tool) for tool in MEMORY_BY_NAME.values()]
    toolbox = Toolbox([*tools, *own], lambda name: None, desk.deps.toolbox.http)
    yield replace(desk, deps=replace(desk.deps, toolbox=toolbox))


@pytest.fixture
def library(desk: Desk) -> Library:
    return Library(desk.db, desk.people)


class Called:
    """One call of a memory tool in a turn of its own."""

    def __init__(self, desk: Desk, address: TurnAddress, output: dict[str, Any]) -> None:
        self.desk, self.address, self.output = desk, address, output

    async def events(self) -> dict[str, dict[str, Any]]:
        """The memory events of the call, by kind; each names the call."""
        sql = "SELECT kind, call_id, data FROM events WHERE turn_id = $1 AND kind LIKE 'memory.%' ORDER BY seq"
        rows = await self.desk.rows(sql, self.address.turn_id)
        assert {row["call_id"] for row in rows} <= {"t1.0"}
        return {row["kind"]: row["data"] for row in rows}

    async def usage(self) -> list[tuple[str, str]]:
        """(kind, version) of the turn."""
        sql = "SELECT kind, version_id::text FROM conversation_memory_usage WHERE turn_id = $1 ORDER BY 1, 2"
        return [(row["kind"], row["version_id"]) for row in await self.desk.rows(sql, self.address.turn_id)]


async def call(desk: Desk, tool: str, /, _by: str = "requester", _in: str | None = None, **args: Any) -> Called:
    """Plan a call, have it approved where that is needed, and run it twice as two attempts would."""
    address = await desk.plan((tool, args), by=_by, conversation_id=_in)
    if MEMORY_BY_NAME[tool].card.needs_approval:
        (request,) = await desk.open(address, "t1.0")
        await desk.decide(request.request_id, by="admin" if _by == "reviewer" else "reviewer")
    outcome = await desk.run_tool(address)
    assert outcome.state is CallState.DONE and outcome.message is not None, await desk.call_row(address)
    assert await desk.run_tool(address, attempt=2) == outcome
    content = await desk.value("SELECT content::jsonb FROM messages WHERE id = $1", outcome.message.id)
    await end(desk, address)
    return Called(desk, address, content)


async def end(desk: Desk, address: TurnAddress) -> None:
    """Let the conversation take another turn."""
    await desk.write("UPDATE conversations SET active_turn_id = NULL WHERE id = $1", address.conversation_id)


async def remember(
    desk: Desk, path: str, content: str, _by: str = "requester", _in: str | None = None, **more: Any
) -> Called:
    given = {"path": path, "title": path, "content": content, "evidence_summary": "the user said it", **more}
    return await call(desk, "memory_remember", _by, _in, **given)


async def test_a_kept_note_is_found_read_and_listed_in_its_own_conversation_only(desk: Desk) -> None:
    here = await desk.conversation()
    kept = await remember(desk, "notes/ibex", "The ibex counter runs on port 8099", _in=here, type="runbook")
    assert kept.output["status"] == "written" and kept.output["trust"] == "agent_draft"
    version = kept.output["version_id"]
    assert await kept.usage() == [("written", version)]
    assert (await kept.events())["memory.write.created"]["sha256"] == sha256_hex("The ibex counter runs on port 8099")
    found = await call(desk, "memory_search", _in=here, query="which port has the ibex counter?")
    (hit,) = found.output["hits"]
    assert hit["version_id"] == version and "8099" in hit["excerpt"] and 0 < hit["score"] <= 1
    assert (await found.events())["memory.search"] == {
        "scope": "documents", "query": "which port has the ibex counter?", "count": 1
    }  # fmt: skip
    assert await found.usage() == [("read", version)]
    read = await call(desk, "memory_read", _in=here, document_id=hit["document_id"])
    assert read.output["content"] == "The ibex counter runs on port 8099" and await read.events() == {}
    listed = await call(desk, "memory_list", _in=here, prefix="notes/")
    assert [each["path"] for each in listed.output["documents"]] == ["notes/ibex"]
    entries = (await call(desk, "memory_history", _in=here, document_id=hit["document_id"])).output["versions"]
    assert [(each["number"], each["by_agent"], each["call_id"]) for each in entries] == [(1, True, "t1.0")]
    elsewhere = await desk.conversation()
    assert (await call(desk, "memory_search", _in=elsewhere, query="ibex")).output["hits"] == []
    assert (await call(desk, "memory_list", _in=elsewhere, prefix="notes/")).output["documents"] == []
    for tool in ("memory_read", "memory_history"):
        refused = await call(desk, tool, _in=elsewhere, document_id=hit["document_id"])
        assert refused.output["code"] == "document_not_found"


async def test_ids_that_a_model_names_are_overwritten_by_the_servers(desk: Desk, library: Library) -> None:
    path = "secrets/okapi"
    theirs = await library.write(path, "the okapi belongs to the reviewer", by="reviewer")
    forged = dict.fromkeys(("user_id", "conversation_id", "run_id", "tenant_id"), desk.people["reviewer"].user_id)
    found = await call(desk, "memory_search", query="okapi", **forged)
    assert found.output["hits"] == []
    read = await call(desk, "memory_read", document_id=theirs.ref.document_id, **forged)
    assert read.output["code"] == "document_not_found"
    kept = await remember(desk, path, "mine", scope="user", type="user_preference", **forged)
    document = await library.read(kept.output["document_id"])
    assert document.owner_id == desk.people["requester"].user_id
    assert (await library.read(theirs.ref.document_id, "reviewer")).content == "the okapi belongs to the reviewer"


async def test_a_secret_is_refused_and_flagged_without_being_repeated(desk: Desk) -> None:
    before = await desk.value("SELECT count(*) FROM memory_documents")
    refused = await remember(desk, f"notes/gh{'p_' + 'a1b2c3d4e5f6' * 3}", f"the key is {KEY}")
    assert (refused.output["status"], refused.output["code"]) == ("refused", "memory_unsafe")
    events = await refused.events()
    assert set(events) == {"memory.safety.flagged", "memory.write.blocked"}
    assert events["memory.safety.flagged"]["blocked"] is True
    for said in (str(events), str(refused.output)):
        assert KEY not in said and "a1b2c3" not in said
    assert await refused.usage() == [] and await desk.value("SELECT count(*) FROM memory_documents") == before


@pytest.mark.parametrize(
    ("given", "event", "code"),
    [
        ({"scope": "workspace"}, "memory.policy.denied", "workspace_read_only"),
        ({"scope": "user", "type": "runbook"}, "memory.policy.denied", "type_not_allowed"),
        ({"path": "No Path"}, "memory.write.blocked", "path_invalid"),
        ({"evidence_summary": ""}, "memory.write.blocked", "evidence_missing"),
    ],
)
async def test_a_refusal_is_an_answer_with_its_event(desk: Desk, given: dict[str, Any], event: str, code: str) -> None:
    refused = await remember(desk, **{"path": "notes/refused", "content": "x", **given})
    assert refused.output["code"] == code
    assert (await refused.events())[event]["code"] == code and await refused.usage() == []


async def test_a_patch_waits_for_a_person_and_a_stale_one_is_a_conflict(desk: Desk, library: Library) -> None:
    made = await library.write("prefs/tone", "Answer briefly")
    patch: dict[str, Any] = {
        "document_id": made.ref.document_id,
        "edits": [{"find": "briefly", "replace": "at length"}],
    }
    address = await desk.plan(("memory_patch", {**patch, "expected_sha256": made.sha256}))
    await desk.open(address, "t1.0")
    assert (await desk.run_tool(address)).state is CallState.DENIED
    assert (await library.read(made.ref.document_id)).content == "Answer briefly"
    groundless = await call(desk, "memory_patch", expected_sha256=made.sha256, **patch)
    assert groundless.output["code"] == "evidence_missing"
    given: dict[str, Any] = {**patch, "evidence_summary": "the user asked for it"}
    done = await call(desk, "memory_patch", expected_sha256=made.sha256, **given)
    now = await library.read(made.ref.document_id)
    assert (now.content, now.ref.trust.value, done.output["number"]) == ("Answer at length", "agent_draft", 2)
    stale = await call(desk, "memory_patch", expected_sha256=made.sha256, **given)
    assert stale.output["code"] == "memory_conflict" and stale.output["details"]["sha256"] == now.sha256
    assert (await stale.events())["memory.write.blocked"]["code"] == "memory_conflict"


async def test_a_proposal_leaves_a_pending_review_and_nothing_shared(desk: Desk) -> None:
    kept = await remember(desk, "notes/dingo", "dingo deploys are on Mondays", scope="conversation")
    proposed = await call(
        desk,
        "memory_propose_promotion",
        _in=kept.address.conversation_id,
        document_id=kept.output["document_id"],
        store="workspace_conventions",
        path="dingo.md",
        risk="low",
        evidence_summary="seen three times",
    )
    assert proposed.output["status"] == "pending"
    assert (await proposed.events())["memory.promotion.proposed"]["promotion_id"] == proposed.output["promotion_id"]
    assert await proposed.usage() == [("proposed", kept.output["version_id"])]
    (row,) = await desk.rows("SELECT * FROM memory_promotions WHERE id = $1", proposed.output["promotion_id"])
    assert (row["status"], row["risk"], row["by_agent"], row["call_id"]) == ("pending", "low", True, "t1.0")
    assert await desk.value("SELECT count(*) FROM memory_documents WHERE path = 'dingo.md'") == 0


async def test_a_crash_before_the_commit_leaves_neither_document_nor_event(desk: Desk, monkeypatch: Any) -> None:
    address = await desk.plan(
        ("memory_remember", {"path": "notes/crash", "title": "t", "content": "c", "evidence_summary": "e"})
    )

    async def dies(*_: Any, **__: Any) -> bool:
        raise ConnectionResetError("the worker went away")

    with monkeypatch.context() as patch:
        patch.setattr(tool_calls, "settle", dies)
        with pytest.raises(ApplicationError):
            await desk.run_tool(address)
    library = Library(desk.db, desk.people)
    assert await library.found("crash", conversation_id=address.conversation_id) == []
    assert "memory.write.created" not in await desk.kinds(address.turn_id)
    assert (await desk.run_tool(address, attempt=2)).state is CallState.DONE
    assert await library.found("crash", conversation_id=address.conversation_id) == ["notes/crash"]
    assert (await desk.kinds(address.turn_id)).count("memory.write.created") == 1


async def test_the_operators_limits_hold_for_what_an_agent_writes(desk: Desk) -> None:
    narrow = MemoryLimits(document_bytes=60, write_bytes=40, evidence_required=False)
    small = replace(desk, deps=replace(desk.deps, memory=narrow))
    assert (await remember(small, "a", "short", evidence_summary="")).output["status"] == "written"
    large = (await remember(small, "b", "x y " * 9, evidence_summary="")).output
    assert [each["rule"] for each in large["warnings"]] == ["large"]
    too_large = (await remember(small, "c", "x y " * 20, evidence_summary="")).output
    assert (too_large["status"], too_large["code"]) == ("refused", "memory_unsafe")
    assert (await remember(desk, "d", "short", evidence_summary="")).output["code"] == "evidence_missing"


async def test_memory_that_is_switched_off_is_reached_by_no_tool(desk: Desk, library: Library) -> None:
    off = replace(desk, deps=replace(desk.deps, memory=MemoryLimits(enabled=False)))
    new = {"path": "e", "title": "e", "content": "e"}
    for tool, args in (("memory_search", {"query": "anything"}), ("memory_remember", new)):
        address = await off.plan((tool, args))
        outcome = await off.run_tool(address)
        assert outcome.state is CallState.FAILED
        await end(off, address)
