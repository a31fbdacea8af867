"""Whole turns of a model that means no good, over real HTTP: each ends, typed, bounded and within its budget."""

import json
from typing import Any

import pytest

from perdure.contracts.turns import Limits, TurnStatus
from perdure.core.budgets import USUAL_ANSWER_TOKENS
from perdure.core.text import CHARACTERS_A_TOKEN
from tests.doubles.provider_steps import Call, Fault, Step
from tests.integration.clerk import ASKED, CLERK, Clerk
from tests.integration.scribe import text_of

# Warnings inside LiteLLM must not become errors there: it would take them for a broken stream.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince211"),
]


async def test_words_without_end_are_broken_off_at_the_turns_limit_and_what_was_said_is_kept(talk: Clerk) -> None:
    talk.double.script(Step(text="One two ", fault=Fault.ENDLESS))
    address = await talk.served.begin(ASKED, agent_id=CLERK, limits=Limits(max_tokens=2_000))
    sent = await talk.seen_by_reader(address)
    row = await talk.served.until(address, TurnStatus.LIMITED, TurnStatus.FAILED, seconds=40)
    assert (row["status"], row["problem"]["code"], row["attempts"]) == ("limited", "answer_over_budget", 1)
    ((said, partial),) = [(each["content"], each["partial"]) for each in await talk.said(address)]
    most_tokens = 2_000 + USUAL_ANSWER_TOKENS
    assert partial and said.startswith("One two word0 ") and len(said) <= most_tokens * CHARACTERS_A_TOKEN
    assert text_of(sent) == said, "the reader holds what is stored"
    assert 0.8 * most_tokens < row["output_tokens"] <= most_tokens + 1_000, "what the provider said is counted, once"
    assert [data["code"] for data in await talk.data(address, "budget")] == ["answer_over_budget"]
    assert [seen.outcome for seen in talk.double.requests] == ["client_gone"], "the request was ended, and not repeated"


async def test_five_megabytes_of_arguments_are_a_typed_end_and_no_call(talk: Clerk) -> None:
    talk.double.script(Step(text="I pay. ", fault=Fault.HUGE_ARGUMENTS))
    address = await talk.served.begin(ASKED, agent_id=CLERK)
    row = await talk.served.until(address, TurnStatus.LIMITED, TurnStatus.FAILED, seconds=40)
    assert (row["status"], row["problem"]["code"], row["attempts"]) == ("limited", "answer_over_budget", 1)
    assert row["output_tokens"] > Limits().max_tokens, "they are paid for all the same"
    assert await talk.served.states(address) == {}
    assert len((await talk.served.history(address)).to_json()) < 256 * 1024


async def test_a_model_that_asks_for_tools_that_nobody_has_ends_at_the_limit_of_rounds(talk: Clerk) -> None:
    calls = (Call(name="rm_rf", arguments={"path": "/"}), Call(name="look\n; drop", arguments={}))
    talk.double.script(Step(calls=calls, times=None))
    address = await talk.served.begin(ASKED, agent_id=CLERK, limits=Limits(max_iterations=3))
    row = await talk.served.until(address, TurnStatus.LIMITED, TurnStatus.FAILED, TurnStatus.COMPLETED, seconds=40)
    assert row["status"] == "limited" and len(talk.double.requests) <= 5
    assert set((await talk.served.states(address)).values()) == {"failed"}
    told: Any = talk.double.requests[1].body["messages"]
    assert [message["role"] for message in told[-2:]] == ["tool", "tool"], "each call has its answer"
    assert not await talk.served.desk.rows("SELECT id FROM approvals WHERE turn_id = $1", address.turn_id)


async def test_calls_that_repeat_their_ids_are_each_run_once_under_ids_of_ours(talk: Clerk) -> None:
    twice = tuple(Call(name="look", arguments={"what": what}, id="call_same", index=at) for at, what in enumerate("ab"))
    address, row = await talk.ended(Step(calls=twice), Step(calls=twice), Step(text="Seen."))
    assert (row["status"], row["answer"]) == ("completed", "Seen.")
    assert await talk.served.states(address) == {"t1.0": "done", "t1.1": "done", "t2.0": "done", "t2.1": "done"}
    told: Any = talk.double.requests[2].body["messages"]
    ids = [call["id"] for message in told for call in message.get("tool_calls") or ()]
    assert len(ids) == len(set(ids)) == 4, "a provider refuses a request that names a call twice"
    assert ids == [message["tool_call_id"] for message in told if message["role"] == "tool"]


async def test_an_id_of_kilobytes_is_kept_whole_and_shown_to_nobody(talk: Clerk) -> None:
    signed = "call_1__thought__" + "QUJD" * 1_000
    address, row = await talk.ended(
        Step(calls=(Call(name="look", arguments={"what": "x"}, id=signed),)), Step(text="Seen.")
    )
    assert row["status"] == "completed"
    kept = await talk.served.desk.value("SELECT provider_call_id FROM tool_calls WHERE turn_id = $1", address.turn_id)
    assert kept == signed
    events = await talk.served.desk.rows("SELECT call_id, data FROM events WHERE turn_id = $1", address.turn_id)
    assert "__thought__" not in json.dumps([[event["call_id"], event["data"]] for event in events])
