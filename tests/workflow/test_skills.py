"""Skills of a conversation: what is loaded, for how long, and how a model loads one."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from temporalio.client import Client

from perdure.contracts.agents import SkillScope
from perdure.contracts.turns import Kind, TurnStatus
from perdure.core.events.stream import FIRST_ENTRY
from perdure.local import DataParts
from tests.conftest import Urls
from tests.doubles.desk_variants import as_desk, published
from tests.doubles.message_script import Line
from tests.eventually import until
from tests.harness import Harness
from tests.served_turns import ALL_KINDS, DONE, PAY, Served, apart, serve
from tests.worker_process import worker_process
from tests.workflow.test_cold_resumes import start_cold

SELECTS = Line("I look it up. SKILL_SELECT:parcels")
TEXT = "=== Skill Activated: Parcels ==="


def copies(messages: Sequence[Any], text: str = TEXT) -> int:
    return sum(str(message["content"]).count(text) for message in messages)


async def test_a_skill_stays_loaded_for_the_conversation_with_one_copy_of_its_text(served: Served) -> None:
    first, _ = await served.run_to_end(SELECTS, DONE, agent_id="checked")
    sizes = []
    for _turn in range(20):
        address, _row = await served.run_to_end(DONE, agent_id="checked", conversation_id=first.conversation_id)
        (sent,) = served.sent_to_model(address)
        sizes.append(copies(sent))
    assert sizes == [1] * 20
    marks = await served.harness.rows("SELECT DISTINCT turn_id::text FROM injection_ledger WHERE conversation_id = $1",
        first.conversation_id)  # fmt: skip
    assert [mark["turn_id"] for mark in marks] == [first.turn_id], "a turn that starts with a skill does not load it"


async def test_a_turn_that_starts_again_begins_with_the_same_skills(served: Served) -> None:
    first, _ = await served.run_to_end(SELECTS, DONE, agent_id="checked")
    address = await served.paused(Line("", [PAY]), DONE, agent_id="checked", conversation_id=first.conversation_id)
    await start_cold(served, address)
    await served.decide(address)
    await served.until(address, TurnStatus.COMPLETED)
    before, after = served.sent_to_model(address)
    assert before == after[: len(before)] and copies(after) == 1


async def test_a_skill_is_loaded_again_if_it_belongs_to_its_turn(served: Served) -> None:
    async with published(served.harness, as_desk(skill_scope=SkillScope.TURN)):
        first, _ = await served.run_to_end(Line("SKILL_SELECT:plan"), DONE)
        address, _ = await served.run_to_end(DONE, conversation_id=first.conversation_id)
    (sent,) = served.sent_to_model(address)
    assert copies(sent, "=== Skill Activated") == 0


async def test_no_reader_sees_a_marker_and_the_skill_is_loaded(served: Served) -> None:
    lines = Line("I look it up. [skill_select : Parcels] One moment."), Line("SKILL_SELECT:weights"), Line("Ready.")
    address, row = await served.run_to_end(*lines, agent_id="checked")
    assert await served.transcript(address) == [("assistant", "I look it up. One moment."), ("assistant", "Ready.")]
    assert row["answer"] == "Ready."
    live = await served.harness.deps.live.tokens("local", address.conversation_id, "0", FIRST_ENTRY)
    assert "".join(each.text for each in live.entries) == "I look it up. One moment.Ready."
    assert [copies(sent) for sent in served.sent_to_model(address)] == [0, 1, 1]


async def test_an_agent_without_skills_has_no_markers(served: Served) -> None:
    text = "Set `skill_select: true`.\nSKILL_SELECT:parcels"
    async with published(served.harness, as_desk(skills=())):
        address, row = await served.run_to_end(Line(text))
    assert (row["answer"], await served.transcript(address)) == (text, [("assistant", text)])


@pytest.mark.parametrize("half", ["SKILL_SELECT:gone", "SKILL_SELECT:"])
async def test_a_turn_with_only_markers_asks_once_more_and_then_fails(served: Served, half: str) -> None:
    address, row = await served.run_to_end(Line(half), Line("SKILL_SELECT:gone"), agent_id="checked")
    assert (row["status"], row["problem"]["code"]) == (TurnStatus.FAILED, "model_empty_answer")
    assert (len(served.sent_to_model(address)), await served.transcript(address)) == (2, [])
    _, again = await served.run_to_end(DONE, agent_id="checked", conversation_id=address.conversation_id)
    assert again["status"] == TurnStatus.COMPLETED


LOADS = Line("", [("load_skill", {"skill": "parcels"}), ("look", {"what": "a"})])


async def test_a_worker_that_is_killed_between_the_load_and_its_use_changes_nothing(
    harness: Harness, temporal: Client, urls: Urls, parts: DataParts
) -> None:
    served = apart(harness, temporal)
    at = served.harness
    marked = "SELECT skill_id FROM injection_ledger WHERE turn_id = $1 ORDER BY skill_id"
    async with AsyncExitStack() as stack:
        await serve(stack, at, tuple(kind for kind in ALL_KINDS if kind is not Kind.LLM))
        async with worker_process(Kind.LLM, urls, parts, at.routing.llm) as process:
            address = await served.begin(LOADS, Line("done", seconds=60.0), agent_id="checked")

            async def is_using() -> bool:
                calls = await at.rows("SELECT 1 FROM model_calls WHERE turn_id = $1", address.turn_id)
                return len(calls) == 2

            await until(is_using, seconds=60)
            process.kill()
        sooner = "UPDATE messages SET content = replace(content, '60.0', '0.0') WHERE turn_id = $1 AND role = 'user'"
        await at.write(sooner, address.turn_id)
        await serve(stack, at, (Kind.LLM,))
        assert (await served.until(address, TurnStatus.COMPLETED))["answer"] == "done"
        again, _ = await served.run_to_end(DONE, agent_id="checked", conversation_id=address.conversation_id)
    assert [copies(sent) for turn in (address, again) for sent in served.sent_to_model(turn)] == [1, 1]
    assert [row["skill_id"] for row in await at.rows(marked, address.turn_id)] == ["parcels", "weights"]
