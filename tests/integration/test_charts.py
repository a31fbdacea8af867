"""The chart builder: over LiteLLM against a provider double, and where the data stays with its owner."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from temporalio.client import Client as TemporalClient

from perdure import ApiError, AsyncClient, Client
from perdure.activities.providers.registry import Models, first_that_answers
from perdure.activities.toolbox.registry import Toolbox
from perdure.apps import SHIPPED, load_app, publish, with_model
from perdure.contracts.turns import TurnAddress, TurnStatus
from perdure.contracts.values import digest_of
from perdure.sdk.tables.client_side import ClientTable, ClientTurn, ask, finish_async
from perdure.settings import Settings
from perdure.store.database import new_id
from perdure.store.memory import files
from tests.doubles.message_script import Line
from tests.doubles.providers.client import UNWARNED
from tests.doubles.providers.script import Call, Step
from tests.doubles.providers.server import ProviderDouble
from tests.doubles.tcp_link import TcpLink
from tests.harness import Harness, publish_app
from tests.integration.conftest import Api
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
async def charts(harness: Harness, temporal: TemporalClient) -> AsyncIterator[Charts]:
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
    said, own = row["answer"].split("\n\n")
    assert said == "Sales by region are drawn." and own, "the engine's own sentence is beside the model's"
    assert row["output"]["outcome"] == "drawn" and "fault" not in row["output"]
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
    assert (row["status"], row["output"]["outcome"]) == ("completed", "answered")
    assert row["answer"].startswith("Ask me for a chart.\n\n")
    second: Any = charts.requests(address)[1].body
    assert second["tool_choice"] == {"type": "function", "function": {"name": "classify"}}
    assert "response_format" not in second
    assert await charts.labels(address) == ["classify", "classify", "feedback"]


async def test_a_refused_key_ends_the_turn_as_failed_with_its_stage(charts: Charts) -> None:
    address, row = await charts.run_to_end(Step(status=401, code="invalid_api_key", times=None))
    assert (row["status"], row["problem"]["code"], row["output"]["outcome"]) == ("failed", "model_auth", "failed")
    fault = row["output"]["fault"]
    assert (fault["stage"], fault["code"]) == ("classify", "classify_refused") and fault["message"] in row["answer"]
    assert await charts.labels(address) == ["classify"], "nothing more is asked with this key"


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


BUILDER = "chart_builder"
SECRETS = [f"secret-{number}-{number * 7919 % 997:03d}" for number in range(40)]
AMOUNTS = [73_519 + number * 13_577 for number in range(40)]


class Recorder(TcpLink):
    """A link that keeps all that passes, in both directions."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.passed = bytearray()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            self.passed += data
            writer.write(data)
            await writer.drain()


@pytest.fixture
async def wire(api: Api) -> AsyncIterator[Recorder]:
    where = urlsplit(api.url)
    recorder = Recorder(str(where.hostname), where.port or 0)
    await recorder.open()
    yield recorder
    await recorder.cut()


def table(tmp_path: Path) -> ClientTable:
    """A table whose every cell would be known again."""
    lines = [f"{SECRETS[n]},{'east' if n % 2 else 'west'}-ward,{AMOUNTS[n]}" for n in range(40)]
    path = tmp_path / "ledger.csv"
    path.write_text("customer,side,amount\n" + "\n".join(lines) + "\n")
    return ClientTable.read(path)


def client(api: Api, url: str) -> Client:
    return Client(url, api.people["requester"].token)


async def test_no_row_leaves_the_client_which_draws_the_picture(api: Api, wire: Recorder, tmp_path: Path) -> None:
    kept = table(tmp_path)

    def work() -> ClientTurn:
        with client(api, f"http://127.0.0.1:{wire.port}") as perdure:
            return ask(perdure, BUILDER, "Plot amount by side", kept, timeout_seconds=100)

    made = await asyncio.to_thread(work)
    assert made.turn.status == "completed", made.turn.error
    on_the_wire = wire.passed.decode(errors="replace")
    assert "Plot amount by side" in on_the_wire and '"distinct"' in on_the_wire, "the wire was watched"
    cells = [*SECRETS, "east-ward", "west-ward", *map(str, AMOUNTS)]
    leaked = [cell for cell in cells if re.search(rf"(?<![\d-]){cell}(?!\d)", on_the_wire)]
    assert not leaked, f"{sum(map(len, leaked))} bytes of raw rows"
    assert str(tmp_path) not in on_the_wire
    specification: Any = made.specification
    assert specification["title"]["text"] == "amount by side" and "subtitle" not in specification["title"]
    sums = {row["side"]: row["amount"] for row in specification["data"]["values"]}
    assert sums == {"west-ward": sum(AMOUNTS[0::2]), "east-ward": sum(AMOUNTS[1::2])}
    assert (await asyncio.to_thread(made.png))[:8] == b"\x89PNG\r\n\x1a\n"
    async with api.client() as rest:
        held = await rest.get(f"/v1/conversations/{made.turn.conversation_id}/files")
        assert held.json()["items"] == [], "nothing is kept of it on the server"


