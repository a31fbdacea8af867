"""Turns of the operations agent on the real server, over its real MCP server: the texts of api.md, end to end."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import yaml

from perdure.contracts.ids import approval_id, turn_workflow_id
from perdure.contracts.turns import TurnStatus
from perdure.contracts.values import digest_of
from perdure.core.approvals.decisions import Decision
from perdure.core.approvals.gates import RULE_WAIVED, WAIVABLE
from perdure.examples.ops.cluster.faults import Fault, Faults, Kind
from perdure.examples.ops.cluster.state import State
from perdure.store import agents
from perdure.store.agents import set_waiver
from perdure.store.database import Database, new_id
from tests.conftest import Urls
from tests.desk import publish_desk
from tests.integration.library import Library
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
        """What the cluster's file says."""
        return State(self.engine.home / "mcp" / "ops-cluster" / "cluster.json")

    def fail(self, fault: Fault) -> None:
        folder = self.engine.home / "mcp" / "ops-cluster"
        folder.mkdir(parents=True, exist_ok=True)
        Faults(folder / "faults.json").arm(fault)

    async def begin(self, text: str) -> str:
        started = await self.engine.begin(text, agent_id="ops", conversation_id=self.conversation_id)
        return started.turn_id

    async def restarted(self, turn_id: str) -> list[str]:
        """What this turn has restarted, in order, by the cluster's own record."""
        effects = self.state.effects("k8s_deployment_restart")
        rows = await self.engine.rows("SELECT key FROM tool_calls WHERE turn_id = $1", turn_id)
        keys = {row["key"] for row in rows}
        return [effect["args"]["name"] for effect in effects if effect["key"] in keys]

    async def calls(self, turn_id: str) -> list[tuple[str, str, str]]:
        """The turn's calls with tool and state, in order."""
        sql = "SELECT call_id, tool, state FROM tool_calls WHERE turn_id = $1 ORDER BY call_id"
        return [(row["call_id"], row["tool"], row["state"]) for row in await self.engine.rows(sql, turn_id)]

    async def settled(self, turn_id: str, call_id: str, state: str) -> None:
        """Until a call of the turn has this state."""
        for _ in range(400):
            if any(row[0] == call_id and row[2] == state for row in await self.calls(turn_id)):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{call_id} never came to {state}: {await self.calls(turn_id)}")


@pytest.fixture
async def ops(engine: Engine) -> Ops:
    return Ops(engine, await engine.conversation("ops"))


async def test_a_question_is_answered_by_a_tool_that_reads_and_nobody_is_asked(ops: Ops) -> None:
    turn_id = await ops.begin("Show pods in prod")
    row = await ops.engine.until(turn_id)
    assert (row["status"], row["problem"]) == ("completed", None)
    assert "prod" in row["answer"] and "web" in row["answer"]
    assert await ops.engine.nodes(turn_id) == ["entry", "memory_prepare", "model", "gate", "model", "final"]
    assert await ops.calls(turn_id) == [("t1.0", "cluster_k8s_pods_list", "done")]
    kinds = await ops.engine.kinds(turn_id)
    assert kinds.index("tools.pending") < kinds.index("tool.executing") < kinds.index("tool.result")
    assert kinds.count("ttft") == 1
    assert "tool.awaiting_approval" not in kinds


async def test_a_change_loads_the_tools_for_it_and_waits_for_its_approval(ops: Ops) -> None:
    turn_id = await ops.begin("Restart deployment web in prod")
    assert (await ops.engine.until(turn_id))["status"] == PAUSED.value
    assert await ops.engine.nodes(turn_id) == LOOP
    assert await ops.calls(turn_id) == [("t1.0", "load_toolset", "done"), ("t2.0", RESTART, "planned")]
    told = await ops.engine.rows(
        "SELECT kind, call_id, data FROM events WHERE turn_id = $1 AND kind LIKE 'tool%' ORDER BY seq", turn_id
    )
    assert [(row["kind"], row["call_id"]) for row in told] == [
        ("tool.result", "t1.0"),
        ("tools.pending", None),
        ("tool.awaiting_approval", "t2.0"),
    ]
    assert told[1]["data"]["calls"] == [{"call_id": "t2.0", "tool": RESTART, "requires_approval": True}]
    assert await ops.restarted(turn_id) == []
    await ops.engine.decide(approval_id(turn_id, "t2.0"), Decision.APPROVE)
    await ops.engine.until(turn_id, TurnStatus.COMPLETED)
    assert await ops.restarted(turn_id) == ["web"]
    kinds = await ops.engine.kinds(turn_id)
    assert kinds.count("tools.pending") == 1, "not told again on the way back (S2-35)"
    assert kinds.index("tool.approved") < kinds.index("tool.executing")


