"""Turns of bundled agents on the real server: operations over its real MCP server, and the care navigator."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import yaml

from perdure.contracts.ids import approval_id
from perdure.contracts.turns import TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.core.approvals.gates import EXEMPTIBLE_TOOLS, RULE_EXEMPTED, RULE_MUTATING
from perdure.core.turns import Caps, OnBusy
from perdure.examples.ops.cluster.state import State
from perdure.store import agents
from perdure.store.agents import set_exemption
from perdure.store.database import Database, new_id
from perdure.store.turns.start import StartedTurn
from tests.conftest import Urls
from tests.doubles.desk_variants import changed_agent
from tests.eventually import until
from tests.harness import publish_app
from tests.integration.library_writer import Library
from tests.workflow.conftest import Engine

PAUSED = TurnStatus.AWAITING_APPROVAL
RESTART = "cluster_k8s_deployment_restart"
LOOP = ["entry", "memory_prepare", "model", "gate", "model", "gate", "final"]


@dataclass(slots=True)
class Ops:
    engine: Engine
    conversation_id: str = ""

    @property
    def state(self) -> State:
        return State(self.engine.home / "mcp" / "ops-cluster" / "cluster.json")

    async def begin(self, text: str) -> str:
        return (await self.engine.begin(text, agent_id="ops", conversation_id=self.conversation_id)).turn_id

    async def restarted(self, turn_id: str) -> list[str]:
        effects = self.state.effects("k8s_deployment_restart")
        rows = await self.engine.rows("SELECT key FROM tool_calls WHERE turn_id = $1", turn_id)
        keys = {row["key"] for row in rows}
        return [effect["args"]["name"] for effect in effects if effect["key"] in keys]

    async def calls(self, turn_id: str) -> list[tuple[str, str, str]]:
        sql = "SELECT call_id, tool, state FROM tool_calls WHERE turn_id = $1 ORDER BY call_id"
        return [(row["call_id"], row["tool"], row["state"]) for row in await self.engine.rows(sql, turn_id)]

    async def done(self, turn_id: str, call_id: str) -> None:
        """Waits until the call is done."""
        is_done = "SELECT state = 'done' FROM tool_calls WHERE turn_id = $1 AND call_id = $2"
        await until(lambda: self.engine.value(is_done, turn_id, call_id))

    async def paused(self, text: str) -> str:
        turn_id = await self.begin(text)
        await self.engine.until(turn_id, PAUSED)
        return turn_id

    async def approve(self, turn_id: str, call_id: str = "t2.0") -> None:
        await self.engine.decide_and_wake(approval_id(turn_id, call_id), Decision.APPROVE)

    async def refuse(self, turn_id: str, call_id: str) -> None:
        """Decides the last request; the turn continues to its end."""
        await self.engine.decide_and_wake(approval_id(turn_id, call_id), Decision.REJECT, comment="no")
        await self.engine.until(turn_id, TurnStatus.COMPLETED)


@pytest.fixture
async def ops(engine: Engine) -> Ops:
    return Ops(engine, await engine.conversation("ops"))


async def test_a_change_loads_the_tools_for_it_and_waits_for_its_approval(ops: Ops) -> None:
    turn_id = await ops.paused("Restart deployment web in prod")
    assert await ops.engine.nodes(turn_id) == LOOP
    assert await ops.calls(turn_id) == [("t1.0", "load_toolset", "done"), ("t2.0", RESTART, "planned")]
    events = "SELECT kind, call_id, data FROM events WHERE turn_id = $1 AND kind LIKE 'tool%' ORDER BY seq"
    told = await ops.engine.rows(events, turn_id)
    assert [row["kind"] for row in told] == ["tool.result", "tools.pending", "tool.awaiting_approval"]
    assert [row["call_id"] for row in told] == ["t1.0", None, "t2.0"]
    assert told[1]["data"]["calls"] == [{"call_id": "t2.0", "tool": RESTART, "requires_approval": True}]
    (fired,) = await ops.engine.event_data(turn_id, "hitl.rule_fire")
    assert (fired["rule_id"], fired["tool"], fired["action"]) == (RULE_MUTATING, RESTART, "require_hitl")
    assert await ops.restarted(turn_id) == []
    await ops.approve(turn_id)
    await ops.engine.until(turn_id, TurnStatus.COMPLETED)
    assert await ops.restarted(turn_id) == ["web"]
    kinds = await ops.engine.kinds(turn_id)
    assert kinds.count("tools.pending") == 1, "not told again on the way back"
    assert kinds.index("tool.approved") < kinds.index("tool.executing")


async def test_a_later_turn_of_the_conversation_has_the_tools_that_were_loaded(ops: Ops) -> None:
    first = await ops.paused("Restart deployment web in prod")
    await ops.approve(first)
    await ops.engine.until(first, TurnStatus.COMPLETED)
    second = await ops.paused("Restart deployment api in prod")
    assert await ops.calls(second) == [("t1.0", RESTART, "planned")], "nothing to load"
    memory = (await ops.engine.turn(second))["memory_text"] or ""
    assert "loaded_toolsets" not in memory, "it is the engine's own, and nothing that a model is told"
    await ops.engine.stop(second)
    await ops.engine.until(second, TurnStatus.STOPPED)


TIDY = """
rules:
  - name: tidy
    when: '^Tidy (?P<document>\\S+) of (?P<sha>\\S+)'
    call:
      - tool: memory_patch
        args: {document_id: '{document}', expected_sha256: '{sha}', evidence_summary: seen,
               edits: [{find: briefly, replace: at length}]}
      - tool: memory_propose_promotion
        args: {document_id: '{document}', store: workspace_conventions, path: '{document}.md', risk: low,
               evidence_summary: seen}
  - {name: done, after: memory_propose_promotion, say: Tidied.}
  - {name: refused, note: '.', say: Not all of it.}