async def test_a_restarted_client_continues_its_turn_and_answers_once(api: Api, tmp_path: Path) -> None:
    kept = table(tmp_path)

    def begin() -> str:
        with client(api, api.url) as perdure:
            conversation = perdure.conversations.create(BUILDER)
            described = {"client_table": kept.describe()}
            turn = perdure.turns.start(conversation.id, "Plot amount by side", metadata=described)
            waiting = perdure.turns.wait(turn.turn_id, timeout_seconds=60)
            assert waiting.waiting_for is not None and waiting.waiting_for.kind == "client_run"
            question = perdure.turns.question(turn.turn_id, waiting.waiting_for.ids[0])
            perdure.turns.answer(turn.turn_id, question.id, "client_run", kept.execute_plan(question.asked["plan"]))
            with pytest.raises(ApiError) as again:
                perdure.turns.answer(turn.turn_id, question.id, "client_run", {"ok": True})
            assert (again.value.status, again.value.code) == (409, "already_answered")
            return turn.turn_id

    turn_id = await asyncio.to_thread(begin)
    async with AsyncClient(api.url, api.people["requester"].token) as perdure:
        made: Any = await finish_async(perdure, turn_id, table(tmp_path), timeout_seconds=100)
    assert len(made.specification["data"]["values"]) == 2, "the plan is carried out again, here"


async def test_no_other_user_can_answer_and_an_answer_contains_no_rows(api: Api, tmp_path: Path) -> None:
    kept = table(tmp_path)
    async with api.client() as mine, api.client("admin") as other:
        made = await mine.post("/v1/conversations", json={"agent": BUILDER})
        body = {"message": "Plot amount by side", "metadata": {"client_table": kept.describe()}}
        path = f"/v1/conversations/{made.json()['id']}/turns"
        column = {"kind": "nominal", "distinct": 1, "nulls": 0}
        wide = {"rows": 1, "columns": [{**column, "name": "表" * 195 + str(number)} for number in range(100)]}
        too_large = {**kept.describe(), "others": [{**wide, "name": name} for name in "abc"]}
        for wrong in (*({**kept.describe(), "rows": rows} for rows in ([["a", 1]], 3)), too_large):
            refused = await mine.post(path, json={**body, "metadata": {"client_table": wrong}})
            assert refused.status_code == 422, "a table is described, never sent"
            assert "metadata" in refused.json()["error"]["details"]["fields"][0]["field"]
        turn = (await mine.post(path, params={"wait": 60}, json=body, timeout=90)).json()
        assert turn["status"] == "awaiting_answer", turn
        answers = f"/v1/turns/{turn['turn_id']}/answers/{turn['waiting_for']['ids'][0]}"
        run = kept.execute_plan("")
        stolen = await other.post(answers, json={"kind": "client_run", "payload": run})
        assert (stolen.status_code, stolen.json()["error"]["code"]) == (404, "question_not_found")
        untrue: list[Any] = [{**run, "data": [[1, 2]]}, *({**run, "rows": rows} for rows in ([{"a": 1}], 3))]
        for payload in (*untrue, {"ok": "yes"}, {"ok": True}):
            refused = await mine.post(answers, json={"kind": "client_run", "payload": payload})
            assert (refused.status_code, refused.json()["error"]["code"]) == (422, "answer_invalid"), payload
        assert (await mine.post(f"/v1/turns/{turn['turn_id']}/stop")).status_code == 202
        late = await mine.post(answers, json={"kind": "client_run", "payload": run})
        assert (late.status_code, late.json()["error"]["code"]) == (409, "turn_stopped")
        async with mine.stream("GET", f"/v1/turns/{turn['turn_id']}/events", timeout=60) as stream:
            kinds = [line[7:] async for line in stream.aiter_lines() if line.startswith("event: ")]
        assert kinds[-2:] == ["done", "workflow_complete"] and "client_run.requested" in kinds
        assert (await mine.get(f"/v1/turns/{turn['turn_id']}")).json()["status"] == "stopped"