async def test_two_changes_have_two_approvals_and_each_is_made_once(ops: Ops) -> None:
    turn_id = await ops.begin("Restart web and api in prod")
    await ops.engine.until(turn_id, PAUSED)
    assert [row[1] for row in await ops.calls(turn_id)] == ["load_toolset", RESTART, RESTART]
    approvals = await ops.engine.rows("SELECT id, status FROM approvals WHERE turn_id = $1", turn_id)
    assert {str(row["id"]) for row in approvals} == {approval_id(turn_id, call) for call in ("t2.0", "t2.1")}
    await ops.engine.decide(approval_id(turn_id, "t2.1"), Decision.APPROVE)
    await ops.settled(turn_id, "t2.1", "done")
    assert await ops.restarted(turn_id) == ["api"]
    await ops.engine.until(turn_id, PAUSED)
    await ops.engine.decide(approval_id(turn_id, "t2.0"), Decision.APPROVE)
    row = await ops.engine.until(turn_id, TurnStatus.COMPLETED)
    assert await ops.restarted(turn_id) == ["api", "web"]
    assert row["attempts"] == 3, "three model calls: load, ask, tell"
    await assert_small(ops, turn_id)


async def assert_small(ops: Ops, turn_id: str) -> None:
    run_id: str | None = (await ops.engine.client.get_workflow_handle(turn_workflow_id(turn_id)).describe()).run_id
    while run_id:
        handle = ops.engine.client.get_workflow_handle(turn_workflow_id(turn_id), run_id=run_id)
        events = (await handle.fetch_history()).events
        assert sum(event.ByteSize() for event in events) < 256 * 1024
        calls = (event.activity_task_scheduled_event_attributes for event in events)
        assert max(call.ByteSize() for call in calls if call.activity_type.name in ("", "model.complete")) < 16 * 1024
        run_id = events[0].workflow_execution_started_event_attributes.continued_execution_run_id or None


async def test_a_refused_change_is_told_to_the_model_as_the_calls_result(ops: Ops) -> None:
    turn_id = await ops.begin("Restart deployment web in prod")
    await ops.engine.until(turn_id, PAUSED)
    await ops.engine.decide(approval_id(turn_id, "t2.0"), Decision.REJECT, comment="not during the sale")
    await ops.engine.until(turn_id, TurnStatus.COMPLETED)
    assert await ops.restarted(turn_id) == []
    assert (await ops.calls(turn_id))[1] == ("t2.0", RESTART, "denied")
    messages = await ops.engine.rows(
        "SELECT role, content FROM messages WHERE turn_id = $1 AND in_transcript ORDER BY seq", turn_id
    )
    assert [each["role"] for each in messages] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert "not during the sale" in messages[4]["content"]
    assert (await ops.engine.kinds(turn_id)).count("tool.denied") >= 1


async def test_a_later_turn_of_the_conversation_has_the_tools_that_were_loaded(ops: Ops) -> None:
    first = await ops.begin("Restart deployment web in prod")
    await ops.engine.until(first, PAUSED)
    await ops.engine.decide(approval_id(first, "t2.0"), Decision.APPROVE)
    await ops.engine.until(first, TurnStatus.COMPLETED)
    second = await ops.begin("Restart deployment api in prod")
    await ops.engine.until(second, PAUSED)
    assert await ops.calls(second) == [("t1.0", RESTART, "planned")], "nothing to load"
    memory = (await ops.engine.turn(second))["memory_text"] or ""
    assert "loaded_toolsets" not in memory, "it is the engine's own, and nothing that a model is told"
    await ops.engine.stop(second)
    await ops.engine.until(second, TurnStatus.STOPPED)


@pytest.mark.parametrize("kind", [Kind.DIE, pytest.param(Kind.HUGE, marks=pytest.mark.soak)], ids=str)
async def test_a_reading_tool_that_fails_is_a_result_and_the_turn_goes_on(ops: Ops, kind: Kind) -> None:
    ops.fail(Fault(kind, "k8s_pods_list", times=1))
    turn_id = await ops.begin("Show pods in prod")
    row = await ops.engine.until(turn_id, TurnStatus.COMPLETED)
    assert row["problem"] is None and row["answer"]


async def test_a_server_that_dies_after_the_effect_is_asked_again_with_the_same_key(ops: Ops) -> None:
    turn_id = await ops.begin("Restart deployment web in prod")
    await ops.engine.until(turn_id, PAUSED)
    ops.fail(Fault(Kind.DIE, "k8s_deployment_restart", when="after", times=1))
    await ops.engine.decide(approval_id(turn_id, "t2.0"), Decision.APPROVE)
    await ops.engine.until(turn_id, TurnStatus.COMPLETED)
    assert await ops.restarted(turn_id) == ["web"]


