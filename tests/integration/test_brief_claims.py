"""A model call's claim locks the conversation last, and what takes seconds comes before it locks anything."""

import pytest

from perdure.activities import model_request
from perdure.activities.model import ModelActivities
from perdure.activities.model_request import Prompt, prompt_of
from perdure.contracts.agents import PublishedAgent
from perdure.contracts.calls import ModelCall
from perdure.store.calls.model_calls import ModelClaim
from perdure.store.database import Connection
from tests.doubles.spoken import Line
from tests.harness import Harness


async def test_libraries_are_imported_before_the_turn_is_locked_and_a_prompt_is_made_before_the_conversation_is(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _ = await harness.start(Line("a"))
    call, free = await harness.model_call(address), list[str]()

    async def imported(agent: PublishedAgent) -> None:
        free.append(str(await harness.value("SELECT id FROM turns WHERE id = $1 FOR UPDATE NOWAIT", address.turn_id)))

    async def made(tx: Connection, call: ModelCall, agent: PublishedAgent, claimed: ModelClaim) -> Prompt:
        prompt = await prompt_of(tx, call, agent, claimed)
        lock = "SELECT id FROM conversations WHERE id = $1 FOR NO KEY UPDATE NOWAIT"
        free.append(str(await harness.value(lock, call.address.conversation_id)))
        return prompt

    monkeypatch.setattr(harness.deps.models, "ready", imported)
    monkeypatch.setattr(model_request, "prompt_of", made)
    harness.deps.agent_cache._agents.clear()
    reply = await harness.activity(ModelActivities(harness.deps).complete, call)
    assert reply.problem is None and free == [address.turn_id, address.conversation_id]
    kinds = await harness.kinds(address.turn_id)
    assert kinds.index("generation.start") < kinds.index("generation.complete")
