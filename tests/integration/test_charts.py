"""The chart builder where the data stays with its owner, and the model that a server gives to its agents."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from perdure import ApiError, AsyncClient, Client
from perdure.apps import SHIPPED, load_app, publish, with_model
from perdure.sdk.tables.client_side import ClientTable, ClientTurn, ask, finish_async
from tests.doubles.tcp_link import TcpLink
from tests.integration.conftest import Api

BUILDER = "chart_builder"
SECRETS = [f"secret-{number}-{number * 7919 % 997:03d}" for number in range(40)]
AMOUNTS = [73_519 + number * 13_577 for number in range(40)]


def test_the_servers_model_plays_every_script_and_no_agents_own_model() -> None:
    app = load_app(SHIPPED / "charts")
    (played,) = publish(with_model(app, "openai/gpt-4o", {"api_key_secret": "model"}), [])
    assert (played.definition.model, played.definition.script) == ("openai/gpt-4o", None)
    assert played.definition.model_params == {"api_key_secret": "model"}
    assert played.version != publish(app, [])[0].version
    own = replace(app, agents=tuple(agent.model_copy(update={"model": "openai/o3"}) for agent in app.agents))
    assert with_model(own, "openai/gpt-4o", {}) == own


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