"""


@pytest.fixture
async def memory_ops(ops: Ops, urls: Urls) -> AsyncIterator[Ops]:
    """The agent with a script that uses both memory tools that need an approval; no exemption remains afterwards."""
    async with ops.engine.deps.db.transaction("local") as tx:
        shipped = await agents.current_agent(tx, "ops")
    changed = changed_agent(shipped, script=yaml.safe_load(TIDY), toolsets={"memory": True})
    await publish_app(urls.owner, [("ops", changed)])
    yield ops
    await publish_app(urls.owner, [("ops", shipped)])
    for tool in EXEMPTIBLE_TOOLS:
        await waive(ops, tool, waived=False)


async def waive(ops: Ops, tool: str, *, waived: bool = True) -> None:
    """Sets an exemption, as an administrator does by PUT /v1/rules/tools."""
    async with ops.engine.deps.db.transaction("local") as tx:
        await set_exemption(tx, tool, exempt=waived, user_id=ops.engine.people["admin"].user_id)


async def let_pass(ops: Ops, turn_id: str) -> list[object]:
    fires = await ops.engine.event_data(turn_id, "hitl.rule_fire")
    return [each["tool"] for each in fires if each["action"] == "allow"]


async def test_a_tenant_exempts_either_memory_tool_from_the_next_turn_on(memory_ops: Ops, db: Database) -> None:
    patch, propose = EXEMPTIBLE_TOOLS
    library, engine = Library(db, memory_ops.engine.people), memory_ops.engine

    async def tidy() -> str:
        made = await library.write(f"prefs-{new_id()[-8:]}", "Answer briefly", by="requester")
        turn_id = await memory_ops.begin(f"Tidy {made.ref.document_id} of {made.sha256}")
        await engine.until(turn_id)
        return turn_id

    async def states(turn_id: str) -> dict[str, str]:
        return {tool: state for _, tool, state in await memory_ops.calls(turn_id)}

    before = await tidy()
    assert await states(before) == {patch: "planned", propose: "planned"}
    await waive(memory_ops, patch)
    await memory_ops.approve(before, "t1.1")
    await memory_ops.done(before, "t1.1")
    assert (await states(before))[patch] == "planned", "a turn under way asks as it began"
    await memory_ops.refuse(before, "t1.0")
    assert await let_pass(memory_ops, before) == []
    await waive(memory_ops, propose)
    both = await tidy()
    assert (await engine.turn(both))["answer"] == "Tidied." and set((await states(both)).values()) == {"done"}
    assert await let_pass(memory_ops, both) == [patch, propose]
    ran = await engine.rows("SELECT data FROM audit_trail WHERE turn_id = $1 AND kind = 'call.ran' ORDER BY id", both)
    assert {(each["data"]["tool"], each["data"]["rule"]) for each in ran} == {
        (patch, RULE_EXEMPTED), (propose, RULE_EXEMPTED)
    }  # fmt: skip
    await waive(memory_ops, patch, waived=False)
    again = await tidy()
    await memory_ops.done(again, "t1.1")
    assert (await states(again), await let_pass(memory_ops, again)) == ({patch: "planned", propose: "done"}, [propose])
    await memory_ops.refuse(again, "t1.0")


AT_ONCE = ["ready", "stage", "stage", "generation.complete", "completed", "done"]
FIXED = "I am glad that you wrote this."
"""How the text of the navigator's page begins."""
BOOK = "Book p1 at Monday 11:00"


async def test_a_safety_keyword_is_answered_beside_a_pending_booking(engine: Engine) -> None:
    conversation_id = await engine.conversation("care_navigator")

    async def say(text: str, way: OnBusy = OnBusy.REJECT, caps: Caps | None = None) -> StartedTurn:
        where = {"agent_id": "care_navigator", "conversation_id": conversation_id}
        return await engine.begin(text, on_busy=way, caps=caps, **where)

    started = await say(BOOK)
    await engine.until(started.turn_id)
    half = await say("I want to kill", OnBusy.QUEUE)
    assert half.status is TurnStatus.QUEUED
    own = (("myself", OnBusy.QUEUE), ("I want to  d\u0456e", OnBusy.STEER), ("x" * 20_000 + " suicidal", OnBusy.REJECT))
    at_once = [await say(text, way, Caps(turns_a_user=0)) for text, way in own]
    for said in at_once:
        row = await engine.turn(said.turn_id)
        assert (said.status, row["status"], said.joined) == (TurnStatus.COMPLETED, "completed", False)
        assert row["answer"].startswith(FIXED)
        assert await engine.rows("SELECT 1 FROM model_calls WHERE turn_id = $1", said.turn_id) == []
        kinds = await engine.kinds(said.turn_id)
        assert [each for each in kinds if each != "conversation.title.generated"] == AT_ONCE
    assert (await engine.turn(started.turn_id))["status"] == TurnStatus.AWAITING_APPROVAL.value
    (approval,) = await engine.rows("SELECT id, status FROM approvals WHERE turn_id = $1", started.turn_id)
    assert approval["status"] == "pending", "a waiting approval is never lost by a message"
    await engine.decide_and_wake(str(approval["id"]), Decision.REJECT, comment="not now", reason_code="not_now")
    for turn_id in (started.turn_id, half.turn_id):
        await engine.until(turn_id, TurnStatus.COMPLETED)
    told = await engine.rows(
        "SELECT role, turn_id FROM messages WHERE conversation_id = $1 AND in_transcript ORDER BY seq", conversation_id
    )
    for said in at_once:
        assert [row["role"] for row in told if str(row["turn_id"]) == said.turn_id] == ["user", "assistant"]
