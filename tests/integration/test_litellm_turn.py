"""Whole turns whose model is reached through LiteLLM over real HTTP, also of one that means no good."""

import json
from typing import Any

import pytest

from perdure.contracts.events import RATE_LIMIT, TRANSIENT_ERROR
from perdure.contracts.turns import Limits, TurnStatus
from perdure.core.budgets import USUAL_ANSWER_TOKENS
from perdure.core.calls.retries import PROVIDER_ERRORS
from perdure.core.text import CHARACTERS_A_TOKEN
from tests.doubles.providers.client import UNWARNED
from tests.doubles.providers.script import Call, Fault, Step
from tests.integration.litellm_agent import ASKED, LITELLM_AGENT, LitellmAgent
from tests.integration.turn_writer import text_of

pytestmark = UNWARNED


async def test_text_and_reasoning_are_streamed_and_the_text_is_the_answer(agent: LitellmAgent) -> None:
    thinking, text = "The user wants me to look into something.", "Here is what I have found out."
    address = await agent.begin(Step(thinking=thinking, text=text, token_seconds=0.2))
    sent = await agent.seen_by_reader(address)
    kinds = [event.kind for event in sent]
    thoughts = [event for event in sent if event.kind == "thinking"]
    assert kinds.count("token") >= 3 and len(thoughts) >= 3, "in pieces, and not as one"
    assert "".join(str(event.data["text"]) for event in thoughts) == thinking
    assert all(event.id and event.data["call_id"] == "m1" for event in thoughts)
    order = ("generation.start", "thinking", "token", "thinking.complete", "ttft", "generation.complete")
    places = [kinds.index(kind) for kind in order]
    assert places == sorted(places) and "reset" not in kinds
    row = await agent.served.until(address, TurnStatus.COMPLETED)
    assert row["answer"] == text_of(sent) == text
    assert len(agent.double.requests) == row["attempts"] == 1
    thought = "SELECT (reply -> 'usage' ->> 'thinking_tokens')::int FROM model_calls WHERE turn_id = $1"
    assert await agent.served.harness.value(thought, address.turn_id) > 0


async def test_streamed_words_that_were_reasoning_are_voided_by_the_end_of_their_call(agent: LitellmAgent) -> None:
    thinking, text = "Two and two make four. ", "It is 4."
    address = await agent.begin(Step(text=f"{thinking}</think>\n\n{text}", token_seconds=0.2))
    sent = await agent.seen_by_reader(address)
    kinds = [event.kind for event in sent]
    assert kinds.index("token") < kinds.index("reset") < kinds.index("generation.complete")
    row = await agent.served.until(address, TurnStatus.COMPLETED)
    assert row["answer"] == text_of(sent) == text
    assert [event.data["text"] for event in sent if event.kind == "thinking.complete"] == [thinking]


async def test_a_round_of_tools_is_sent_to_the_provider_with_the_ids_that_it_gave(agent: LitellmAgent) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 60}}
    calls = (Call(name="look", arguments={"what": "x"}, id="call_a"), Call(name="book", arguments={}, id="call_b"))
    opening = Step(text="Let me see.", calls=calls, usage=usage)
    address, row = await agent.run_to_end(opening, Step(text="It is booked.", usage=usage))
    assert (row["status"], row["answer"]) == ("completed", "It is booked.")
    assert await agent.served.states(address) == {"t1.0": "done", "t1.1": "done"}
    assert agent.served.effects(address, "/book", "t1.1") == 1
    first, second = agent.double.requests
    assert [seen.idempotency_key for seen in (first, second)] == [f"{address.turn_id}.m1", f"{address.turn_id}.m2"]
    assert "please look into it" in first.user_text and {"look", "pay", "entity_resolve"} <= set(first.tools)
    assert first.authorized and first.body["temperature"] == 0.2 and "api_key_secret" not in json.dumps(first.body)
    told: Any = second.body["messages"]
    asked, *answers = told[-3:]
    assert [call["function"]["name"] for call in asked["tool_calls"]] == ["look", "book"]
    assert [call["id"] for call in asked["tool_calls"]] == ["call_a", "call_b"]
    assert [answer["tool_call_id"] for answer in answers] == ["call_a", "call_b"]
    assert [json.loads(answer["content"])["done"] for answer in answers] == ["/look", "/book"]
    # Each 40 at 0.15, 60 cached at 0.075 and 5 at 0.60 dollars a million: 13.5 micro-dollars.
    assert (row["input_tokens"], row["output_tokens"], row["cached_tokens"], row["cost_microusd"]) == (200, 10, 120, 28)
    counted = {"input_tokens": 100, "output_tokens": 5, "cached_tokens": 60}
    assert await agent.data(address, "token.usage") == [counted] * 2


