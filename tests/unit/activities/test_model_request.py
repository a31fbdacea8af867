"""perdure/activities/model_request.py: the request has the form that the claimed model's provider accepts."""

import json
from typing import Any

import pytest
from pydantic import JsonValue
from structlog.testing import capture_logs

from perdure.activities.model_answer import plan_calls, with_model
from perdure.activities.model_request import request_of
from perdure.activities.providers.provider import DraftCall
from perdure.contracts.agents import PublishedAgent
from perdure.contracts.calls import ModelCall, ModelCallRequest, OutputAsk, OutputForm
from perdure.contracts.turns import TurnAddress
from perdure.core.agents.toolsets import LOAD_TOOLSET
from perdure.core.calls.ledger import Claim
from perdure.store.calls.model_calls import ModelClaim
from tests.doubles.message_script import MessageScriptModel, MessageScriptModels
from tests.doubles.providers.vendors import refusal_of
from tests.unit.apps.tool_contexts import card
from tests.unit.core.test_toolsets import SCHEMAS

ADDRESS = TurnAddress(tenant_id="t", conversation_id="c", turn_id="w")
ODD = (card(name="names", parameters=SCHEMAS["names"]), card(name="either", parameters=SCHEMAS["alternatives"]))
MANY = tuple(card(name=f"many_{number}", toolset="all", effect="read") for number in range(150))
CARDS = (*ODD, card(name="gone", parameters={"$ref": "#/none"}), *MANY)
AGENT = PublishedAgent.model_validate(
    {"definition": {"id": "a", "title": "A", "topology": "t", "model": "openai/m"}, "cards": CARDS, "version": "v"}
)


def call_of(**ask: Any) -> ModelCall:
    asked = ModelCallRequest(messages=(), **{"tools": tuple(each.name for each in CARDS), **ask})
    return ModelCall(address=ADDRESS, call_id="m1", agent_id="a", agent_version="v", ask=asked)


@pytest.mark.parametrize("ask", [
    {}, *({"output": OutputAsk(name="an answer", fits=SCHEMAS["names"], form=form)} for form in OutputForm),
])  # fmt: skip
def test_a_request_is_accepted_by_a_strict_provider(ask: dict[str, Any]) -> None:
    model = MessageScriptModel()
    asked: dict[str, JsonValue] = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "a.b"}}]}
    earlier: list[dict[str, JsonValue]] = [asked, {"role": "tool", "tool_call_id": "1", "content": "1"}]
    for name, limit in (("openai/m", 128), ("anthropic/m", 152), ("scripted", 153)):
        claimed = ModelClaim(Claim.ACT, model=name)
        request = request_of(MessageScriptModels(model), model, call_of(**ask), AGENT, claimed, earlier)
        body: dict[str, Any] = {"tools": [*request.tools], "messages": [*request.messages]}
        if request.output is not None:
            body["response_format"] = {"json_schema": {"schema": request.output.fits}}
        assert (refusal_of("openai", body) is None) is (name == "openai/m" or (bool(ask) and name != "scripted"))
        assert ask or len(request.tools) == limit


def test_a_loaded_toolset_does_not_promise_tools_that_are_not_sent() -> None:
    call = call_of(tools=(LOAD_TOOLSET, "names"), toolsets={})
    draft = DraftCall("p", LOAD_TOOLSET, '{"toolset": "all", "include_write_tools": false}')
    for model, missing in (("openai/m", True), ("anthropic/claude-m", False), ("openai/m", True)):
        (plan,) = plan_calls(call, with_model(AGENT, model), [draft], call.ask.tools).calls
        assert plan.message is not None and plan.row.outcome is not None
        assert ('"not_available":["many_126",' in plan.message.content) is missing
        assert '"many_125"' in plan.message.content


def test_a_later_toolset_displaces_no_tool_of_an_earlier_one() -> None:
    later = tuple(card(name=f"later_{number}", toolset="later", effect="read") for number in range(60))
    agent = AGENT.model_copy(update={"cards": (*later, *ODD, *MANY[:100])})
    names = [each.name for each in agent.cards]
    before = call_of(tools=(LOAD_TOOLSET, *names[60:]), toolsets={"all": False})
    loads = [DraftCall("p", LOAD_TOOLSET, json.dumps({"toolset": "later", "include_write_tools": False}))] * 2
    plans = plan_calls(before, agent, loads, before.ask.tools).calls
    first, again = (json.loads(str(plan.message and plan.message.content)) for plan in plans)
    assert (first["new_tools"], first["not_available"]) == (names[:25], names[25:60])
    assert again["new_tools"] == [] and "not_available" not in again
    after = call_of(tools=(LOAD_TOOLSET, *names), toolsets={"all": False, "later": False})
    models, model, claimed = (
        MessageScriptModels(MessageScriptModel()),
        MessageScriptModel(),
        ModelClaim(Claim.ACT, model="openai/m"),
    )
    with capture_logs() as logs:
        sent: list[Any] = [*request_of(models, model, after, agent, claimed, []).tools]
        request_of(models, model, after, agent, claimed, [])
        request_of(models, model, before, agent, claimed, [])
    assert [each["function"]["name"] for each in sent] == [LOAD_TOOLSET, *names[60:], *names[:25]]
    assert [(each["event"], each["agent"]) for each in logs] == [("tools_not_sent", "a")], "said once"


def test_an_answer_has_the_limit_of_its_step_or_else_of_its_agent() -> None:
    models, claimed = MessageScriptModels(MessageScriptModel()), ModelClaim(Claim.ACT, model="openai/m")
    slow = AGENT.model_copy(update={"definition": AGENT.definition.model_copy(update={"answer_seconds": 300.0})})
    limits = [
        request_of(models, MessageScriptModel(), call, agent, claimed, []).timeout_seconds
        for agent in (AGENT, slow)
        for call in (call_of(), call_of(timeout_seconds=30.0))
    ]
    assert limits == [570.0, 30.0, 300.0, 30.0]
