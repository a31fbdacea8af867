"""The chart builder over LiteLLM against a provider double: whole turns, retries, and the other output form."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest
from temporalio.client import Client

from perdure.activities.providers.registry import Models, first_that_answers
from perdure.activities.toolbox.registry import Toolbox
from perdure.apps import SHIPPED, load_app, publish, with_model
from perdure.contracts.turns import TurnAddress, TurnStatus
from perdure.contracts.values import digest_of
from perdure.settings import Settings
from perdure.store.database import new_id
from perdure.store.memory import files
from tests.doubles.message_script import Line
from tests.doubles.providers.client import UNWARNED
from tests.doubles.providers.script import Call, Step
from tests.doubles.providers.server import ProviderDouble
from tests.harness import Harness, publish_app
from tests.served_turns import ALL_KINDS, Served, serve

pytestmark = UNWARNED
AGENT = "charts_by_model"
CSV = b"region,sales\nNorth,30\nSouth,10\n"
RESTING = (TurnStatus.COMPLETED, TurnStatus.FAILED)
GROUP = '<group><by column="region"/><aggregate column="sales" function="sum" as="sales"/></group>'


@dataclass(frozen=True, slots=True)
class Charts:
    """Turns of the chart builder, and the provider that it talks to."""

    served: Served
    double: ProviderDouble

    async def run_to_end(self, *steps: Step) -> tuple[TurnAddress, Any]:
        self.double.script(*steps)
        harness = self.served.harness
        conversation_id = await harness.conversation(AGENT)
        async with harness.db.transaction("local") as tx:
            file = files.NewFile.of(new_id(), "sales.csv", "text/csv", CSV)
            await files.store_files(tx, conversation_id, harness.people["requester"].user_id, [file])
        address = await self.served.begin(Line("a chart"), agent_id=AGENT, conversation_id=conversation_id)
        return address, await self.served.until(address, *RESTING, seconds=90)

    def requests(self, address: TurnAddress) -> list[Any]:
        return [seen for seen in self.double.requests if seen.idempotency_key.startswith(address.turn_id)]

    async def labels(self, address: TurnAddress) -> list[str]:
        stages = "SELECT stage FROM model_calls WHERE turn_id = $1 ORDER BY length(call_id), call_id"
        return [row["stage"] for row in await self.served.harness.rows(stages, address.turn_id)]


@pytest.fixture(scope="module")
async def charts(harness: Harness, temporal: Client) -> AsyncIterator[Charts]:
    async with AsyncExitStack() as stack:
        double = stack.enter_context(ProviderDouble())
        app = load_app(SHIPPED / "charts")
        (shipped,) = publish(app, [])
        params = {"api_base": double.api_base, "api_key_secret": "model_key"}
        changed = {"id": AGENT, "model": "openai/gpt-4o-mini", "model_params": params, "script": None}
        definition = shipped.definition.model_copy(update=changed)
        version = digest_of(definition.model_dump(mode="json"))
        agent = shipped.model_copy(update={"definition": definition, "version": version})
        await publish_app(harness.owner_url, [("charts", agent)])
        models = Models({"model_key": "sk-of-the-test"}.get)
        toolbox = Toolbox([(AGENT, tool) for tool in app.tools.values()], lambda name: None, harness.deps.toolbox.http)
        at = replace(harness, deps=replace(harness.deps, models=models, toolbox=toolbox))
        provider: Any = await models.provider(agent)
        stack.push_async_callback(provider.aclose)
        yield Charts(Served(at, temporal, await serve(stack, at, ALL_KINDS)), double)


def json_step(**value: object) -> Step:
    return Step(text=json.dumps(value))


def plan(xml: str) -> Step:
    given = {"transformation": "sum" if xml else "", "xml": xml, "visualization": "sales by region"}
    return json_step(early_exit=False, question="", options=[], suggestions=[], **given)


CLASSIFIED = json_step(kind="visualization", excludes=False)
SPECIFIED = json_step(xml='<chart><show column="region"/><show column="sales"/></chart>')
REST = (json_step(marks=[]), Step(text="Sales by region are drawn."))


async def test_a_plan_that_fits_at_the_third_attempt_ends_in_a_picture(charts: Charts) -> None:
    address, row = await charts.run_to_end(
        CLASSIFIED, plan("<plan><bogus/></plan>"), plan("<plan><group/></plan>"), plan(f"<plan>{GROUP}</plan>"),
        SPECIFIED, *REST,
    )  # fmt: skip
    assert row["status"] == "completed" and row["output"]["pictures"], row["problem"]
    assert row["answer"] == "Sales by region are drawn."
    assert await charts.labels(address) == ["classify", "plan", "plan", "plan", "specify", "marks", "feedback"]
    requests = charts.requests(address)
    assert len(requests) == row["attempts"] == 7
    assert "bogus" in json.dumps(requests[2].body["messages"]), "the fault is told, with its place"
    first: Any = requests[0].body
    assert first["response_format"]["json_schema"]["name"] == "classify" and first["temperature"] == 0
    assert first["response_format"]["json_schema"]["strict"] is True and "tools" not in first
    assert "sales.csv" in json.dumps(first["messages"]) and "North" not in json.dumps(first["messages"])


async def test_text_instead_of_an_object_is_retried_with_a_required_function(charts: Charts) -> None:
    called = Step(calls=(Call(name="classify", arguments={"kind": "question", "excludes": False}),))
    address, row = await charts.run_to_end(
        Step(text="It is a chart, I think."), called, Step(text="Ask me for a chart.")
    )
    assert (row["status"], row["answer"]) == ("completed", "Ask me for a chart.")
    second: Any = charts.requests(address)[1].body
    assert second["tool_choice"] == {"type": "function", "function": {"name": "classify"}}
    assert "response_format" not in second
    assert await charts.labels(address) == ["classify", "classify", "feedback"]


async def test_the_first_model_to_answer_is_used(charts: Charts, monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.activities.providers.litellm_provider import LiteLLMProvider  # 5 s, which the fixture has spent

    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-test")
    monkeypatch.setenv("OPENAI_BASE_URL", charts.double.api_base)
    provider = LiteLLMProvider(Settings(_env_file=None).outbound_to_providers())
    try:
        charts.double.script(Step(status=401, code="invalid_api_key"), Step(text="ready"))
        names = ("openai/gpt-4o", "openai/gpt-4o-mini", "openai/o3")
        assert await first_that_answers(names, provider, {}) == "openai/gpt-4o-mini"
        charts.double.script(Step(status=401, code="invalid_api_key", times=None))
        with pytest.raises(SystemExit) as ended:
            await first_that_answers(names, provider, {})
        assert all(name in str(ended.value) for name in names) and "model_auth" in str(ended.value)
    finally:
        await provider.aclose()


def test_the_servers_model_plays_every_script_and_no_agents_own_model() -> None:
    app = load_app(SHIPPED / "charts")
    (played,) = publish(with_model(app, "openai/gpt-4o", {"api_key_secret": "model"}), [])
    assert (played.definition.model, played.definition.script) == ("openai/gpt-4o", None)
    assert played.definition.model_params == {"api_key_secret": "model"}
    assert played.version != publish(app, [])[0].version
    own = replace(app, agents=tuple(agent.model_copy(update={"model": "openai/o3"}) for agent in app.agents))
    assert with_model(own, "openai/gpt-4o", {}) == own
