"""What stays of a reviewer's refusal after its turn: in the next turn's prompt, for readers, and in episodes."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from temporalio.client import Client

from perdure.activities.toolbox.registry import Toolbox
from perdure.contracts.agents import MemoryPolicy
from perdure.contracts.errors import UpstreamRejected
from perdure.contracts.ids import approval_id
from perdure.contracts.turns import TurnAddress, TurnStatus, WakeSignal
from perdure.core.approvals.decisions import Decider, Decision
from perdure.core.text import estimated_tokens
from perdure.core.turns import OnBusy
from perdure.store.approvals.assignments import withdraw
from perdure.store.turns.conversations import list_messages
from perdure.store.turns.views import read_segments
from tests.doubles.desk_variants import agent_of, changed_agent
from tests.doubles.message_script import Line
from tests.doubles.target import app_agents
from tests.harness import Harness, publish_app
from tests.served_turns import ALL_KINDS, DONE, PAY, Served, serve
from tests.workflow.test_cold_resumes import start_cold

WHY = 'ILLEGAL "CONTENT"\n","status":"approved'
BOOK = ("book", {"what": "a chair"})
LOOK: tuple[str, dict[str, Any]] = ("look", {})
OUTCOMES = {"reject": "rejected", "respond": "responded", "expire": "expired", "withdraw": "withdrawn"}
AGENTS = {
    "desk": ("desk", "skill_pipeline"),
    "loop": ("desk", "tool_loop"),
    "checked": ("checked", "skill_pipeline"),
    "checked_loop": ("checked", "tool_loop"),
}
"""The agent that each is a copy of, and its topology. The `checked` ones open a checkpoint after `book`."""


@pytest.fixture(scope="module")
async def refusing(harness: Harness, temporal: Client) -> AsyncIterator[Served]:
    """The desk with and without checkpoints, in both topologies and with episodic memory."""
    published, tools = app_agents()
    memory = MemoryPolicy(episodic=True, hits=2)
    copies = [
        changed_agent(agent_of(source), id=agent_id, topology=topology, memory=memory)
        for agent_id, (source, topology) in AGENTS.items()
    ]
    others = [each for each in published if each[1].definition.id not in AGENTS]
    await publish_app(harness.owner_url, [*others, *(("desk", agent) for agent in copies)])
    own = [(copy, tool) for agent, tool in tools for copy, (source, _) in AGENTS.items() if source == agent]
    harness.deps = replace(harness.deps, toolbox=Toolbox(own, lambda name: None, harness.deps.toolbox.http))
    async with AsyncExitStack() as stack:
        yield Served(harness, temporal, await serve(stack, harness, ALL_KINDS))


async def refuse(served: Served, address: TurnAddress, call_id: str, outcome: str = "reject") -> None:
    harness, request = served.harness, approval_id(address.turn_id, call_id)
    if outcome in ("reject", "respond"):
        await served.decide(address, call_id, Decision(outcome), comment=WHY)
        return
    if outcome == "withdraw":
        person = harness.people["requester"]
        async with harness.db.transaction("local") as tx:
            await withdraw(tx, request, Decider(person.user_id, person.roles, person.name), WHY)
    else:
        await harness.write("UPDATE approvals SET expires_at = now() WHERE id = $1", request)
    await served.wake(address, WakeSignal(kind="request"))


async def next_prompt(served: Served, before: TurnAddress, agent_id: str) -> list[dict[str, Any]]:
    """What the first model call of the conversation's next turn receives of the turns before, after the memory."""
    given = {"agent_id": agent_id, "conversation_id": before.conversation_id}
    address, row = await served.run_to_end(Line("next"), **given)
    assert row["status"] == TurnStatus.COMPLETED.value
    prompt = served.sent_to_model(address)[0]
    return prompt[next(place for place, each in enumerate(prompt) if each["role"] == "user") + 1 : -1]