async def test_a_rate_limit_is_waited_for_as_long_as_it_says_and_is_in_the_events(agent: LitellmAgent) -> None:
    address, row = await agent.run_to_end(Step(status=429, retry_after="2"), Step(text="now"))
    assert (row["status"], row["answer"], row["attempts"]) == ("completed", "now", 2)
    first, second = agent.double.requests
    assert second.received_at - first.received_at >= 2
    assert first.idempotency_key == second.idempotency_key
    told = {"code": "model_rate_limited", "retry_in": 2.0, "attempt": 1, "max_retries": PROVIDER_ERRORS - 1}
    assert await agent.data(address, RATE_LIMIT) == [told] and await agent.data(address, TRANSIENT_ERROR) == []
    assert [event["attempt"] for event in await agent.data(address, "generation.start")] == [1, 2]


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.GARBAGE])
async def test_an_unreadable_or_cut_answer_is_retried_and_its_text_is_void(agent: LitellmAgent, fault: Fault) -> None:
    address, row = await agent.run_to_end(Step(text="half an answer ", fault=fault), Step(text="whole"))
    assert (row["status"], row["answer"], row["attempts"]) == ("completed", "whole", 2)
    code = "model_unreadable" if fault is Fault.GARBAGE else "model_unavailable"
    assert [each["code"] for each in await agent.data(address, TRANSIENT_ERROR)] == [code]
    assert [each["content"] for each in await agent.assistant_messages(address)] == ["whole"]
    assert text_of(await agent.seen_by_reader(address)) == "whole"


async def test_an_endless_answer_is_cut_at_the_turns_limit_and_kept(agent: LitellmAgent) -> None:
    agent.double.script(Step(text="One two ", fault=Fault.ENDLESS))
    address = await agent.served.begin(ASKED, agent_id=LITELLM_AGENT, limits=Limits(max_tokens=2_000))
    sent = await agent.seen_by_reader(address)
    row = await agent.served.until(address, TurnStatus.LIMITED, TurnStatus.FAILED, seconds=40)
    assert (row["status"], row["problem"]["code"], row["attempts"]) == ("limited", "answer_over_budget", 1)
    ((said, partial),) = [(each["content"], each["partial"]) for each in await agent.assistant_messages(address)]
    most_tokens = 2_000 + USUAL_ANSWER_TOKENS
    assert partial and said.startswith("One two word0 ") and len(said) <= most_tokens * CHARACTERS_A_TOKEN
    assert [end.get("truncated") for end in await agent.data(address, "done")] == [True]
    assert text_of(sent) == said, "the reader holds what is stored"
    assert 0.8 * most_tokens < row["output_tokens"] <= most_tokens + 1_000, "what the provider said is counted, once"
    assert [data["code"] for data in await agent.data(address, "budget")] == ["answer_over_budget"]
    assert [seen.outcome for seen in agent.double.requests] == ["client_gone"], "it was ended, and not repeated"
    assert "sk-of-the-test" not in (await agent.served.history(address)).to_json()


async def test_calls_with_a_repeated_long_id_run_once_each_under_new_ids(agent: LitellmAgent) -> None:
    signed = "call_1__thought__" + "QUJD" * 1_000
    twice = tuple(Call(name="look", arguments={"what": what}, id=signed, index=at) for at, what in enumerate("ab"))
    address, row = await agent.run_to_end(Step(calls=twice), Step(calls=twice), Step(text="Seen."))
    assert (row["status"], row["answer"]) == ("completed", "Seen.")
    assert await agent.served.states(address) == {"t1.0": "done", "t1.1": "done", "t2.0": "done", "t2.1": "done"}
    told: Any = agent.double.requests[2].body["messages"]
    ids = [call["id"] for message in told for call in message.get("tool_calls") or ()]
    assert len(ids) == len(set(ids)) == 4, "a provider refuses a request that names a call twice"
    assert ids == [message["tool_call_id"] for message in told if message["role"] == "tool"]
    ids_kept = "SELECT provider_call_id FROM tool_calls WHERE turn_id = $1"
    kept = await agent.served.harness.rows(ids_kept, address.turn_id)
    assert signed in [row["provider_call_id"] for row in kept], "it is kept whole, and never shown"
    events = await agent.served.harness.rows("SELECT call_id, data FROM events WHERE turn_id = $1", address.turn_id)
    assert "__thought__" not in json.dumps([[event["call_id"], event["data"]] for event in events])
