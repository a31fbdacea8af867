"""An agent's other model is asked where its own cannot answer, once, under the same call, and `decision_hub`
asks its one model again only where a worker died."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.activities.model import ModelActivities
from perdure.contracts.agents import FallbackModel
from perdure.contracts.errors import UpstreamRejected, UpstreamUnavailable
from perdure.contracts.turns import TurnAddress
from perdure.core.calls.retries import PROVIDER_ERRORS
from tests.doubles.desk_variants import KEEPER, as_desk, keeper
from tests.doubles.message_script import Line
from tests.doubles.target import app_agents
from tests.harness import Harness, publish_app
from tests.served_turns import Served

OWN, OTHER, TWO, APART, KEYLESS = "openai/own", "openai/other", "two_models", "apart_models", "keyless_models"
DOWN = UpstreamUnavailable("model_unavailable", "The model's provider is away.", retry_after_seconds=0.05)


@pytest.fixture(scope="module", autouse=True)
async def fallback_agents(served: Served) -> None:
    apart = FallbackModel(model=OTHER, params={"temperature": 1})
    own: dict[str, Any] = {"model": OWN, "model_params": {"api_base": "http://own", "temperature": 0}}
    changes: list[dict[str, Any]] = [
        {"id": TWO, "model": OWN, "fallback_model": OTHER},
        {"id": APART, **own, "fallback": apart},
        {"id": KEYLESS, **own, "fallback": apart.model_copy(update={"credential": "none"})},
    ]
    hubs = keeper(), keeper("two", model=OWN, fallback_model=OTHER)
    ours = [*hubs, *(as_desk(**each) for each in changes)]
    await publish_app(served.harness.owner_url, [*app_agents()[0], *(("desk", each) for each in ours)])


@pytest.fixture(autouse=True)
def repaired_models(harness: Harness) -> Iterator[None]:
    yield
    harness.model.broken.clear()


def asked_models(harness: Harness, address: TurnAddress) -> list[str]:
    return [each.model for each in harness.model.seen if each.idempotency_key.startswith(address.turn_id)]


async def test_the_fallback_model_answers_if_the_first_is_unavailable(served: Served) -> None:
    served.harness.model.broken[OWN] = DOWN
    address, row = await served.run_to_end(Line("here I am"), agent_id=TWO)
    assert (row["status"], row["answer"]) == ("completed", "here I am")
    assert asked_models(served.harness, address) == [OWN] * PROVIDER_ERRORS + [OTHER]
    (call,) = await served.harness.rows("SELECT model, errors, call_id FROM model_calls WHERE turn_id = $1", row["id"])
    assert tuple(call) == (OTHER, PROVIDER_ERRORS, "m1"), "one call, one ledger row, paid to the model that answered"
    told = await served.harness.event_data(address.turn_id, "transient_error")
    assert told[-1]["fallback_model"] == OTHER and "fallback_model" not in told[0]
    begun = await served.harness.event_data(address.turn_id, "generation.start")
    assert [each["model"] for each in begun] == [OWN] * PROVIDER_ERRORS + [OTHER]


@pytest.mark.parametrize("code", ["model_not_found", "model_setup", "model_timeout"])
async def test_an_unavailable_model_is_left_immediately_and_tried_first_by_the_next_call(
    served: Served, code: str
) -> None:
    served.harness.model.broken[OWN] = UpstreamRejected(code, "The provider does not serve this model, or too slowly.")
    address, _ = await served.run_to_end(Line("from the other"), agent_id=TWO)
    assert asked_models(served.harness, address) == [OWN, OTHER]
    served.harness.model.broken.clear()
    again, row = await served.run_to_end(Line("back"), agent_id=TWO, conversation_id=address.conversation_id)
    assert row["answer"] == "back" and asked_models(served.harness, again) == [OWN]


@pytest.mark.parametrize("code", ["model_not_found", "model_auth"])
async def test_a_fallback_model_has_its_own_settings_and_key(served: Served, code: str) -> None:
    served.harness.model.broken[OWN] = UpstreamRejected(code, "The provider refused it.")
    address, row = await served.run_to_end(Line("mine"), agent_id=APART)
    assert row["answer"] == "mine"
    sent = [each.params for each in served.harness.model.seen if each.idempotency_key.startswith(address.turn_id)]
    assert sent == [{"api_base": "http://own", "temperature": 0}, {"temperature": 1}]
    _, row = await served.run_to_end(Line("never said"), agent_id=KEYLESS)
    assert (row["status"], row["problem"]["code"]) == ("failed", "model_setup")
    assert row["problem"]["details"]["first"]["code"] == code


@pytest.mark.parametrize("code", ["model_bad_request", "model_auth", "output_limit"])
async def test_a_refused_key_is_not_sent_to_a_fallback_that_shares_it(served: Served, code: str) -> None:
    served.harness.model.broken[OWN] = UpstreamRejected(code, "The provider refused it.")
    address, row = await served.run_to_end(Line("never said"), agent_id=TWO)
    assert (row["status"], row["problem"]["code"]) == ("failed", code)
    assert asked_models(served.harness, address) == [OWN]


async def test_the_fallback_model_is_called_once(served: Served) -> None:
    refusal: dict[str, object] = {"refusal": {"status": 404}}
    gone = UpstreamRejected("model_not_found", "The provider does not know this model.", refusal)
    served.harness.model.broken |= {OWN: gone, OTHER: DOWN}
    address, row = await served.run_to_end(Line("never said"), agent_id=TWO)
    assert (row["status"], row["problem"]["code"]) == ("failed", "model_unavailable")
    assert row["problem"]["details"] == {
        "model": OTHER,
        "first": {"model": OWN, "status": 404, "code": gone.code, "message": gone.message},
    }
    assert gone.message in row["problem"]["message"] and DOWN.message in row["problem"]["message"]
    assert asked_models(served.harness, address) == [OWN, OTHER]


async def test_a_conversation_too_long_for_the_fallback_model_is_halved_once(served: Served) -> None:
    long = Line("a long answer " * 20)
    address, _ = await served.run_to_end(long, agent_id=TWO)
    await served.run_to_end(long, agent_id=TWO, conversation_id=address.conversation_id)
    gone = UpstreamRejected("model_not_found", "The provider does not know this model.")
    served.harness.model.broken |= {OWN: gone, OTHER: UpstreamRejected("context_overflow", "It is too long.")}
    again, row = await served.run_to_end(Line("never said"), agent_id=TWO, conversation_id=address.conversation_id)
    assert asked_models(served.harness, again) == [OWN, OTHER, OTHER]
    assert (row["problem"]["code"], row["problem"]["details"]["first"]["code"]) == ("context_overflow", gone.code)
    sizes = [len(messages) for messages in served.sent_to_model(again)]
    assert sizes[0] == sizes[1] > sizes[2]


async def test_a_call_of_a_dead_worker_is_repeated_with_its_first_model(harness: Harness) -> None:
    address, _ = await harness.start(Line("well"), agent_id=KEEPER)
    call = (await harness.model_call(address, agent_id=KEEPER)).model_copy(update={"strict": True})
    complete, asked = ModelActivities(harness.deps).complete, call.agent_id
    harness.model.broken[keeper(asked).definition.model] = asyncio.CancelledError()  # type: ignore[assignment]
    with pytest.raises(asyncio.CancelledError):
        await harness.activity(complete, call, attempt=1)
    harness.model.broken.clear()
    reply = await harness.activity(complete, call, attempt=2)
    assert reply.problem is None and reply.message is not None and reply.message.text == "well"
