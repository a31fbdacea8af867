"""`decision_hub` on the real server: exact traces, memory on and broken, and a provider that is asked once."""

import asyncio
from collections.abc import Iterator

import pytest

from perdure.activities.model import ModelActivities
from perdure.contracts.errors import UpstreamUnavailable
from perdure.contracts.turns import TurnAddress
from tests.desk import Desk, publish_desk
from tests.doubles.desk import desk_agents
from tests.doubles.hub import KEEPER, keeper, without
from tests.doubles.spoken import Line
from tests.served import Served

BEGIN = "router_node state_init_node decision_logic_node task_preprocessing_node decision_logic_node"
READ = "memory_read_node decision_logic_node long_term_memory_read_node decision_logic_node"
ANSWER = "model_call_node result_handling_node decision_logic_node"
WRITE = "memory_write_node decision_logic_node long_term_memory_write_node decision_logic_node"
WHOLE = f"{BEGIN} {READ} {ANSWER} {WRITE} format_response_node"
DOWN = UpstreamUnavailable("model_unavailable", "The model's provider is away.", retry_after_seconds=0.05)


@pytest.fixture(scope="module", autouse=True)
async def published(served: Served) -> None:
    other = keeper("two", model="own", fallback_model="other")
    await publish_desk(served.desk.owner_url, [*desk_agents()[0], ("desk", keeper()), ("desk", other)])


@pytest.fixture(autouse=True)
def mended(desk: Desk) -> Iterator[None]:
    yield
    desk.model.broken.clear()


async def trace(served: Served, address: TurnAddress) -> str:
    rows = await served.desk.rows(
        "SELECT data->>'node' AS node FROM events WHERE turn_id = $1 AND kind = 'node_end' ORDER BY seq",
        address.turn_id,
    )
    return " ".join(row["node"] for row in rows)


async def statuses(served: Served, address: TurnAddress) -> list[str]:
    rows = await served.desk.rows(
        "SELECT data->>'status' AS status FROM events WHERE turn_id = $1 AND kind = 'memory.search' ORDER BY seq",
        address.turn_id,
    )
    return [row["status"] for row in rows]


async def test_a_turn_takes_its_exact_way_with_memory_alive_and_with_memory_broken(served: Served) -> None:
    alive, row = await served.ended(Line("fine"), agent_id=KEEPER)
    assert (row["status"], row["answer"]) == ("completed", "fine")
    assert await statuses(served, alive) == ["not_found", "success"]
    async with without(served.desk, "conversation_facts"), without(served.desk, "user_facts"):
        dead, row = await served.ended(Line("fine"), agent_id=KEEPER)
    assert (row["status"], row["answer"]) == ("completed", "fine")
    assert await statuses(served, dead) == ["unavailable", "unavailable"]
    assert await trace(served, alive) == await trace(served, dead) == WHOLE


async def test_a_provider_error_is_the_turns_answer_after_one_request_to_one_model(served: Served) -> None:
    served.desk.model.broken["own"] = DOWN
    address, row = await served.ended(Line("never said"), agent_id="two")
    assert row["status"] == "failed" and row["problem"]["code"] == "backend_unavailable"
    asked = [each.model for each in served.desk.model.seen if each.idempotency_key.startswith(address.turn_id)]
    assert asked == ["own"]
    assert await trace(served, address) == f"{BEGIN} {READ} model_call_node error_router_node format_response_node"
    kinds = await served.desk.kinds(address.turn_id)
    assert "transient_error" not in kinds and kinds[-1] == "done"


async def test_the_death_of_a_worker_is_no_answer_so_its_call_is_made_again(desk: Desk) -> None:
    address, _ = await desk.start(Line("well"), agent_id=KEEPER)
    call = (await desk.model_call(address, agent_id=KEEPER)).model_copy(update={"strict": True})
    complete, asked = ModelActivities(desk.deps).complete, call.agent_id
    desk.model.broken[keeper(asked).definition.model] = asyncio.CancelledError()  # type: ignore[assignment]
    with pytest.raises(asyncio.CancelledError):
        await desk.activity(complete, call, attempt=1)
    desk.model.broken.clear()
    reply = await desk.activity(complete, call, attempt=2)
    assert reply.problem is None and reply.message is not None and reply.message.text == "well"