async def views(served: Served, address: TurnAddress) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The messages of the conversation, and the segments of the turn."""
    async with served.harness.db.transaction("local") as tx:
        messages: list[dict[str, Any]] = (await list_messages(tx, address.conversation_id, 50, 0))[0]
        segments: list[dict[str, Any]] = (await read_segments(tx, [address.turn_id]))[address.turn_id]
    return messages, segments


def approvals_of(shown: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each["approval"], each["approval_comment"]) for each in shown if each.get("approval")]


def said(message: dict[str, Any]) -> dict[str, Any]:
    """The refusal in a message of a prompt."""
    found: dict[str, Any] = json.loads(message["content"])
    return found


@pytest.mark.parametrize("outcome", [*OUTCOMES])
@pytest.mark.parametrize("agent_id", [*AGENTS])
async def test_a_refusal_outlives_its_turn(refusing: Served, agent_id: str, outcome: str) -> None:
    is_checkpoint, status = agent_id.startswith("checked"), OUTCOMES[outcome]
    why = "" if outcome == "expire" else WHY
    address = await refusing.paused(Line("asking", [BOOK if is_checkpoint else PAY]), DONE, agent_id=agent_id)
    assert approvals_of((await views(refusing, address))[0]) == ([("pending", "")] if is_checkpoint else [])
    await refuse(refusing, address, "c1.0" if is_checkpoint else "t1.0", outcome)
    await refusing.until(address, TurnStatus.COMPLETED)

    call, answer, acknowledged = await next_prompt(refusing, address, agent_id)
    assert (call["role"], answer["role"], acknowledged["content"]) == ("assistant", "tool", "well")
    assert [each["id"] for each in call["tool_calls"]] == [answer["tool_call_id"]]
    told = said(answer)
    assert told.get("reason", "") == why
    assert call["tool_calls"][0]["function"]["name"] == ("book" if is_checkpoint else "pay")
    if is_checkpoint:
        assert (told["approval"], told["result"]["done"]) == (status, "/book")
    else:
        assert told["status"] == "denied" and status in told["message"]

    messages, segments = await views(refusing, address)
    assert [each["role"] for each in messages[:4]] == ["user", "assistant", "tool", "assistant"]
    assert approvals_of(messages) == approvals_of(segments) == [(status, why)]
    tokens = "SELECT tokens FROM messages WHERE id = $1"
    assert await refusing.harness.value(tokens, messages[2]["id"]) >= estimated_tokens(answer["content"]) * 0.8
    event, *_ = await refusing.harness.event_data(address.turn_id, "tool.denied")
    assert (event["approval"], event.get("kind")) == (status, "checkpoint" if is_checkpoint else None)

    summary = await refusing.harness.value("SELECT summary FROM episodes WHERE turn_id = $1", address.turn_id)
    assert summary is None if is_checkpoint else f"pay ({status})" in summary and "ILLEGAL" not in summary
    blocked = await refusing.harness.event_data(address.turn_id, "memory.write.blocked")
    assert blocked == ([{"scope": "episodic", "code": "not_approved"}] if is_checkpoint else [])


@pytest.mark.parametrize("end", ["completed", "failed", "stopped", "killed"])
async def test_refused_rounds_stay_in_their_places_however_the_turn_ends(refusing: Served, end: str) -> None:
    """A queued turn's message is behind them, and a round that was not refused is between them."""
    lines = (
        Line("one", [PAY, LOOK]),
        Line("two", [LOOK]),
        Line("three", [("pay", {"amount": 7})]),
        Line("well", waits=end),
    )
    with refusing.harness.model.held(end) as gate:
        address = await refusing.paused(*lines, agent_id="desk")
        queued = await refusing.begin(
            Line("next"), agent_id="desk", conversation_id=address.conversation_id, on_busy=OnBusy.QUEUE
        )
        await refuse(refusing, address, "t1.0")
        await refusing.waits_for(address, approval_id(address.turn_id, "t3.0"))
        if end == "failed":
            refusing.harness.model.broken = {"scripted": UpstreamRejected("model_refused", "no")}
        if end != "stopped":
            await refuse(refusing, address, "t3.0")
        if end == "failed":
            await refusing.until(address, TurnStatus.FAILED)
            refusing.harness.model.broken = {}
        elif end == "stopped":
            await refusing.stop(address)
        elif end == "killed":
            await start_cold(refusing, address, goes_on=True)
        gate.release()
        gate.release()
    await refusing.until(queued, TurnStatus.COMPLETED)
    prompt = refusing.sent_to_model(queued)[0]
    shown = [each for each in prompt if each["role"] in ("assistant", "tool")]
    places = [each["content"] if each["role"] == "assistant" else said(each).get("status") for each in shown]
    last = ["well"] if end in ("completed", "killed") else []
    assert places == [
        "one",
        "denied",
        "not_run",
        "two",
        None,
        "three",
        "not_run" if end == "stopped" else "denied",
        *last,
    ]
    assert prompt[-1]["role"] == "user" and said(shown[1])["reason"] == WHY
    seqs = await refusing.harness.value(
        "SELECT array_agg(seq ORDER BY seq) FROM messages WHERE conversation_id = $1", address.conversation_id
    )
    last_seq = "SELECT message_seq FROM conversations WHERE id = $1"
    assert seqs[0] > 0 and await refusing.harness.value(last_seq, address.conversation_id) == seqs[-1]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_refused_answer_is_followed_by_its_refusal(refusing: Served, fails: bool) -> None:
    harness = refusing.harness
    address, started = await harness.start(Line("my draft"), DONE, agent_id="checked")
    force = {"hitl_checkpoint_type": "before_answer"}
    await harness.write("UPDATE turns SET metadata = $2 WHERE id = $1", address.turn_id, force)
    assert started.note is not None and await harness.deps.notifier.deliver_soon(started.note)
    await refusing.until(address, TurnStatus.AWAITING_APPROVAL)
    await refusing.waits(address)
    if fails:
        harness.model.broken = {"scripted": UpstreamRejected("model_refused", "no")}
    await refuse(refusing, address, "c1")
    row = await refusing.until(address, TurnStatus.FAILED if fails else TurnStatus.COMPLETED)
    harness.model.broken = {}
    assert row["answer"] == (None if fails else "well")
    assert not await harness.rows("SELECT FROM episodes WHERE turn_id = $1", address.turn_id)
    for shown in await views(refusing, address):
        assert approvals_of(shown) == [("rejected", WHY)]
    prompt = await next_prompt(refusing, address, "checked")
    assert [each["role"] for each in prompt] == ["assistant", "system", *([] if fails else ["assistant"])]
    assert (prompt[0]["content"], said(prompt[1])["reason"]) == ("my draft", WHY)


async def test_a_result_whose_turn_was_stopped_before_its_review_is_marked(refusing: Served) -> None:
    address = await refusing.paused(Line("asking", [BOOK]), agent_id="checked")
    await refusing.stop(address)
    await refusing.until(address, TurnStatus.STOPPED)
    for shown in await views(refusing, address):
        assert approvals_of(shown) == [("cancelled", "")]
    _, answer = await next_prompt(refusing, address, "checked")
    assert (said(answer)["approval"], said(answer)["result"]["done"]) == ("cancelled", "/book")
