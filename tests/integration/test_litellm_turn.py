"""Whole turns whose model is reached through LiteLLM over real HTTP: provider double, workers, server and stores."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.contracts.events import RATE_LIMIT, TRANSIENT_ERROR
from perdure.contracts.ids import effect_key
from perdure.contracts.turns import TurnStatus
from perdure.contracts.values import digest_of
from perdure.core.calls.retries import PROVIDER_ERRORS
from tests.desk import publish_desk, until
from tests.doubles.desk import desk_agents
from tests.doubles.provider_steps import CONTEXT_OVERFLOW, Call, Fault, Step
from tests.integration.clerk import ASKED, CLERK, Clerk, clerk
from tests.integration.scribe import text_of

# Warnings inside LiteLLM must not become errors there: it would take them for a broken stream.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince211"),
]


SHIPPED = Path(__file__).parents[2] / "perdure" / "examples" / "filings" / "agents" / "rule_37.yaml"


async def test_a_text_reaches_the_reader_as_it_comes_and_is_the_turns_answer(talk: Clerk) -> None:
    address = await talk.begin(Step(text="Here is what I have found out.", token_seconds=0.2))
    sent = await talk.seen_by_reader(address)
    kinds = [event.kind for event in sent]
    pieces = [event for event in sent if event.kind == "token"]
    assert len(pieces) >= 3, "in pieces, and not as one"
    assert kinds.index("generation.start") < kinds.index("token") < kinds.index("generation.complete")
    row = await talk.served.until(address, TurnStatus.COMPLETED)
    assert row["answer"] == text_of(sent) == "Here is what I have found out."
    assert "reset" not in kinds
    assert len(talk.double.requests) == row["attempts"] == 1


async def test_reasoning_reaches_the_reader_live_and_is_no_part_of_the_answer(talk: Clerk) -> None:
    thinking = "The user wants me to look into something."
    address = await talk.begin(Step(thinking=thinking, text="Here it is.", token_seconds=0.2))
    sent = await talk.seen_by_reader(address)
    thoughts = [event for event in sent if event.kind == "thinking"]
    assert len(thoughts) >= 3 and "".join(str(event.data["text"]) for event in thoughts) == thinking
    assert all(event.id and event.data["call_id"] == "m1" for event in thoughts)
    kinds = [event.kind for event in sent]
    assert kinds.index("thinking") < kinds.index("token") < kinds.index("thinking.complete") < kinds.index("ttft")
    row = await talk.served.until(address, TurnStatus.COMPLETED)
    assert row["answer"] == text_of(sent) == "Here it is."
    thought = "SELECT (reply -> 'usage' ->> 'thinking_tokens')::int FROM model_calls WHERE turn_id = $1"
    assert await talk.served.desk.value(thought, address.turn_id) > 0


async def test_the_provider_gets_the_users_words_the_tools_the_key_and_the_credential(talk: Clerk) -> None:
    address, _ = await talk.ended(Step(text="yes"))
    (seen,) = talk.double.requests
    assert "please look into it" in seen.user_text
    assert {"look", "pay", "entity_resolve"} <= set(seen.tools)
    assert seen.idempotency_key == f"{address.turn_id}.m1"
    assert seen.authorized
    assert seen.body["temperature"] == 0.2 and "api_key_secret" not in json.dumps(seen.body)


async def test_the_usage_is_the_providers_and_its_price_the_tables(talk: Clerk) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 60}}
    address, row = await talk.ended(Step(text="yes", usage=usage))
    # 40 at 0.15, 60 cached at 0.075 and 5 at 0.60 dollars a million are 13.5 micro-dollars.
    assert (row["input_tokens"], row["output_tokens"], row["cached_tokens"], row["cost_microusd"]) == (100, 5, 60, 14)
    assert await talk.data(address, "token.usage") == [{"input_tokens": 100, "output_tokens": 5, "cached_tokens": 60}]


async def test_a_round_of_tools_is_told_to_the_provider_with_the_ids_that_it_gave(talk: Clerk) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 2}
    calls = (Call(name="look", arguments={"what": "x"}, id="call_a"), Call(name="book", arguments={}, id="call_b"))
    address, row = await talk.ended(
        Step(text="Let me see.", calls=calls, usage=usage), Step(text="It is booked.", usage=usage)
    )
    assert (row["status"], row["answer"]) == ("completed", "It is booked.")
    assert await talk.served.states(address) == {"t1.0": "done", "t1.1": "done"}
    assert talk.served.effects(address, "/book", "t1.1") == 1
    _, second = talk.double.requests
    told: Any = second.body["messages"]
    asked, *answers = told[-3:]
    assert [call["function"]["name"] for call in asked["tool_calls"]] == ["look", "book"]
    assert [call["id"] for call in asked["tool_calls"]] == [answer["tool_call_id"] for answer in answers]
    assert [json.loads(answer["content"])["done"] for answer in answers] == ["/look", "/book"]
    assert (row["input_tokens"], row["output_tokens"]) == (20, 4)
    assert [seen.idempotency_key for seen in talk.double.requests] == [
        f"{address.turn_id}.{id_}" for id_ in ("m1", "m2")
    ]


async def test_a_gated_call_waits_for_its_approval_and_runs_with_the_arguments_of_the_wire(talk: Clerk) -> None:
    address = await talk.begin(Step(calls=(Call(name="pay", arguments={"amount": 7}),)), Step(text="paid"))
    await talk.served.until(address, TurnStatus.AWAITING_APPROVAL)
    assert len(talk.double.requests) == 1
    frozen = await talk.served.desk.value("SELECT args FROM approvals WHERE turn_id = $1", address.turn_id)
    assert frozen["amount"] == 7
    await talk.served.decide(address)
    row = await talk.served.until(address, TurnStatus.COMPLETED)
    assert (row["answer"], row["attempts"]) == ("paid", 2)
    assert talk.served.effects(address, "/pay") == 1
    assert talk.served.desk.world.requests[effect_key(address.turn_id, "t1.0")] == 1


async def test_arguments_that_do_not_fit_are_told_to_the_model_and_never_to_a_person(talk: Clerk) -> None:
    wrong = Step(calls=(Call(name="pay", arguments={"amount": "a lot"}),))
    address, row = await talk.ended(wrong, Step(text="I cannot do that."))
    assert (row["status"], row["answer"]) == ("completed", "I cannot do that.")
    assert await talk.served.states(address) == {"t1.0": "failed"}
    told: Any = talk.double.requests[1].body["messages"]
    assert "amount" in told[-1]["content"] and told[-1]["role"] == "tool"
    assert not await talk.served.desk.rows("SELECT id FROM approvals WHERE turn_id = $1", address.turn_id)


async def test_a_rate_limit_is_waited_for_as_long_as_it_says_and_is_in_the_events(talk: Clerk) -> None:
    address, row = await talk.ended(Step(status=429, retry_after="2"), Step(text="now"))
    assert (row["status"], row["answer"], row["attempts"]) == ("completed", "now", 2)
    first, second = talk.double.requests
    assert second.received_at - first.received_at >= 2
    assert first.idempotency_key == second.idempotency_key
    assert await talk.data(address, RATE_LIMIT) == [
        {"code": "model_rate_limited", "retry_in": 2.0, "attempt": 1, "max_retries": PROVIDER_ERRORS - 1}
    ]
    assert await talk.data(address, TRANSIENT_ERROR) == []
    assert [event["attempt"] for event in await talk.data(address, "generation.start")] == [1, 2]


async def test_a_conversation_that_is_too_long_is_tried_once_more_with_half_of_it(talk: Clerk) -> None:
    first, _ = await talk.ended(Step(text="A long story. " * 200))
    talk.double.script(CONTEXT_OVERFLOW, Step(text="shorter"))
    address = await talk.served.begin(ASKED, agent_id=CLERK, conversation_id=first.conversation_id)
    row = await talk.served.until(address, TurnStatus.COMPLETED, TurnStatus.FAILED)
    assert (row["status"], row["answer"], row["attempts"]) == ("completed", "shorter", 2)
    whole, half = (str(request.body["messages"]) for request in talk.double.requests[-2:])
    assert "A long story." in whole and "A long story." not in half
    assert [told["code"] for told in await talk.data(address, TRANSIENT_ERROR)] == ["context_overflow"]
    assert len(await talk.served.transcript(first)) == 1, "what is stored stays whole"


async def test_a_conversation_that_stays_too_long_is_told_so(talk: Clerk) -> None:
    _, row = await talk.ended(CONTEXT_OVERFLOW.model_copy(update={"times": None}))
    assert (row["status"], row["problem"]["code"], row["attempts"]) == ("failed", "context_overflow", 2)


async def test_a_reset_in_the_middle_of_a_text_leaves_one_clean_text_for_everybody(talk: Clerk) -> None:
    address = await talk.begin(
        Step(text="One two three four ", fault=Fault.RESET, token_seconds=0.2),
        Step(text="One two three four five.", token_seconds=0.2),
    )
    sent = await talk.seen_by_reader(address)
    row = await talk.served.until(address, TurnStatus.COMPLETED)
    assert row["answer"] == text_of(sent) == "One two three four five."
    assert [event.kind for event in sent].count("reset") == 1, "the reader had heard the half, and forgets it"
    assert await talk.served.transcript(address) == [("assistant", "One two three four five.")]
    assert [row["content"] for row in await talk.said(address)] == ["One two three four five."]
    assert [seen.outcome for seen in talk.double.requests] == ["reset", "answered"]
    assert row["attempts"] == 2
    (broken,) = await talk.data(address, TRANSIENT_ERROR)
    assert broken["code"] == "model_unavailable"
    settled = await talk.data(address, "token.usage")
    assert row["output_tokens"] > settled[0]["output_tokens"], "what broke off had been begun, and is counted too"


async def test_garbage_without_end_fails_the_turn_with_a_code_and_none_of_the_garbage(talk: Clerk) -> None:
    address, row = await talk.ended(Step(text="Half an ", fault=Fault.GARBAGE, times=None))
    assert (row["status"], row["problem"]["code"]) == ("failed", "model_unavailable")
    assert row["attempts"] == PROVIDER_ERRORS
    assert len(await talk.data(address, TRANSIENT_ERROR)) == PROVIDER_ERRORS - 1
    assert "<<<<<" not in json.dumps(row["problem"])
    kept = await talk.said(address)
    assert [(row["content"], row["partial"]) for row in kept] == [("Half an ", True)], "once, and marked"
    history = (await talk.served.history(address)).to_json()
    assert "<<<<<" not in history and "sk-of-the-test" not in history


async def test_what_no_wait_mends_is_asked_once_and_the_conversation_goes_on(talk: Clerk) -> None:
    address, row = await talk.ended(Step(status=401, times=None))
    assert (row["status"], row["problem"]["code"], row["attempts"]) == ("failed", "model_auth", 1)
    assert "told to say" not in row["problem"]["message"], "the provider's own words may quote the payload"
    talk.double.script(Step(text="I am back."))
    again = await talk.served.begin(ASKED, agent_id=CLERK, conversation_id=address.conversation_id)
    assert (await talk.served.until(again, TurnStatus.COMPLETED))["answer"] == "I am back."
    told: Any = talk.double.requests[-1].body["messages"]
    assert [message["role"] for message in told] == ["system", "user", "user"]


async def test_a_shipped_agents_second_model_answers_where_its_first_one_is_not_there(talk: Clerk) -> None:
    second = yaml.safe_load(SHIPPED.read_text())["fallback_model"]
    own = clerk(talk.double.api_base)
    changed = {"id": "clerk_of_two", "model": "openai/gpt-4o", "fallback_model": second}
    definition = own.definition.model_copy(update=changed)
    two = own.model_copy(update={"definition": definition, "version": digest_of(definition.model_dump(mode="json"))})
    await publish_desk(talk.served.desk.owner_url, [*desk_agents()[0], ("desk", own), ("desk", two)])
    usage = {"prompt_tokens": 100, "completion_tokens": 5}
    talk.double.script(Step(status=404), Step(text="Here it is.", usage=usage))
    address = await talk.served.begin(ASKED, agent_id="clerk_of_two")
    row = await talk.served.until(address, TurnStatus.COMPLETED)
    assert [seen.model for seen in talk.double.requests] == ["gpt-4o", "gpt-4o-mini"]
    # By the second model's price: 100 at 0.15 and 5 at 0.60 dollars a million.
    assert (row["answer"], row["input_tokens"], row["cost_microusd"]) == ("Here it is.", 100, 18)
    (told,) = await talk.data(address, TRANSIENT_ERROR)
    assert (told["code"], told["fallback_model"]) == ("model_not_found", second)


async def test_a_stop_ends_the_request_at_the_provider_and_keeps_what_was_said(talk: Clerk) -> None:
    address = await talk.begin(Step(text="I was about to ", fault=Fault.HANG))
    assert await talk.first_words(address)
    await talk.served.stop(address)
    await talk.served.until(address, TurnStatus.STOPPED)
    await until(lambda: talk.double.requests[0].outcome == "client_gone")
    assert await talk.served.transcript(address) == [("assistant", "I was about to ")]
    assert len(talk.double.requests) == 1