async def test_documents_that_come_near_are_put_before_the_turn_and_only_there(ops: Ops, db: Database) -> None:
    library = Library(db, ops.engine.people)
    path = f"pods-{ops.conversation_id[-6:]}"
    await library.write(path, "Pods in prod are shown by namespace; the web pods are the busy ones.", by="requester")
    first = await ops.begin("Show pods in prod")
    await ops.engine.until(first, TurnStatus.COMPLETED)
    row = await ops.engine.turn(first)
    assert "the busy ones" in row["memory_text"]
    told = await ops.engine.rows("SELECT data FROM events WHERE turn_id = $1 AND kind = 'memory.context.loaded'", first)
    assert path in [each["path"] for each in told[0]["data"]["documents"]]
    stored = await ops.engine.rows("SELECT content FROM messages WHERE turn_id = $1", first)
    assert not any("the busy ones" in each["content"] for each in stored), "nothing of it piles up (S2-18)"


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
async def tidier(ops: Ops, urls: Urls) -> AsyncIterator[Ops]:
    """The agent with a script that uses both memory tools that need an approval; nothing is waived afterwards."""
    async with ops.engine.deps.db.transaction("local") as tx:
        shipped = await agents.current_agent(tx, "ops")
    changed: dict[str, object] = {"script": yaml.safe_load(TIDY), "toolsets": {"memory": True}}
    definition = shipped.definition.model_copy(update=changed)
    more = {"definition": definition, "version": digest_of([shipped.version, TIDY])}
    await publish_desk(urls.owner, [("ops", shipped.model_copy(update=more))])
    yield ops
    await publish_desk(urls.owner, [("ops", shipped)])
    for tool in WAIVABLE:
        await waive(ops, tool, waived=False)


async def waive(ops: Ops, tool: str, *, waived: bool = True) -> None:
    """What an administrator does by PUT /v1/rules/tools."""
    async with ops.engine.deps.db.transaction("local") as tx:
        await set_waiver(tx, tool, waived=waived, user_id=ops.engine.people["admin"].user_id)


async def test_a_tenant_waives_the_approval_of_either_memory_tool_from_the_next_turn_on(
    tidier: Ops, db: Database
) -> None:
    patch, propose = WAIVABLE
    library, engine = Library(db, tidier.engine.people), tidier.engine

    async def tidy() -> str:
        made = await library.write(f"prefs-{new_id()[-8:]}", "Answer briefly", by="requester")
        return await tidier.begin(f"Tidy {made.ref.document_id} of {made.sha256}")

    async def states(turn_id: str) -> dict[str, str]:
        return {tool: state for _, tool, state in await tidier.calls(turn_id)}

    async def let_pass(turn_id: str) -> list[str]:
        sql = "SELECT data->>'tool' AS tool FROM events WHERE turn_id = $1 AND kind = 'hitl.rule_fire' ORDER BY seq"
        return [row["tool"] for row in await engine.rows(sql, turn_id)]

    before = await tidy()
    await engine.until(before, PAUSED)
    assert await states(before) == {patch: "planned", propose: "planned"}
    await waive(tidier, patch)
    await engine.decide(approval_id(before, "t1.1"), Decision.APPROVE)
    await tidier.settled(before, "t1.1", "done")
    assert (await states(before))[patch] == "planned", "a turn under way asks as it began"
    await engine.decide(approval_id(before, "t1.0"), Decision.REJECT, comment="no")
    await engine.until(before, TurnStatus.COMPLETED)
    assert await let_pass(before) == []

    one = await tidy()
    await engine.until(one, PAUSED)
    await tidier.settled(one, "t1.0", "done")
    assert await states(one) == {patch: "done", propose: "planned"}
    await engine.decide(approval_id(one, "t1.1"), Decision.REJECT, comment="no")
    await engine.until(one, TurnStatus.COMPLETED)
    assert await let_pass(one) == [patch]

    await waive(tidier, propose)
    both = await tidy()
    row = await engine.until(both)
    assert (row["status"], row["answer"], await states(both)) == (
        "completed",
        "Tidied.",
        {patch: "done", propose: "done"},
    )
    assert await let_pass(both) == [patch, propose]
    assert await engine.rows("SELECT id FROM approvals WHERE turn_id = $1", both) == []
    ran = await engine.rows("SELECT data FROM audit_trail WHERE turn_id = $1 AND kind = 'call.ran' ORDER BY id", both)
    assert {(each["data"]["tool"], each["data"]["rule"]) for each in ran} == {
        (patch, RULE_WAIVED), (propose, RULE_WAIVED)
    }  # fmt: skip
    await waive(tidier, patch, waived=False)
    again = await tidy()
    await engine.until(again, PAUSED)
    assert (await states(again))[patch] == "planned"
    await engine.stop(again)
    await engine.until(again, TurnStatus.STOPPED)
