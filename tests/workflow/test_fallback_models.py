"""An agent's other model is asked where its own cannot answer, once, under the same call (S0-76)."""

from collections.abc import Iterator
from typing import Any

import pytest

from perdure.contracts.errors import PerdureError, UpstreamRejected, UpstreamUnavailable
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import digest_of
from perdure.core.calls.retries import PROVIDER_ERRORS
from tests.desk import Desk, publish_desk
from tests.doubles.desk import desk_agents
from tests.doubles.spoken import Line
from tests.served import Served

OWN, OTHER = "own", "other"
DOWN = UpstreamUnavailable("model_unavailable", "The model's provider is away.", retry_after_seconds=0.05)


@pytest.fixture(scope="module")
async def with_other(served: Served) -> str:
    agent = next(agent for _, agent in desk_agents()[0] if agent.definition.id == "desk")
    changed: dict[str, Any] = {"id": "two_models", "model": OWN, "fallback_model": OTHER}
    definition = agent.definition.model_copy(update=changed)
    version = digest_of(definition.model_dump(mode="json"))
    ours = agent.model_copy(update={"definition": definition, "version": version})
    await publish_desk(served.desk.owner_url, [*desk_agents()[0], ("desk", ours)])
    return definition.id


@pytest.fixture(autouse=True)
def mended(desk: Desk) -> Iterator[None]:
    """Every model works again afterwards."""
    yield
    desk.model.broken.clear()


def asked(desk: Desk, address: TurnAddress) -> list[str]:
    """The models that were asked for the turn, in order."""
    return [each.model for each in desk.model.seen if each.idempotency_key.startswith(address.turn_id)]


async def test_the_other_model_answers_where_the_own_one_is_down(served: Served, with_other: str) -> None:
    served.desk.model.broken[OWN] = DOWN
    address, row = await served.ended(Line("here I am"), agent_id=with_other)
    assert (row["status"], row["answer"]) == ("completed", "here I am")
    assert asked(served.desk, address) == [OWN] * PROVIDER_ERRORS + [OTHER]
    call = (await served.desk.rows("SELECT model, errors, call_id FROM model_calls WHERE turn_id = $1", row["id"]))[0]
    assert tuple(call) == (OTHER, PROVIDER_ERRORS, "m1"), "one call, one ledger row, paid to the model that answered"
    told = await served.desk.rows(
        "SELECT data FROM events WHERE turn_id = $1 AND kind = 'transient_error' ORDER BY seq", row["id"]
    )
    assert told[-1]["data"]["fallback_model"] == OTHER and "fallback_model" not in told[0]["data"]
    begun = await served.desk.rows(
        "SELECT data->>'model' AS model FROM events WHERE turn_id = $1 AND kind = 'generation.start' ORDER BY seq",
        row["id"],
    )
    assert [each["model"] for each in begun] == [OWN] * PROVIDER_ERRORS + [OTHER]


async def test_a_model_that_is_not_there_is_given_up_at_once_and_asked_first_again_by_the_next_call(
    served: Served, with_other: str
) -> None:
    served.desk.model.broken[OWN] = UpstreamRejected("model_not_found", "The provider does not know this model.")
    address, _ = await served.ended(Line("from the other"), agent_id=with_other)
    assert asked(served.desk, address) == [OWN, OTHER]
    served.desk.model.broken.clear()
    again, row = await served.ended(Line("back"), agent_id=with_other, conversation_id=address.conversation_id)
    assert row["answer"] == "back" and asked(served.desk, again) == [OWN]


@pytest.mark.parametrize(
    "error",
    [
        UpstreamRejected("model_bad_request", "The provider refused the request."),
        UpstreamRejected("model_auth", "The provider refused the key."),
        UpstreamRejected("output_limit", "The model reached its output limit."),
    ],
)
async def test_a_refused_request_or_key_is_not_taken_elsewhere(
    served: Served, with_other: str, error: PerdureError
) -> None:
    served.desk.model.broken[OWN] = error
    address, row = await served.ended(Line("never said"), agent_id=with_other)
    assert (row["status"], row["problem"]["code"]) == ("failed", error.code)
    assert asked(served.desk, address) == [OWN]


async def test_the_other_model_is_asked_once(served: Served, with_other: str) -> None:
    gone = UpstreamRejected("model_not_found", "The provider does not know this model.")
    served.desk.model.broken |= {OWN: gone, OTHER: DOWN}
    address, row = await served.ended(Line("never said"), agent_id=with_other)
    assert (row["status"], row["problem"]["code"]) == ("failed", "model_unavailable")
    assert asked(served.desk, address) == [OWN, OTHER]
